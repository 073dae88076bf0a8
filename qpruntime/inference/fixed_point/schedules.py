"""Schedules of site updates: sequential, random, parallel or mixed, each a loop of bounded length.

A sequential schedule updates the posterior after each site, a parallel one after all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg.lapack import dposv

from qpruntime._typing import Array
from qpruntime.inference.fixed_point.convergence import Ended, Limits, Trace, unbounded
from qpruntime.inference.parallel_updates import sizes
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import NO_STEP, Counts, ImproperPosterior, Sites, no_counts, no_sites
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

# Factor that shortens steps which point back along the previous one, and the smallest share.
_SHORTENING = 0.7
_MIN_SHARE = 0.02
# Changes above this are far from the fixed point.
_FAR_CHANGE = 1e-2
# Parallel iterations that are still far after 20 do not converge: labels of one kind under a wide
# prior make all sites overshoot together. Two sequential sweeps bring them close.
_PARALLEL_PATIENCE, _RESCUE_SWEEPS = 20, 2
# Sites without a proper cavity are not updated, nor are those that depend on them. The iteration
# gives up after 40 such sweeps in a row, or once all other sites change by less than 1 % of the
# tolerance, because the next sweep would be the same again.
_MAX_IMPROPER_SWEEPS, _STILL_SHARE = 40, 1e-2


@dataclass(kw_only=True)
class Settled(Ended):
    """Result of an iteration; `factor` and its `marginals()` belong to `sites`.

    `bound` is the variational bound of method "vb", otherwise None.
    """

    sites: Sites
    factor: Solved
    variance: Array
    kept: Array
    bound: float | None = None

    @property
    def marginals(self) -> Marginals:
        """Means, variances and terms of cavities, as kernels take them."""
        return Marginals(self.factor.mean, self.variance, self.kept, self.factor.weights)

    @property
    def proper(self) -> bool:
        """True if every site has a proper cavity."""
        return bool((self.kept > 0.0).all())


@dataclass
class _Mixture:
    """One attempt in mixed order: the state that its parts share, and its remaining sweeps."""

    problem: Problem
    limits: Limits
    rng: np.random.Generator | None
    anderson: Anderson
    trace: Trace

    def __post_init__(self) -> None:
        self._end = len(self.trace.history) + self.limits.sweeps

    @property
    def left(self) -> int:
        """Number of remaining sweeps."""
        return self._end - len(self.trace.history)

    def _at_most(self, sweeps: int) -> Limits:
        return self.limits._replace(sweeps=min(sweeps, self.left))

    def visit(self, sites: Sites, factor: Solved, max_sweeps: int) -> Settled:
        """Run at most `max_sweeps` sequential sweeps."""
        limits = self._at_most(max_sweeps)
        return settle_visiting(self.problem, sites, factor, limits, self.rng, self.trace)

    def at_once(self, sites: Sites, factor: Solved, max_sweeps: int) -> Settled:
        """Run at most `max_sweeps` parallel iterations."""
        limits = self._at_most(max_sweeps)
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
    """Iterate in parallel order, with sequential sweeps if that does not converge."""
    mixture = _Mixture(problem, limits, rng, anderson, trace)
    sites = start
    if not (problem.projector.likelihood.log_concave or start.tau.any()):
        # There may be several fixed points: start near that of the other orders.
        end = mixture.visit(sites, factor, _RESCUE_SWEEPS)
        if end.settled or not mixture.left:
            return end
        sites, factor = end.sites, end.factor
    end = mixture.at_once(sites, factor, _PARALLEL_PATIENCE)
    if not end.settled and mixture.left and trace.history[-1] > _FAR_CHANGE:
        flat = no_sites(problem.n)
        end = mixture.visit(flat, problem.prior.factor(flat), _RESCUE_SWEEPS)
    if not end.settled and mixture.left:
        end = mixture.at_once(end.sites, end.factor, (mixture.left + 1) // 2)
    if not end.settled and mixture.left:
        end = mixture.visit(end.sites, end.factor, mixture.left)
    return end


class _Stuck:
    """Stopping rule for sites without a proper cavity."""

    share = 1.0

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self._free, self._tol, self._stuck = not problem.nonnegative, limits.tol, 0

    def ends(self, swept: Swept) -> bool:
        """Return True if sites stay improper, or all others no longer change."""
        self._stuck = self._stuck + 1 if swept.counts[2] else 0
        others_settled = self._stuck > 0 and swept.change < _STILL_SHARE * self._tol
        return self._free and (self._stuck == _MAX_IMPROPER_SWEEPS or others_settled)


class _Turning(_Stuck):
    """Damping of steps that point back along the previous one."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        super().__init__(problem, limits)
        self._previous = np.zeros(2 * problem.n)

    def turn(self, step: Array) -> None:
        """Adapt the share of the next step to the direction of this one."""
        previous = self._previous
        if float(step @ previous) < -0.5 * float(previous @ previous):
            self.share = max(_SHORTENING * self.share, _MIN_SHARE)
        else:
            self.share = min(1.0, self.share / _SHORTENING**0.25)
        self._previous = step


