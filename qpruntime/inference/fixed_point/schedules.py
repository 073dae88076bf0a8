"""The orders in which sites are visited, each a loop of bounded length.

One site after the other, in turn or at random, updating the posterior after each; all of them from
one posterior; or mixtures of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg.lapack import dposv

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import Ended, Limits, Trace
from qpruntime.inference.parallel_updates import sizes
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites, no_counts, no_sites
from qpruntime.inference.solver_protocol import Solved

__all__ = [
    "Anderson",
    "Settled",
    "Steering",
    "Swept",
    "advance",
    "farthest",
    "measure_change",
    "settle_mixed",
    "settle_parallel",
    "settle_visiting",
    "solve_positive",
    "swept_until",
]

# --- Orders of visits

# Sweeps whose step points back along the previous one are shortened by this factor, down to the
# floor.
_SHORTEN = 0.7
_LEAST_DAMPING = 0.02
# Changes above this are far from the fixed point.
_FAR = 1e-2
# Parallel iterations that are still far after so many have lost their way: labels of one kind under
# a wide prior make all sites overshoot together. Two sweeps in turn bring them close.
_PATIENCE, _RESCUE = 20, 2
# Sites without a proper cavity stay as they are, and so do those that follow from them: after so
# many sweeps with some, one after the other, there is no way out; and none either once all others
# change by less than this share of what counts as settled, for the next sweep is the same again.
_STUCK, _STILL = 40, 1e-2


@dataclass(kw_only=True)
class Settled(Ended):
    """Where the iteration ended. `factor` and its `marginals()` belong to `sites`.

    `bound` is the variational bound where that is what was maximised.
    """

    sites: Sites
    factor: Solved
    variance: Array
    kept: Array
    bound: float | None = None

    @property
    def marginals(self) -> Marginals:
        """Means, variances and `kept`, as kernels take them."""
        return Marginals(self.factor.mean, self.variance, self.kept, self.factor.weights)

    @property
    def proper(self) -> bool:
        """Whether every site has a proper cavity."""
        return bool((self.kept > 0.0).all())


@dataclass
class _Mixture:
    """One attempt in mixed order: what its parts share, and how many sweeps are left to them."""

    problem: Problem
    limits: Limits
    rng: np.random.Generator | None
    anderson: Anderson
    trace: Trace

    def __post_init__(self) -> None:
        self._end = len(self.trace.history) + self.limits.sweeps

    @property
    def left(self) -> int:
        """Sweeps that may still be done."""
        return self._end - len(self.trace.history)

    def _at_most(self, sweeps: int) -> Limits:
        return self.limits._replace(sweeps=min(sweeps, self.left))

    def visit(self, sites: Sites, factor: Solved, most: int) -> Settled:
        """Up to so many sweeps, one site after the other."""
        limits = self._at_most(most)
        return settle_visiting(self.problem, sites, factor, limits, self.rng, self.trace)

    def at_once(self, sites: Sites, factor: Solved, most: int) -> Settled:
        """Up to so many iterations in parallel."""
        limits = self._at_most(most)
        return settle_parallel(self.problem, sites, factor, limits, self.anderson, self.trace)


def settle_mixed(
    problem: Problem,
    start: Sites,
    factor: Solved,
    limits: Limits,
    rng: np.random.Generator | None,
    anderson: Anderson,
    trace: Trace,
) -> Settled:
    """Parallel order, with sweeps where it is known to lose its way."""
    mixture = _Mixture(problem, limits, rng, anderson, trace)
    sites = start
    if not (problem.projector.likelihood.log_concave or start.tau.any()):
        # There may be several fixed points: begin near that of the other orders.
        end = mixture.visit(sites, factor, _RESCUE)
        if end.settled or not mixture.left:
            return end
        sites, factor = end.sites, end.factor
    end = mixture.at_once(sites, factor, _PATIENCE)
    if not end.settled and mixture.left and trace.history[-1] > _FAR:
        nothing = no_sites(problem.n)
        end = mixture.visit(nothing, problem.prior.factor(nothing), _RESCUE)
    if not end.settled and mixture.left:
        end = mixture.at_once(end.sites, end.factor, (mixture.left + 1) // 2)
    if not end.settled and mixture.left:
        end = mixture.visit(end.sites, end.factor, mixture.left)
    return end


class _Stuck:
    """Ends where sites without a proper cavity leave no way out."""

    share = 1.0

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self._free, self._tol, self._stuck = not problem.nonnegative, limits.tol, 0

    def ends(self, swept: Swept) -> bool:
        """Whether sites are stuck, or all others are still."""
        self._stuck = self._stuck + 1 if swept.counts[2] else 0
        still = self._stuck > 0 and swept.change < _STILL * self._tol
        return self._free and (self._stuck == _STUCK or still)


class _Turning(_Stuck):
    """Shortens steps that point back along the previous one."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        super().__init__(problem, limits)
        self._previous = np.zeros(2 * problem.n)

    def turn(self, step: Array) -> None:
        """Take in the step of a sweep."""
        previous = self._previous
        if float(step @ previous) < -0.5 * float(previous @ previous):
            self.share = max(_SHORTEN * self.share, _LEAST_DAMPING)
        else:
            self.share = min(1.0, self.share / _SHORTEN**0.25)
        self._previous = step


