"""Single observations far from all around them, which may be mistakes: found before any fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.forecasting.scale import Scale

__all__ = ["calmed", "far_off", "price_of"]

#: Neighbours on either side whose median an observation is compared with, and seasons whose phases
#: are taken off; they have to occur so often.
_SIDE, _TIMES = 5, 4.0
#: How far off, in standard deviations by the median absolute one, and which share of all at most:
#: more of them are no mistakes but the family of the observations.
_FAR, _SHARE = 8.0, 0.01
_MAD = 1.4826
# Series of fewer observations have none: their medians are of nothing.
_FEWEST = 20


def far_off(steps: Array, y: Array, seasons: tuple[float, ...], scale: Scale) -> NDArray[np.intp]:
    """Return rows that are far off, shape (k,), rising.

    Parameters
    ----------
    steps, y : ndarray, shape (n,)
        In the order of time, none missing.
    seasons : tuple of float
    scale : Scale
        Of counts roots are compared, whose standard deviation is 1/2 at least, else the numbers
        that the likelihood sees.
    """
    none = np.zeros(0, dtype=np.intp)
    if y.size < _FEWEST:
        return none
    z = np.sqrt(y) if scale.whole else scale.into(y)
    left = z - _medians(z)
    for period in seasons:
        if steps[-1] - steps[0] >= _TIMES * period:
            phase = np.floor(np.mod(steps, period) + 1e-9)
            for one in np.unique(phase):
                left[phase == one] -= np.median(left[phase == one])
    spread = _MAD * float(np.median(np.abs(left)))
    if scale.whole:
        spread = max(spread, 0.5)
    if not spread > 0.0:
        return none
    found = np.flatnonzero(np.abs(left) > _FAR * spread)
    return found if found.size <= max(1.0, _SHARE * y.size) else none


def calmed(y: Array, rows: NDArray[np.intp]) -> Array:
    """Return the observations with those of these rows replaced by medians around them."""
    found = np.array(y, dtype=float)
    found[rows] = _medians(found)[rows]
    return found


def price_of(count: int, n: int) -> float:
    """Return the log of how many choices of so many of n rows there were, at most."""
    return count * float(np.log(n))


def _medians(z: Array) -> Array:
    """Medians of each number and its neighbours, fewer at the ends."""
    wide = np.pad(z, _SIDE, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(wide, 2 * _SIDE + 1)
    return np.asarray(np.nanmedian(windows, axis=1))