def settle_visiting(
    problem: Problem,
    sites: Sites,
    factor: Solved,
    limits: Limits,
    rng: np.random.Generator | None,
    trace: Trace,
) -> Settled:
    """Iterate in sequential order, or in a new random order in every sweep given a generator."""
    n = problem.n
    steering = _Turning(problem, limits)
    proposed: Sites = no_sites(0)

    def sweep(share: float) -> Swept:
        """Visit all sites, and return the size of their changes."""
        nonlocal proposed
        shortened = n * (steering.share < 1.0)
        visits, counts = rng.permutation(n) if rng is not None else None, no_counts()
        variance, *changes = factor.sweep(problem, sites, share, visits, counts)
        proposed = Sites(*changes)
        change, step = measure_change(*proposed, sites.nu, variance, problem.prior.variance)
        steering.turn(step)
        return Swept(change, farthest(step), counts, shortened)

    def move(_: bool) -> int:
        nonlocal sites, factor
        sites, factor, halvings = advance(problem, sites, *proposed, 1.0)
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
    """Update all sites from one factorisation, with Anderson acceleration."""
    n = problem.n
    unit = np.ones(2 * n)
    accelerator.restart()
    proposed, change = no_sites(0), 0.0
    variance = kept = np.empty(0)
    is_current = False

    def sweep(_: float) -> Swept:
        """Propose changes of all sites from the current posterior."""
        nonlocal sites, proposed, unit, change, variance, kept, is_current
        is_first = not variance.size
        if not is_current:
            variance, kept = factor.marginals()
        is_current = True
        if is_first:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        counts = no_counts()
        # Far from the fixed point one step of the means is too few if the prior is wide: the
        # iteration then wanders (test_iterate.py). Near it a second one gains nothing.
        steps = 2 if change > _FAR_CHANGE else int(not is_first or sites.tau.any())
        sites, *changes = factor.propose(problem, (variance, kept), sites, steps, counts)
        proposed = Sites(*changes)
        change, step = measure_change(*proposed, sites.nu, variance, problem.prior.variance)
        return Swept(change, farthest(step), counts)

    def move(ends: bool) -> int:
        """Apply the proposed changes, unless the iteration ends."""
        # The posterior already belongs to the settled sites: there is nothing to recompute.
        nonlocal sites, factor, is_current
        if ends:
            return 0
        d_tau, d_nu = proposed
        step = accelerator.step(np.concatenate(sites), np.concatenate(proposed), unit)
        if problem.nonnegative:
            # No site may turn negative, so such a site takes its plain step.
            plain = sites.tau + step[:n] < 0.0
            step[:n][plain], step[n:][plain] = d_tau[plain], d_nu[plain]
        factor.discard()
        sites, factor, halvings = advance(problem, sites, step[:n], step[n:], limits.damping)
        is_current = False
        return n * halvings

    settled, last = swept_until(sweep, limits, _Stuck(problem, limits), trace, move)
    if not is_current:
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
# Number of past differences, and the first residual of a new problem below which the old secant
# model is kept.
_MEMORY, _NEAR_RESIDUAL = 6, 0.01


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
    return np.asarray(residual - (gamma / norm) @ (steps + changes))


class Anderson:
    """Anderson accelerator, which drops its secant model if a step made the residual worse.

    One object may serve a sequence of related problems, such as the same data under slowly
    changing hyper-parameters. After `restart` the secant model is kept if the new problem is near.

    Parameters
    ----------
    begin : float
        Root mean squared weighted residual below which the secant model is trusted.
    """

    def __init__(self, begin: float = 0.3) -> None:
        self.begin = begin
        self._steps = self._changes = np.empty((0, 0))
        self._count = self._next = 0
        self.restart()

    def restart(self) -> None:
        """Start a new iteration."""
        self._last: tuple[Array, Array] | None = None
        self._size = np.inf

    def step(self, x: Array, residual: Array, unit: Array) -> Array:
        """Return the step to take from `x`, where the plain iteration would take `residual`.

        `unit` weighs the components of a residual against each other.
        """
        scaled = residual * unit
        size = math.sqrt(float(scaled @ scaled) / scaled.size)
        if self._steps.shape[1] != x.size:
            self._steps, self._changes = np.empty((2, _MEMORY, x.size))
            self._count = 0
        fresh = self._last is None and size > _NEAR_RESIDUAL
        if size > self.begin or size > 2.0 * self._size or fresh:
            self._count = self._next = 0
        elif self._last is not None:
            self._steps[self._next] = x - self._last[0]
            self._changes[self._next] = residual - self._last[1]
            self._next = (self._next + 1) % _MEMORY
            self._count = min(self._count + 1, _MEMORY)
        self._last, self._size = (x, residual), size
        if not self._count:
            return residual
        steps, changes = self._steps[: self._count], self._changes[: self._count]
        return secant_step(steps, changes, residual, unit, scaled)


