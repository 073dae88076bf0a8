"""The orders in which sites are visited, each a loop of bounded length.

One site after the other, in turn or at random, updating the posterior after each; all of them from
one posterior; or mixtures of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.fixed_point.anderson import Anderson
from qpruntime.inference.fixed_point.ended import Ended, Limits, Trace
from qpruntime.inference.fixed_point.loop import Swept, swept_until
from qpruntime.inference.fixed_point.steps import advance, farthest, measure_change
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites, no_counts, no_sites
from qpruntime.inference.solver import Solved

__all__ = ["Settled", "settle_mixed", "settle_parallel", "settle_visiting"]

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
        # iteration then wanders (test_cold_start.py). Near it a second one gains nothing.
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
