"""The one loop of sweeps: every engine and every order of sites settles by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.sites import Counts

__all__ = ["Steering", "Swept", "swept_until"]

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
