"""Times of a series as numbers: numbers, dates of any library, dates with a time zone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, shown

__all__ = ["MICROSECOND", "index_of", "times_of", "zone_of"]

#: Units of dates: microseconds since 1970.
MICROSECOND = "datetime64[us]"


def times_of(index: Any, utc: bool = False) -> tuple[Array, bool]:
    """Times as numbers (N,), of dates microseconds since 1970, and whether they are dates.

    Dates with a time zone are those of the clock on its walls, so that days begin at midnight, or
    of UTC, where no hour is repeated in autumn.

    Raises
    ------
    InputError
        If they are neither, or some are missing.
    """
    own = getattr(index, "dt", index)
    if str(getattr(index, "dtype", "")).startswith("period"):  # of pandas
        index = own = own.to_timestamp()
    if zone_of(index) is not None:
        index = own.tz_convert(None) if utc else own.tz_localize(None)
    found = index.to_numpy() if hasattr(index, "to_numpy") else np.asarray(index)
    if found.ndim != 1:
        raise InputError(f"times must have shape (N,), got {found.shape}")
    if found.dtype.kind == "O" and found.size and all(hasattr(t, "isoformat") for t in found):
        found = _of_objects(found)
    if found.dtype.kind == "M":
        if np.isnat(found).any():
            raise InputError(f"time number {int(np.argmax(np.isnat(found)))} is missing")
        return found.astype(MICROSECOND).astype(np.int64).astype(float), True
    if found.dtype.kind not in "iuf":
        raise InputError(
            f"times must be numbers or dates, got {shown(index)}: of text make dates, as by "
            "pandas.to_datetime"
        )
    numbers: Array = finite(np.asarray(found, dtype=float), "times")
    return numbers, False


def _of_objects(found: NDArray[Any]) -> NDArray[Any]:
    """Dates and times of Python or pandas, by the clock on the wall."""
    plain = [t.replace(tzinfo=None) if getattr(t, "tzinfo", None) else t for t in found]
    return np.array([np.datetime64(t.isoformat(), "us") for t in plain])


def zone_of(index: Any) -> str | None:
    """Name of the time zone of an index or a column of pandas."""
    own = getattr(index, "dt", index)
    zone = getattr(own, "tz", None)
    return None if zone is None or not hasattr(own, "tz_localize") else str(zone)


def index_of(y: Any, index: ArrayLike | None) -> Any:
    """Return the index that was given, that of a pandas series, or 0, 1, 2, ..."""
    if index is not None:
        return index
    own = getattr(y, "index", None)
    if own is not None and not callable(own):
        return own
    return np.arange(len(np.asarray(y)))
