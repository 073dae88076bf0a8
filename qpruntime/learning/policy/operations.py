"""What the steps of a fit cost, in floating-point operations, and how many there may be.

A budget is counted and is no clock: the same seed gives the same bits on any machine, however busy.
"""

from __future__ import annotations

import math

__all__ = ["Budget", "dense_evaluation", "dense_inference", "local_density", "sweeps_of"]

#: Operations that stand for a second of one core.
RATE = 2e10
# Seconds of a fit of so many rows, and the factor for ten times as many.
_SECONDS, _ROWS, _DECADE = 30.0, 10_000, 4.0


class Budget:
    """Operations that a fit may take, and those that it has taken.

    Parameters
    ----------
    seconds : float or None
        Of one core that does 2e10 operations a second; None is 30 up to 10 000 rows, and four times
        as many for ten times as many rows.
    rows : int
    """

    def __init__(self, seconds: float | None, rows: int) -> None:
        if seconds is None:
            seconds = _SECONDS * _DECADE ** max(0.0, math.log10(rows / _ROWS))
        self.seconds = seconds
        self.most = seconds * RATE
        self.taken = 0.0

    def take(self, operations: float) -> None:
        """Count what has been done."""
        self.taken += operations

    def allows(self, operations: float, share: float = 1.0) -> bool:
        """Whether so many more stay within a share of the budget."""
        return self.taken + operations <= share * self.most


def dense_evaluation(n: int, features: int = 1) -> float:
    """One evidence of n rows and its gradient, with so many length-scales."""
    return 4.5 * float(n) ** 3 + 20.0 * float(n) ** 2 * features


def dense_inference(n: int) -> float:
    """Settle n rows under a kernel that is known."""
    return 8.0 * float(n) ** 3


def sweeps_of(sweeps: int, n: int, m: int) -> float:
    """Sweeps over n rows with m inducing inputs; the first also computes the features."""
    return sweeps * 3.0 * float(n) * m * m + 40.0 * float(n) * m


def local_density(rows: int, k: int, m: int) -> float:
    """Leave-one-out densities of so many rows with their k nearest."""
    return rows * (4.0 * k * k * m + 10.0 * float(k) ** 3)