def settle_visiting(
    problem: Problem,
    sites: Sites,
    factor: Solved,
    limits: Limits,
    rng: np.random.Generator | None,
    trace: Trace,
) -> Settled:
    """Sequential order, or a new random one in every sweep if there is a generator."""
    n = problem.n
    steering = _Turning(problem, limits)
    asked: Sites = no_sites(0)

    def sweep(share: float) -> Swept:
        nonlocal asked
        shortened = n * (steering.share < 1.0)
        visits, counts = rng.permutation(n) if rng is not None else None, no_counts()
        variance, *changes = factor.sweep(problem, sites, share, visits, counts)
        asked = Sites(*changes)
        change, step = measure_change(*asked, sites.nu, variance)
        steering.turn(step)
        return Swept(change, farthest(step), counts, shortened)

    def move(_: bool) -> int:
        nonlocal sites, factor
        sites, factor, halvings = advance(problem, sites, *asked, 1.0)
        return n * halvings

    settled, last = swept_until(sweep, limits, steering, trace, move)
    variance, kept = factor.marginals()
    return Settled(
        sites=sites, factor=factor, variance=variance, kept=kept,
        settled=settled, worst=last.worst, trace=trace,
    )  # fmt: skip


def settle_parallel(
    problem: Problem,
    sites: Sites,
    factor: Solved,
    limits: Limits,
    accelerator: Anderson,
    trace: Trace,
) -> Settled:
    """All sites from one factorisation, accelerated."""
    n = problem.n
    unit = np.ones(2 * n)
    accelerator.restart()
    asked, change = no_sites(0), 0.0
    variance = kept = np.empty(0)
    known = False

    def sweep(_: float) -> Swept:
        nonlocal sites, asked, unit, change, variance, kept, known
        begins = not variance.size
        if not known:
            variance, kept = factor.marginals()
        known = True
        if begins:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        counts = no_counts()
        # Far from the fixed point one step of the means is too few where the prior is wide: the
        # iteration then wanders (test_iterate_cold_start.py). Near it a second one gains nothing.
        steps = 2 if change > _FAR else int(not begins or sites.tau.any())
        sites, *changes = factor.propose(problem, (variance, kept), sites, steps, counts)
        asked = Sites(*changes)
        change, step = measure_change(*asked, sites.nu, variance)
        return Swept(change, farthest(step), counts)

    def move(ends: bool) -> int:
        # The posterior at hand already belongs to sites that have settled: nothing to recompute.
        nonlocal sites, factor, known
        if ends:
            return 0
        d_tau, d_nu = asked
        step = accelerator.step(np.concatenate(sites), np.concatenate(asked), unit)
        if problem.nonnegative:
            # No site may turn negative: such a site takes its plain step.
            plain = sites.tau + step[:n] < 0.0
            step[:n][plain], step[n:][plain] = d_tau[plain], d_nu[plain]
        factor.discard()
        sites, factor, halvings = advance(problem, sites, step[:n], step[n:], limits.damping)
        known = False
        return n * halvings

    settled, last = swept_until(sweep, limits, _Stuck(problem, limits), trace, move)
    if not known:
        variance, kept = factor.marginals()
    return Settled(
        sites=sites, factor=factor, variance=variance, kept=kept,
        settled=settled, worst=last.worst, trace=trace,
    )  # fmt: skip


