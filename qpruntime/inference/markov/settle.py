"""The fixed point of a series: sweeps of a forward and a backward pass, each updating every site.

The forward pass uses the backward messages of the pass before, and the other way round: sequential
EP at the cost of filtering. The very first pass is assumed-density filtering. Sites that circle are
damped, from the best sweep on; what no damping settles is held at zero precision or above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.schedules import Limits, Trace

__all__ = ["Ended", "settle"]

#: Shares of the damping that are tried one after the other where likelihoods are not log-concave.
_SHARES = (1.0, 0.7, 0.5)
#: Sweeps after which changes that have not halved in as many are going nowhere.
_PATIENCE = 20
#: A site is held if its precision in units of the marginal's would be this far below zero.
_HELD = 1e-9


@dataclass
class Ended:
    """Where the sweeps ended; the sites are those of the rows."""

    settled: bool
    worst: int
    trace: Trace
    held: int = 0
    report: Array = field(default_factory=lambda: np.empty((0, 4)))


def settle(rows: Rows, limits: Limits, trace: Trace | None = None, warm: bool = False) -> Ended:
    """Sweep until the sites no longer change; leave forward messages and a report behind.

    Raises
    ------
    NumericalError
        If sites grow without bound, or leave no proper posterior.
    """
    trace = trace or Trace()
    free = not rows.series.nonnegative
    if warm:
        rows.buffer[:] = 0.0
        rows.run(ahead=False)
    end = None
    best = rows.tau.copy(), rows.nu.copy()
    for share in _SHARES if free else _SHARES[:1]:
        if share < 1.0:
            rows.tau[:], rows.nu[:] = best
            rows.run(ahead=False)
        damped = limits._replace(damping=share * limits.damping)
        end, best = _sweeps(rows, damped, trace, hold=not free, best=best)
        if end.settled and _finish(rows, end):
            return end
    if not free:
        assert end is not None
        _require(_finish(rows, end))
        return end
    # The last resort: precisions at zero or above, from the best sweep on.
    rows.tau[:], rows.nu[:] = best
    negative = rows.tau < 0.0
    rows.tau[negative] = rows.nu[negative] = 0.0
    rows.run(ahead=False)
    end, _ = _sweeps(rows, limits, trace, hold=True, best=best)
    _require(_finish(rows, end))
    end.held = _count_held(rows, end.report[:, 1])
    return end


def _require(proper: bool) -> None:
    if not proper:
        raise NumericalError(
            "the sites leave no proper posterior in double precision: the kernel's variance is "
            "too large for its noise, or sites to start from were negative"
        )


def _sweeps(
    rows: Rows, limits: Limits, trace: Trace, *, hold: bool, best: tuple[Array, Array]
) -> tuple[Ended, tuple[Array, Array]]:
    """Sweep within the limits; return how it ended, and the sites after the best sweep."""
    n = rows.tau.size
    least, history, settled, worst = math.inf, [], False, 0
    for _ in range(limits.sweeps):
        found = np.zeros(12)
        change = 0.0
        for ahead in (True, False):
            found[:4] = 0.0
            rows.sweep(ahead, limits.damping, hold, found)
            change = max(change, math.sqrt(found[:4].max() / n))
            if not math.isfinite(change):
                break
        trace.counts += found[4:7].astype(np.int64)
        trace.damped += n * (limits.damping < 1.0)
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
            best = rows.tau.copy(), rows.nu.copy()
        least = min(least, change)
        if settled:
            break
        lost = len(history) > 2 * _PATIENCE and min(history[-_PATIENCE:]) > 0.5 * min(
            history[:-_PATIENCE]
        )
        if not hold and lost:
            break
    return Ended(settled, worst, trace), best


def _finish(rows: Rows, end: Ended) -> bool:
    """Report on the sites, leaving forward messages behind; whether the posterior is proper.

    The backward messages are those of the last pass, in which every site was updated before it was
    taken in.
    """
    report = np.empty((rows.tau.size, 4))
    rows.run(ahead=True, report=report)
    end.report = report
    variance = report[:, 1]
    w, h = rows.noise, rows.series.scales
    wide = h * h * (variance + w)
    with np.errstate(all="ignore"):
        # Innovations of g change sign as often as precisions do (Sylvester): only then is the
        # posterior's precision positive.
        S = 1.0 + rows.tau * (h * h * (report[:, 3] + w))
        proper = np.sum((rows.tau > 0.0) & (S < 0.0)) == np.sum((rows.tau < 0.0) & (S < 0.0))
        return bool(
            proper and np.isfinite(report).all() and (wide > 0.0).all()
            and (1.0 + rows.tau * wide > 0.0).all()
        )  # fmt: skip


def _count_held(rows: Rows, variance: Array) -> int:
    """How many sites would turn negative were they free."""
    tau, nu = rows.tau.copy(), rows.nu.copy()
    found = np.zeros(12)
    buffer = rows.buffer.copy()
    rows.run(ahead=False)
    rows.sweep(True, 1.0, False, found)
    negative = int(np.sum(rows.tau * rows.series.scales**2 * variance < -_HELD))
    rows.tau[:], rows.nu[:] = tau, nu
    rows.buffer[:] = buffer
    return negative