# --- Step sizes


def advance(
    problem: Problem, sites: Sites, d_tau: Array, d_nu: Array, scale: float
) -> tuple[Sites, Solved, int]:
    """Take the step, halved until the posterior is proper; only tau < 0 can need halving."""
    for halvings in range(40):
        new = Sites(sites.tau + scale * d_tau, sites.nu + scale * d_nu)
        try:
            return new, problem.prior.factor(new), halvings
        except ImproperPosterior:
            scale *= 0.5
    raise ImproperPosterior(NO_STEP)


#: Relative rounding of a site that is far from others; of a posterior variance that is a difference
#: of prior variances, in units of those; and the most that passes for rounding.
_LEAST_ROUNDING, _ROUNDING, _MOST_ROUNDING = 1e-14, 4.0 * np.finfo(float).eps, 1e-4


def measure_change(
    d_tau: Array, d_nu: Array, nu: Array, variance: Array, prior_variance: Array | None = None
) -> tuple[float, Array]:
    """Return the root mean squared change of the sites, plain or in posterior units if larger.

    The second result has the changes in posterior units, those of tau before those of nu. Changes
    within the rounding of the posterior variances, which are differences of prior variances, count
    as none.
    """
    n = d_tau.size
    step = np.empty(2 * n)
    if prior_variance is None:
        rounding = np.full(n, _LEAST_ROUNDING)
    else:
        rounding = np.maximum(_ROUNDING * prior_variance / variance, _LEAST_ROUNDING)
        rounding = np.minimum(rounding, _MOST_ROUNDING)
    change = sizes(d_tau, d_nu, nu, variance, rounding, step)
    if not np.isfinite(change):
        site = int(np.argmax(np.where(np.isfinite(step[:n] + step[n:]), 0.0, 1.0)))
        raise unbounded(f"site {site}")
    return change, step


def farthest(step: Array) -> int:
    """Return the site that changes most, given changes of tau before those of nu."""
    n = step.size // 2
    return int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))


# --- Loop of sweeps

#: Counts without any table lookup or skipped update.
NONE = no_counts()


class Swept(NamedTuple):
    """Result of one sweep.

    Attributes
    ----------
    change : float
        Root mean squared proposed change of the sites, as in `qpruntime.infer`.
    worst : int
        Site that changed most.
    counts : ndarray, shape (3,)
        Numbers of lookups inside and outside a grid, and of skipped updates.
    shortened : int
        Number of shortened updates of single sites.
    held : int
        Number of precisions held at zero, if the sweep counts them.
    """

    change: float
    worst: int
    counts: Counts
    shortened: int = 0
    held: int = 0


class Steering(Protocol):
    """Control of the step length and of early stopping."""

    @property
    def share(self) -> float:
        """Share of the requested damping that is applied."""

    def ends(self, swept: Swept) -> bool:
        """Record a sweep that has not settled, and return True if it is the last."""


class Settling(NamedTuple):
    """Outcome of a loop of sweeps: whether the sites have settled, and the last sweep."""

    settled: bool
    last: Swept


def swept_until(
    sweep: Callable[[float], Swept],
    limits: Limits,
    steering: Steering,
    trace: Trace,
    move: Callable[[bool], int] = lambda _: 0,
) -> Settling:
    """Run sweeps until the sites no longer change, within the limits.

    A site that could not be updated has not settled, though it does not change. A change that is
    not finite ends the loop, and is not in the history.

    Parameters
    ----------
    sweep : callable
        Updates all sites by the given share of their proposed changes.
    limits : Limits
    steering : Steering
    trace : Trace
        Extended.
    move : callable
        Applies the changes if a sweep only proposes them. It takes whether this was the last sweep,
        and returns how many updates it has shortened.
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
