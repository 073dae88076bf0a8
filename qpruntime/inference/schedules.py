"""The orders in which sites are visited, each a loop of bounded length.

One site after the other, in turn or at random, updating the posterior after each; all of them from
one posterior; or mixtures of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.anderson import Anderson
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Counts, Sites, no_sites
from qpruntime.inference.solver import Solved
from qpruntime.inference.steps import advance, measure_change

__all__ = [
    "Limits",
    "Settled",
    "Status",
    "Trace",
    "settle_mixed",
    "settle_parallel",
    "settle_visiting",
]

Status = Literal["converged", "held", "not converged"]

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


class Limits(NamedTuple):
    """When to stop, and how much of every update to take; see `qpruntime.infer`."""

    tol: float = 1e-6
    sweeps: int = 100
    damping: float = 1.0


@dataclass
class Trace:
    """What was done for one result, over all attempts: also by those that failed.

    `counts` are lookups inside and outside a grid and updates skipped.
    """

    history: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    damped: int = 0


@dataclass
class Settled:
    """Where the iteration ended. `factor` and its `marginals()` belong to `sites`.

    `settled` says that the sites no longer change, held at zero or not. `held` counts sites whose
    precision would be negative were it not held at zero. `bound` is the variational bound where
    that is what was maximised. `peaks` are the log evidences of all fixed points, where there was
    reason to look for more than one.
    """

    sites: Sites
    factor: Solved
    variance: Array
    kept: Array
    settled: bool
    worst: int
    trace: Trace
    held: int = 0
    bound: float | None = None
    peaks: tuple[float, ...] = ()

    @property
    def marginals(self) -> Marginals:
        """Means, variances and `kept`, as kernels take them."""
        return Marginals(self.factor.mean, self.variance, self.kept, self.factor.weights)

    @property
    def proper(self) -> bool:
        """Whether every site has a proper cavity."""
        return bool((self.kept > 0.0).all())

    @property
    def status(self) -> Status:
        """What the sites are: a fixed point, one of precisions held at zero, or neither."""
        if not self.settled:
            return "not converged"
        return "held" if self.held else "converged"

    @property
    def history(self) -> list[float]:
        """Changes per sweep, over all attempts."""
        return self.trace.history


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
    worst, shorter, settled, stuck = 0, 1.0, False, 0
    previous = np.zeros(2 * n)
    for _ in range(limits.sweeps):
        skipped = trace.counts[2]
        visits = rng.permutation(n) if rng is not None else None
        variance, d_tau, d_nu = factor.sweep(
            problem, sites, limits.damping * shorter, visits, trace.counts
        )
        change, step = measure_change(d_tau, d_nu, sites.nu, variance)
        trace.history.append(change)
        worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
        trace.damped += n * (shorter < 1.0)
        if float(step @ previous) < -0.5 * float(previous @ previous):
            shorter = max(_SHORTEN * shorter, _LEAST_DAMPING)
        else:
            shorter = min(1.0, shorter / _SHORTEN**0.25)
        previous = step
        sites, factor, halvings = advance(problem, sites, d_tau, d_nu, 1.0)
        trace.damped += n * halvings
        # A site that could not be updated has not settled, though it does not change.
        all_updated = trace.counts[2] == skipped
        settled = change < limits.tol and all_updated
        stuck = 0 if all_updated else stuck + 1
        still = stuck > 0 and change < _STILL * limits.tol
        if settled or ((stuck == _STUCK or still) and not problem.nonnegative):
            break
    return Settled(sites, factor, *factor.marginals(), settled, worst, trace)


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
    change, settled, stuck = 0.0, False, 0
    step, unit = np.zeros(2 * n), np.ones(2 * n)
    accelerator.restart()
    for iteration in range(limits.sweeps):
        variance, kept = factor.marginals()
        if iteration == 0:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        skipped = trace.counts[2]
        # Far from the fixed point one step of the means is too few where the prior is wide: the
        # iteration then wanders (test_cold_start.py). Near it a second one gains nothing.
        steps = 2 if change > _FAR else int(iteration > 0 or sites.tau.any())
        sites, d_tau, d_nu = factor.propose(problem, (variance, kept), sites, steps, trace.counts)
        change, step = measure_change(d_tau, d_nu, sites.nu, variance)
        trace.history.append(change)
        all_updated = trace.counts[2] == skipped
        settled = change < limits.tol and all_updated
        if settled:
            # The posterior at hand already belongs to these sites: nothing to recompute.
            break
        stuck = 0 if all_updated else stuck + 1
        still = stuck > 0 and change < _STILL * limits.tol
        if (stuck == _STUCK or still) and not problem.nonnegative:
            break
        move = accelerator.step(np.concatenate(sites), np.concatenate([d_tau, d_nu]), unit)
        if problem.nonnegative:
            # No site may turn negative: such a site takes its plain step.
            plain = sites.tau + move[:n] < 0.0
            move[:n][plain], move[n:][plain] = d_tau[plain], d_nu[plain]
        factor.discard()
        sites, factor, halvings = advance(problem, sites, move[:n], move[n:], limits.damping)
        trace.damped += n * halvings
    worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
    if not settled:
        variance, kept = factor.marginals()
    return Settled(sites, factor, variance, kept, settled, worst, trace)
