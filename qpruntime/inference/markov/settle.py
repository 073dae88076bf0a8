"""The fixed point of a series: sweeps of a forward and a backward pass, each updating every site.

The forward pass uses the backward messages of the pass before, and the other way round: sequential
EP at the cost of filtering. The very first pass is assumed-density filtering. Sites that circle are
damped, from the best sweep on; what no damping settles is held at zero precision or above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.markov.evidence import NO_SUMMARY, Summary
from qpruntime.inference.schedules import Limits, Trace

__all__ = ["Ended", "Swept", "settle"]

#: Shares of the damping that are tried one after the other where likelihoods are not log-concave.
_SHARES = (1.0, 0.7, 0.5)
#: Sweeps after which changes that have not halved in as many are going nowhere.
_PATIENCE = 20
#: A site is held if its precision in units of the marginal's would be this far below zero.
_HELD = 1e-9


class Swept(Protocol):
    """What is swept: rows at one place (`Rows`), or parts of them at several (`Blocks`)."""

    tau: Array
    nu: Array

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""

    def refresh(self) -> None:
        """Make messages those of the sites, which were set from outside."""

    def sweep(self, limits: Limits, hold: bool, found: Array) -> float:
        """Update every site; return the largest change of a pass, rms.

        `found` (12,) is that of `revise`, and the limits say how far to go where there is a choice.
        """

    def finish(self) -> Summary:
        """What the sites stand for; leave forward messages behind."""

    def negative(self, summary: Summary, least: float) -> int:
        """How many precisions would be below -`least` marginal ones were they free."""

    def slope(self) -> Array:
        """Sums that the gradient is made of."""

    def cavities(self) -> tuple[Array, Array]:
        """Means and standard deviations of the cavities of g, each of shape (N,)."""


@dataclass
class Ended:
    """Where the sweeps ended; the sites are those of the rows."""

    settled: bool
    worst: int
    trace: Trace
    held: int = 0
    summary: Summary = NO_SUMMARY


def settle(rows: Swept, limits: Limits, trace: Trace | None = None, warm: bool = False) -> Ended:
    """Sweep until the sites no longer change; leave forward messages and a summary behind.

    Raises
    ------
    NumericalError
        If sites grow without bound, or leave no proper posterior.
    """
    trace = trace or Trace()
    free = not rows.nonnegative
    if warm:
        rows.refresh()
    end = None
    best = _sites(rows) if free else None
    for share in _SHARES if free else _SHARES[:1]:
        if share < 1.0:
            assert best is not None
            rows.tau[:], rows.nu[:] = best
            rows.refresh()
        damped = limits._replace(damping=share * limits.damping)
        end, best = _sweeps(rows, damped, trace, hold=not free, best=best)
        if end.settled and _finish(rows, end):
            return end
    if not free:
        assert end is not None
        _require(_finish(rows, end))
        return end
    # The last resort: precisions at zero or above, from the best sweep on.
    assert best is not None
    rows.tau[:], rows.nu[:] = best
    negative = rows.tau < 0.0
    rows.tau[negative] = rows.nu[negative] = 0.0
    rows.refresh()
    end, _ = _sweeps(rows, limits, trace, hold=True, best=None)
    _require(_finish(rows, end))
    end.held = rows.negative(end.summary, _HELD)
    return end


def _sites(rows: Swept) -> tuple[Array, Array]:
    return rows.tau.copy(), rows.nu.copy()


def _require(proper: bool) -> None:
    if not proper:
        raise NumericalError(
            "the sites leave no proper posterior in double precision: the kernel's variance is "
            "too large for its noise, or sites to start from were negative"
        )


def _sweeps(
    rows: Swept, limits: Limits, trace: Trace, *, hold: bool, best: tuple[Array, Array] | None
) -> tuple[Ended, tuple[Array, Array] | None]:
    """Sweep within the limits; return how it ended, and the sites after the best sweep."""
    least, history, settled, worst = math.inf, [], False, 0
    for _ in range(limits.sweeps):
        found = np.zeros(12)
        change = rows.sweep(limits, hold, found)
        trace.counts += found[4:7].astype(np.int64)
        trace.damped += rows.tau.size * (limits.damping < 1.0)
        worst = int(found[8])
        if not math.isfinite(change):
            if hold:
                raise NumericalError(
                    f"the sites grow without bound, site {worst} first: observations that the "
                    'kernel ties together contradict each other; use likelihood="probit", or '
                    "add a WhiteKernel to the kernel"
                )
            break
        trace.history.append(change)
        history.append(change)
        settled = change < limits.tol and found[6] == 0.0
        if not hold and change < least and not settled:
            best = _sites(rows)
        least = min(least, change)
        if settled:
            break
        lost = len(history) > 2 * _PATIENCE and min(history[-_PATIENCE:]) > 0.5 * min(
            history[:-_PATIENCE]
        )
        if not hold and lost:
            break
    return Ended(settled, worst, trace), best


def _finish(rows: Swept, end: Ended) -> bool:
    """Sum up; whether the posterior is proper."""
    end.summary = rows.finish()
    return end.summary.proper