# --- Anderson acceleration of x <- x + r(x) (D. G. Anderson, 1965)
#
# The last few steps and residuals give a secant model of r; the next x is where the model's
# residual is smallest. Parallel EP alternates around its fixed point when the evidence is steep
# (separable data, large prior variance): plain iterations shrink the error by 0.6 each, accelerated
# ones reach 1e-6 in a third of the number.

_RIDGE = 1e-10


def solve_positive(A: Array, b: Array) -> Array:
    """Return A^-1 b for a small positive definite A, or zeros where rounding made it indefinite."""
    _, solution, failed = dposv(A, b)
    return np.zeros_like(b) if failed else solution


def secant_step(steps: Array, changes: Array, residual: Array, unit: Array, scaled: Array) -> Array:
    """Return the step to where the secant model's residual is smallest.

    `steps` and `changes` (past, N) are what the iterates and their residuals moved by.
    """
    weighted = changes * unit
    norm = np.sqrt(np.einsum("ij,ij->i", weighted, weighted))
    norm[norm == 0.0] = 1.0
    # Unit rows: differences of all ages count alike, and the ridge keeps nearly parallel ones
    # from cancelling into noise.
    weighted /= norm[:, None]
    gram = weighted @ weighted.T
    gram.flat[:: norm.size + 1] += _RIDGE
    gamma = solve_positive(gram, weighted @ scaled)
    return residual - (gamma / norm) @ (steps + changes)


class Anderson:
    """Proposes steps; forgets what it learned when that made matters worse.

    One object may serve a sequence of related problems, such as the same data under slowly
    changing hyper-parameters: after `restart` the secant model is kept if the new problem is near.

    Parameters
    ----------
    memory : int
        Past differences kept.
    begin : float
        Root mean squared weighted residual below which the secant model is trusted.
    near : float
        First residual below which a new problem is so near that the old model is kept.
    """

    def __init__(self, memory: int = 6, begin: float = 0.3, near: float = 0.01) -> None:
        self.memory = memory
        self.begin = begin
        self.near = near
        self._steps = self._changes = np.empty((0, 0))
        self._count = self._next = 0
        self.restart()

    def restart(self) -> None:
        """Begin a new iteration."""
        self._last: tuple[Array, Array] | None = None
        self._size = np.inf

    def step(self, x: Array, residual: Array, unit: Array) -> Array:
        """Return the step to take from `x`, where the plain iteration would take `residual`.

        `unit` weighs the components of a residual against each other.
        """
        scaled = residual * unit
        size = math.sqrt(float(scaled @ scaled) / scaled.size)
        if self._steps.shape[1] != x.size:
            self._steps, self._changes = np.empty((2, self.memory, x.size))
            self._count = 0
        fresh = self._last is None and size > self.near
        if size > self.begin or size > 2.0 * self._size or fresh:
            self._count = self._next = 0
        elif self._last is not None:
            self._steps[self._next] = x - self._last[0]
            self._changes[self._next] = residual - self._last[1]
            self._next = (self._next + 1) % self.memory
            self._count = min(self._count + 1, self.memory)
        self._last, self._size = (x, residual), size
        if not self._count:
            return residual
        steps, changes = self._steps[: self._count], self._changes[: self._count]
        return secant_step(steps, changes, residual, unit, scaled)


