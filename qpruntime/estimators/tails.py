"""Mean rates that no data bear out: those of e^f, which the tail of f makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import warn

__all__ = ["largest_rate", "warn_of_tails"]

# Means so many times above every rate observed are no extrapolation that anyone means.
_BEYOND = 1000.0


def largest_rate(events: Array, exposure: Array) -> float:
    """Return the largest rate observed; no event is taken for one."""
    return float((np.maximum(events, 1.0) / exposure).max())


def warn_of_tails(mean: Array, exposure: ArrayLike | None, largest: float) -> None:
    """Warn if means of counts (T,) with these exposures are far beyond the largest rate observed.

    Only where they are left to the exponential link can they be: squares follow the data.
    """
    rate = mean if exposure is None else mean / np.asarray(exposure, dtype=float)
    if not (beyond := rate > _BEYOND * largest).any():
        return
    worst = int(np.argmax(rate))
    warn(
        f"the mean rate of point {worst} is {rate[worst]:.3g}, and of {int(beyond.sum())} points "
        f"it is more than {_BEYOND:g} times the largest rate observed, {largest:.3g}: the mean of "
        "e^f is exp(mean + variance/2), and f is hardly known there. predict_quantiles has the "
        'median; link="square" has no such means; an upper bound of the kernel\'s variance, or '
        "counts without outliers, keep f known",
        UserWarning,
    )
