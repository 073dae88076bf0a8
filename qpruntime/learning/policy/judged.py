"""What rows held out say: the log of the stages of a fit, and when a gain is one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qpruntime.arrays import Array

__all__ = ["Stage", "better"]


@dataclass(frozen=True)
class Stage:
    """A step of a fit.

    Attributes
    ----------
    rows : int
        That it learnt from, or that were settled.
    candidate : str
    density : float
        Mean log predictive density of the rows that judged, NaN if none did.
    operations : float
        That the fit had taken after it.
    """

    rows: int
    candidate: str
    density: float
    operations: float


def better(gain: Array, errors: float = 1.0) -> bool:
    """Whether judges gain more than so many standard errors of their mean gain."""
    if not np.isfinite(gain).all():
        return False
    error = float(np.std(gain)) / math.sqrt(gain.size)
    return float(np.mean(gain)) > errors * error
