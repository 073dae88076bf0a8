"""Fixed points of sites that are free to be negative, looked for from several starts.

A likelihood that is not log-concave may have no fixed point with proper cavities, one, or several,
and an iteration from the prior may miss those there are. Here it is damped and begun elsewhere:
mostly a fixed point lies beside the sites that settle with precisions held at zero. (A double loop,
which descends in EP's free energy, is not defined for QP and would not help EP: where these starts
fail on square-link counts, damped updates that accept any cavity settle at cavities of negative
precision, and where they settle is a minimum of that energy; Heskes & Zoeter, 2002.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.anderson import Anderson
from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.fixed_point.schedules import Settled, settle_mixed, settle_parallel
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites, no_sites

__all__ = ["Peaks", "around", "drawn", "evidence_of"]

# Sweeps of one attempt; those that end well take 10 to 60.
_SWEEPS = 100
_DAMPING = 0.5
# Means nearer than this share of a posterior standard deviation are of one fixed point.
_SAME = 1e-3


class Peaks:
    """Different fixed points of one problem, with proper cavities, and their log evidences."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._found: list[tuple[float, Settled]] = []

    def add(self, end: Settled) -> None:
        """Take in what is a fixed point, unless it is known."""
        if not (end.settled and end.proper) or end.held:
            return
        # Rounding may take a variance below zero: such an end has no evidence, and is no peak.
        unit = _SAME * np.sqrt(np.maximum(end.variance, 0.0))
        if any((np.abs(e.factor.mean - end.factor.mean) < unit).all() for _, e in self._found):
            return
        value = evidence_of(self._problem, end)
        if value > -math.inf:
            self._found.append((value, end))

    def extend(self, ends: Iterable[Settled]) -> None:
        """Take in those that are fixed points."""
        for end in ends:
            self.add(end)

    @property
    def values(self) -> tuple[float, ...]:
        """Log evidences, the highest first."""
        return tuple(sorted((value for value, _ in self._found), reverse=True))

    @property
    def best(self) -> Settled | None:
        """The fixed point of the highest evidence, if there is any."""
        return max(self._found, key=lambda peak: peak[0])[1] if self._found else None


def evidence_of(problem: Problem, end: Settled) -> float:
    """Log evidence, minus infinity where it is beyond double precision."""
    try:
        return log_evidence(problem, end)[0]
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return -math.inf


def around(problem: Problem, held: Settled, limits: Limits, trace: Trace) -> Iterator[Settled]:
    """Iterate freely from where held sites settled, from wider ones, and anew from the prior."""
    wide = _as_strong(held.variance, held.factor.mean, held.sites)
    nothing = no_sites(problem.n)
    for start in (held.sites, wide, nothing):
        yield from _attempt(problem, start, limits, trace)
    yield from _attempt(problem, nothing, limits, trace, damped=False)


def drawn(
    problem: Problem, limits: Limits, trace: Trace, rng: np.random.Generator
) -> Iterator[Settled]:
    """Iterate freely from sites as strong as the prior, at a function drawn from it."""
    start = _as_strong(problem.prior.variance, problem.prior.draw(rng), no_sites(problem.n))
    yield from _attempt(problem, start, limits, trace)


def _as_strong(variance: Array, f: Array, otherwise: Sites) -> Sites:
    """Sites at f as strong as a normal of this variance, those given where it has no precision.

    Where neighbours fix f under a vast prior the posterior variance cancels to nothing or below,
    and whether it does depends on the last digits of the linear algebra.
    """
    with np.errstate(all="ignore"):
        tau = 1.0 / variance
        nu = tau * f
    sound = (variance > 0.0) & np.isfinite(tau) & np.isfinite(nu)
    return Sites(np.where(sound, tau, otherwise.tau), np.where(sound, nu, otherwise.nu))


def _attempt(
    problem: Problem, start: Sites, limits: Limits, trace: Trace, *, damped: bool = True
) -> Iterator[Settled]:
    """Yield where a parallel iteration ends, or nothing if double precision does not suffice."""
    some = limits._replace(sweeps=min(limits.sweeps, _SWEEPS))
    try:
        with np.errstate(all="ignore"):
            factor = problem.prior.factor(start)
            if damped:
                some = some._replace(damping=min(limits.damping, _DAMPING))
                yield settle_parallel(problem, start, factor, some, Anderson(), trace)
            else:
                yield settle_mixed(problem, start, factor, some, None, Anderson(), trace)
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
