"""Dates as numbers of months or of working days, and back; dates are microseconds since 1970."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.forecasting.times import MICROSECOND

__all__ = ["are_working", "in_months", "months", "of_months", "of_working_days", "working_days"]

_DAY = 86_400_000_000.0
_SHORTEST_MONTH = 27.5
# Days that a series without weekends spans at least.
_TWO_WEEKS = 14.0
_EPOCH = np.datetime64("1970-01-01")


def _dates(values: Array) -> NDArray[Any]:
    return values.astype(np.int64).astype(MICROSECOND)


def _lengths(month: NDArray[Any]) -> NDArray[np.int64]:
    """Days of months."""
    ends = (month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")
    found: NDArray[np.int64] = ends.astype(np.int64)
    return found


def months(values: Array) -> tuple[Array, int] | None:
    """Numbers of months since 1970 and their day, if dates, rising, are of whole months.

    Day 31 stands for the last of each; None where dates are others.
    """
    if np.diff(values).min() < _SHORTEST_MONTH * _DAY or np.mod(values, _DAY).any():
        return None
    days = _dates(values).astype("datetime64[D]")
    month = days.astype("datetime64[M]")
    number = (days - month.astype("datetime64[D]")).astype(np.int64) + 1
    length, found = _lengths(month), month.astype(np.int64).astype(float)
    if (number == length).all():
        return found, 31
    day = int(number.max())
    # The 30th of each month is the last of February.
    return (found, day) if (number == np.minimum(day, length)).all() else None


def in_months(values: Array, day: int) -> Array:
    """Dates as months since 1970 and a share of one, whole on this day."""
    month = _dates(values).astype("datetime64[M]")
    length = _lengths(month)
    begun = month.astype(MICROSECOND).astype(np.int64) + (np.minimum(day, length) - 1) * _DAY
    return np.asarray(month.astype(np.int64) + (values - begun) / (length * _DAY))


def of_months(numbers: Array, day: int) -> NDArray[Any]:
    """Dates on this day of months since 1970."""
    month = np.round(numbers).astype(np.int64).astype("datetime64[M]")
    days = month.astype("datetime64[D]") + np.minimum(day, _lengths(month)) - 1
    return np.asarray(days.astype(MICROSECOND))


def are_working(values: Array) -> bool:
    """Whether dates, rising, are days without any Saturday or Sunday, for two weeks at least."""
    if np.mod(values - values[0], _DAY).any() or values[-1] - values[0] < _TWO_WEEKS * _DAY:
        return False
    if np.diff(values).min() > 1.5 * _DAY:
        return False
    return bool(np.is_busday(_dates(values).astype("datetime64[D]")).all())


def working_days(values: Array) -> Array:
    """Working days from 1970 to dates; a Saturday and a Sunday are the Monday after them."""
    return np.busday_count(_EPOCH, _dates(values).astype("datetime64[D]")).astype(float)


def of_working_days(numbers: Array) -> NDArray[Any]:
    """Dates of so many working days since 1970."""
    days = np.busday_offset(_EPOCH, np.round(numbers).astype(np.int64), roll="forward")
    return np.asarray(days.astype(MICROSECOND))
