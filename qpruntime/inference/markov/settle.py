"""The fixed point of a series: sweeps of a forward and a backward pass, each updating every site.

The forward pass uses the backward messages of the pass before, and the other way round: sequential
EP at the cost of filtering. The very first pass is assumed-density filtering. Sites that circle are
damped, from the best sweep on; what no damping settles is held at zero precision or above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.ended import HELD, Limits, Trace
from qpruntime.inference.fixed_point.ended import Ended as HowEnded
from qpruntime.inference.fixed_point.loop import Swept as Sweep
from qpruntime.inference.fixed_point.loop import swept_until
from qpruntime.inference.markov.evidence import NO_SUMMARY, Summary
from qpruntime.inference.sites import Sites

__all__ = ["Ended", "Swept", "settle"]

#: Shares of the damping that are tried one after the other where likelihoods are not log-concave.
_SHARES = (1.0, 0.7, 0.5)
#: Sweeps after which changes that have not halved in as many are going nowhere.
_PATIENCE = 20


class Swept(Protocol):
    """What is swept: the rows of a series, `Rows`."""

    tau: Array
    nu: Array

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""

    def refresh(self) -> None:
        """Make messages those of the sites, which were set from outside."""

    def sweep(self, damping: float, hold: bool) -> Sweep:
        """Update every site; the change is the largest of a pass, rms."""

    def finish(self) -> Summary:
        """What the sites stand for; leave forward messages behind."""

    def negative(self, summary: Summary, least: float) -> int:
        """How many precisions would be below -`least` marginal ones were they free."""

    def slope(self) -> Array:
        """Sums that the gradient is made of."""

    def cavities(self) -> tuple[Array, Array]:
        """Means and standard deviations of the cavities of g, each of shape (N,)."""


@dataclass(kw_only=True)
class Ended(HowEnded):
    """Where the sweeps ended; the sites are those of the rows."""

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
        end, best = _sweeps(rows, limits, share, trace, hold=not free, best=best)
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
    end, _ = _sweeps(rows, limits, 1.0, trace, hold=True, best=None)
    _require(_finish(rows, end))
    end.held = rows.negative(end.summary, HELD)
    return end


def _sites(rows: Swept) -> Sites:
    return Sites(rows.tau.copy(), rows.nu.copy())


def _require(proper: bool) -> None:
    if not proper:
        raise NumericalError(
            "the sites leave no proper posterior in double precision: the kernel's variance is "
            "too large for its noise, or sites to start from were negative"
        )


class _Patience:
    """Ends attempts that are free to fail where changes no longer halve; keeps the best sites."""

    def __init__(self, rows: Swept, share: float, hold: bool, best: Sites | None) -> None:
        self.share, self.best = share, best
        self._rows, self._hold, self._least = rows, hold, math.inf
        self._history: list[float] = []

    def ends(self, swept: Sweep) -> bool:
        """Whether changes are going nowhere."""
        if self._hold:
            return False
        if swept.change < self._least:
            self.best = _sites(self._rows)
        self._least = min(self._least, swept.change)
        history = self._history
        history.append(swept.change)
        late, early = history[-_PATIENCE:], history[:-_PATIENCE]
        return len(history) > 2 * _PATIENCE and min(late) > 0.5 * min(early)


def _sweeps(
    rows: Swept, limits: Limits, share: float, trace: Trace, *, hold: bool, best: Sites | None
) -> tuple[Ended, Sites | None]:
    """Sweep within the limits; return how it ended, and the sites after the best sweep."""
    shortened = rows.tau.size * (share * limits.damping < 1.0)

    def sweep(damping: float) -> Sweep:
        found = rows.sweep(damping, hold)
        if hold and not math.isfinite(found.change):
            raise NumericalError(
                f"the sites grow without bound, site {found.worst} first: observations that the "
                'kernel ties together contradict each other; use likelihood="probit", or '
                "add a WhiteKernel to the kernel"
            )
        return found._replace(shortened=shortened)

    steering = _Patience(rows, share, hold, best)
    settled, last = swept_until(sweep, limits, steering, trace)
    return Ended(settled=settled, worst=last.worst, trace=trace), steering.best


def _finish(rows: Swept, end: Ended) -> bool:
    """Sum up; whether the posterior is proper."""
    end.summary = rows.finish()
    return end.summary.proper
