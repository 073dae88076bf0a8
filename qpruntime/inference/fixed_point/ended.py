"""When iterations stop, what they count, and how they ended: the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from qpruntime.inference.sites import Counts

__all__ = ["HELD", "Ended", "Limits", "Status", "Trace"]

Status = Literal["converged", "held", "not converged"]

#: A site counts as held if its precision, in units of the cavity's or the posterior's, would be so
#: far below zero.
HELD = 1e-9


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


@dataclass(kw_only=True)
class Ended:
    """How an iteration ended.

    Attributes
    ----------
    settled : bool
        Whether the sites no longer change, held at zero or not.
    worst : int
        The site that changed most in the last sweep.
    trace : Trace
    held : int
        Sites whose precision would be negative were it not held at zero.
    peaks : tuple of float
        Log evidences of all fixed points, where there was reason to look for more than one.
    """

    settled: bool = False
    worst: int = 0
    trace: Trace = field(default_factory=Trace)
    held: int = 0
    peaks: tuple[float, ...] = ()

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