# --- Step sizes
#
# The loops that put the pieces together are in `qpruntime.inference.fixed_point.schedules`.


def advance(
    problem: Problem, sites: Sites, d_tau: Array, d_nu: Array, scale: float
) -> tuple[Sites, Solved, int]:
    """Take the step, halved until the posterior is proper; that can only fail with tau < 0."""
    for halvings in range(40):
        new = Sites(sites.tau + scale * d_tau, sites.nu + scale * d_nu)
        try:
            return new, problem.prior.factor(new), halvings
        except ImproperPosterior:
            scale *= 0.5
    raise ImproperPosterior(
        "negative site precisions leave no proper posterior however short the step; "
        "use a smaller prior variance or a prior mean away from zero"
    )


def measure_change(d_tau: Array, d_nu: Array, nu: Array, variance: Array) -> tuple[float, Array]:
    """Root mean squared change of the site parameters, plain or in posterior units if larger.

    Also the changes in posterior units, those of tau before those of nu.
    """
    n = d_tau.size
    step = np.empty(2 * n)
    change = sizes(d_tau, d_nu, nu, variance, step)
    if not np.isfinite(change):
        site = int(np.argmax(np.where(np.isfinite(step[:n] + step[n:]), 0.0, 1.0)))
        raise NumericalError(
            f"the sites grow without bound, site {site} first: observations that the kernel ties "
            "together contradict each other, as equal points with opposite labels do under the "
            'heaviside; use likelihood="probit", or add a WhiteKernel to the kernel'
        )
    return change, step


def farthest(step: Array) -> int:
    """The site that changes most, of changes of tau before those of nu."""
    n = step.size // 2
    return int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))


# --- Loop of sweeps

#: Nothing was looked up in a table, and no update skipped.
NONE = np.zeros(3, dtype=np.int64)


class Swept(NamedTuple):
    """What one sweep did.

    Attributes
    ----------
    change : float
        Root mean squared change of the sites that was asked for, as `qpruntime.infer` has it.
    worst : int
        The site that changed most.
    counts : ndarray, shape (3,)
        Lookups inside and outside a grid, and updates skipped.
    shortened : int
        Updates of single sites that were shortened.
    held : int
        Precisions held at zero, where the sweep knows.
    """

    change: float
    worst: int
    counts: Counts
    shortened: int = 0
    held: int = 0


class Steering(Protocol):
    """How much of a step is taken, and when there is no use in going on."""

    @property
    def share(self) -> float:
        """The share of the damping asked for that is applied."""

    def ends(self, swept: Swept) -> bool:
        """Take a sweep in that has not settled; return whether it was the last."""


class Settling(NamedTuple):
    """Whether the last sweep has settled the sites, and that sweep."""

    settled: bool
    last: Swept


def swept_until(
    sweep: Callable[[float], Swept],
    limits: Limits,
    steering: Steering,
    trace: Trace,
    move: Callable[[bool], int] = lambda _: 0,
) -> Settling:
    """Sweep until sites no longer change, within the limits.

    A site that could not be updated has not settled, though it does not change. A change that is
    not finite ends the loop, and is not in the history.

    Parameters
    ----------
    sweep : callable
        Updates all sites, by the share of what they ask for that it is given.
    limits : Limits
    steering : Steering
    trace : Trace
        Added to.
    move : callable
        What follows where a sweep only asks: takes whether this was the last one, and returns how
        many updates it has shortened.
    """
    swept, settled = Swept(np.inf, 0, NONE), False
    for _ in range(limits.sweeps):
        swept = sweep(limits.damping * steering.share)
        trace.counts += swept.counts
        trace.damped += swept.shortened
        if not math.isfinite(swept.change):
            break
        trace.history.append(swept.change)
        settled = bool(swept.change < limits.tol and not swept.counts[2])
        ends = settled or steering.ends(swept)
        trace.damped += move(ends)
        if ends:
            break
    return Settling(settled, swept)
