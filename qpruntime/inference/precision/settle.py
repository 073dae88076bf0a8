"""The fixed point on a sparse precision: all sites at once, after two steps of the means alone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.fixed_point.loop import Swept, swept_until
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.fixed_point.settle import count_held
from qpruntime.inference.fixed_point.steps import advance, farthest, measure_change
from qpruntime.inference.precision.approach import Approach
from qpruntime.inference.precision.newton import newton_sites
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import (
    ImproperPosterior,
    Sites,
    no_counts,
    no_sites,
    without_negative,
)

__all__ = ["settle"]

#: Steps of the means with precisions fixed, before each change of all sites.
_MEANS = 2
#: Where the changes grow, the share that is taken of them shrinks by this, down to the floor.
_SHORTEN, _LEAST = 0.8, 0.3


class _Shortening:
    """Takes less of every step once changes have grown."""

    def __init__(self) -> None:
        self.share, self._last = 1.0, np.inf

    def ends(self, swept: Swept) -> bool:
        """Never; it is the limits that end."""
        if swept.change > self._last:
            self.share = max(_SHORTEN * self.share, _LEAST)
        self._last = swept.change
        return False


def settle(problem: Problem, limits: Limits, sites: Sites | None) -> Settled:
    """Iterate to the fixed point from these sites, or from Newton's.

    Precisions that may be negative can leave no posterior, some site no cavity, or no rest. Then
    shorter steps are tried, and at last precisions are held at zero or above; the result says for
    how many sites that changes anything.
    """
    trace = Trace()
    with np.errstate(all="ignore"):  # what overflows is found by `measure_change`
        if problem.nonnegative:
            return _iterate(problem, limits, sites, trace)
        end = None
        for damping, start in ((1.0, sites), (_LEAST, None)):
            shorter = limits._replace(damping=damping * limits.damping)
            with suppress(NumericalError):  # ImproperPosterior among them
                end = _iterate(problem, shorter, start, trace)
                if end.settled and end.proper:
                    return end
        bounded = replace(problem, bounded=True)
        held = _iterate(bounded, limits, None, trace)
        held.held = count_held(problem, held)
        # Sites without rest that have cavities are told as they are, where holding has none either.
        return end if end is not None and end.proper and not held.settled else held


def _iterate(problem: Problem, limits: Limits, start: Sites | None, trace: Trace) -> Settled:
    n = problem.n
    approach = Approach.of(problem, start is not None)
    sites = newton_sites(problem, approach) if start is None else start
    if problem.bounded:
        sites = without_negative(sites)
    try:
        if approach is None:
            factor = problem.prior.factor(sites)
        else:
            sites = approach.forward(sites, limits.tol)
            factor = approach.factor(sites, limits.tol)
    except ImproperPosterior:
        sites = without_negative(sites)
        factor = problem.prior.factor(sites)
    asked = no_sites(0)
    variance = kept = np.empty(0)
    steering = _Shortening()
    known = False

    def sweep(share: float) -> Swept:
        nonlocal sites, asked, variance, kept, known
        if not known:
            variance, kept = factor.marginals()
            if approach is not None:
                approach.learn(sites, variance)
        known = True
        counts = no_counts()
        means = _MEANS if approach is None else 0
        sites, *changes = factor.propose(problem, (variance, kept), sites, means, counts)
        asked = Sites(*changes)
        change, step = measure_change(*asked, sites.nu, variance)
        return Swept(change, farthest(step), counts, n * (share < limits.damping))

    def move(ends: bool) -> int:
        nonlocal sites, factor, known
        if ends:
            return 0
        factor.discard()
        scale = limits.damping * steering.share
        if approach is not None and scale == 1.0:
            ahead = Sites(sites.tau + asked.tau, sites.nu + asked.nu)
            sites, known = approach.forward(ahead, limits.tol), False
            factor = approach.factor(sites, limits.tol)
            return 0
        sites, factor, halvings = advance(problem, sites, *asked, scale)
        known = False
        return n * halvings

    settled, last = swept_until(sweep, limits, steering, trace, move)
    if not known:
        variance, kept = factor.marginals()
    return Settled(
        sites=sites, factor=factor, variance=variance, kept=kept,
        settled=settled, worst=last.worst, trace=trace,
    )  # fmt: skip
