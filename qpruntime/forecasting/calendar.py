"""Times, steps and calendars of a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, shown
from qpruntime.errors import InputError

__all__ = [
    "MICROSECOND",
    "Clock",
    "are_working",
    "in_months",
    "index_of",
    "of_months",
    "of_working_days",
    "times_of",
    "whole_months",
    "working_days",
    "zone_of",
]

# --- The clock of a series: times as steps from its first, and the times of steps to come.

#: Times agree with whole steps to this share of one.
_CLOSE = 1e-6
_SECOND = 1_000_000
#: Periods of the calendar in seconds.
_HOUR, _DAY, _WEEK, _YEAR = 3600.0, 86_400.0, 604_800.0, 31_556_952.0
#: Working days of a year.
_WORKING = _YEAR / _WEEK * 5.0


@restorable("calendar-clock/1")
@dataclass(frozen=True)
class Clock:
    """Origin and length of the steps of a series.

    Attributes
    ----------
    origin, step : float
        In units of the index; of dates microseconds since 1970, or months or working days.
    dates : bool
    kind : {"even", "months", "working days"}
    day : int
        Of steps of whole months the day of the month, 31 for its last.
    zone : str or None
        Time zone of the dates.
    utc : bool
        Whether steps are of UTC, not of the zone's clock.
    """

    origin: float
    step: float
    dates: bool
    kind: Literal["even", "months", "working days"] = "even"
    day: int = 0
    zone: str | None = None
    utc: bool = False

    @classmethod
    def of(cls, index: Any) -> Clock:
        """Return that of an index (N,) of numbers or dates, in any order.

        A step is the least gap if all gaps are whole numbers of it, as of series with missing
        stretches; if not, times are irregular and a step is their median gap. Dates on one day of
        months, or on their last, have months as steps, or quarters, or years; days without any
        Saturday and Sunday have working days.

        Raises
        ------
        InputError
            If two times are the same, or there are less than 3.
        """
        zone, utc = zone_of(index), False
        given, dates = times_of(index)
        if zone is not None and np.unique(given).size < given.size:
            given, utc = times_of(index, utc=True)[0], True
        if given.size < 3:
            raise InputError(f"a series needs at least 3 times, got {given.size}")
        order = np.argsort(given, kind="stable")
        values = given[order]
        same = np.flatnonzero(np.diff(values) == 0.0)
        if same.size:
            i, j = sorted(order[same[0] : same[0] + 2].tolist())
            raise InputError(
                f"times number {i} and {j} are both {_said(values[same[0]], dates)}: add up what "
                "is of the same time; of several series say which is which to GPPanelForecaster, "
                "by="
            )
        if dates and (months := whole_months(values)) is not None:
            numbers, day = months
            step = float(np.gcd.reduce(np.round(np.diff(numbers)).astype(np.int64)))
            return cls(float(numbers[0]), step, True, "months", day, zone, utc)
        if dates and are_working(values):
            first = float(working_days(values[:1])[0])
            return cls(first, 1.0, True, "working days", 0, zone, utc)
        gaps = np.diff(values)
        step = float(gaps.min())
        parts = gaps / step
        if (np.abs(parts - np.round(parts)) > _CLOSE * parts).any():
            step = float(np.median(gaps))
        return cls(float(values[0]), step, dates, zone=zone, utc=utc)

    def steps(self, index: Any) -> Array:
        """Steps since the origin, shape (N,); whole where they are nearly so."""
        values, dates = times_of(index, utc=self.utc)
        if dates != self.dates:
            wanted = "dates" if self.dates else "numbers"
            raise InputError(f"times must be {wanted}, as those of the fit, got {shown(index)}")
        if self.kind == "months":
            values = in_months(values, self.day)
        elif self.kind == "working days":
            values = working_days(values)
        found = (values - self.origin) / self.step
        near = np.round(found)
        return np.where(np.abs(found - near) <= _CLOSE * np.maximum(1.0, np.abs(near)), near, found)

    def after(self, last: float, count: int) -> Any:
        """The times of `count` steps after step `last`, with a time zone an index of pandas."""
        found = self._after(last, count)
        if self.zone is None:
            return found
        import pandas as pd

        own = pd.DatetimeIndex(found)
        if self.utc:
            return own.tz_localize("UTC").tz_convert(self.zone)
        return own.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward")

    def _after(self, last: float, count: int) -> NDArray[Any]:
        found = self.origin + self.step * (last + np.arange(1.0, count + 1.0))
        if not self.dates:
            return found
        if self.kind == "months":
            return of_months(found, self.day)
        if self.kind == "working days":
            return of_working_days(found)
        return np.round(found).astype(np.int64).astype(MICROSECOND)

    @property
    def seconds(self) -> float:
        """Length of a step of dates, on average."""
        if self.kind == "months":
            return self.step * _YEAR / 12.0
        return _YEAR / _WORKING if self.kind == "working days" else self.step / _SECOND

    def calendar(self) -> tuple[float, ...]:
        """Periods of the calendar in steps that are longer than two of them."""
        if not self.dates:
            return ()
        if self.kind == "working days":
            return 5.0, _WORKING
        # Months and quarters differ in length; what repeats in them does so by the year.
        lengths = (_YEAR,) if self.kind == "months" else (_HOUR, _DAY, _WEEK, _YEAR)
        found = [length / self.seconds for length in lengths]
        return tuple(p for p in found if p > 2.5)


def _said(value: float, dates: bool) -> str:
    return str(np.int64(value).astype(MICROSECOND))[:19] if dates else f"{value:g}"


# --- Dates as numbers of months or of working days, and back; dates are microseconds since 1970.

_DAY_LENGTH = 86_400_000_000.0
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


def whole_months(values: Array) -> tuple[Array, int] | None:
    """Numbers of months since 1970 and their day, if dates, rising, are of whole months.

    Day 31 stands for the last of each; None where dates are others.
    """
    if np.diff(values).min() < _SHORTEST_MONTH * _DAY_LENGTH or np.mod(values, _DAY_LENGTH).any():
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
    begun = month.astype(MICROSECOND).astype(np.int64) + (np.minimum(day, length) - 1) * _DAY_LENGTH
    return np.asarray(month.astype(np.int64) + (values - begun) / (length * _DAY_LENGTH))


def of_months(numbers: Array, day: int) -> NDArray[Any]:
    """Dates on this day of months since 1970."""
    month = np.round(numbers).astype(np.int64).astype("datetime64[M]")
    days = month.astype("datetime64[D]") + np.minimum(day, _lengths(month)) - 1
    return np.asarray(days.astype(MICROSECOND))


def are_working(values: Array) -> bool:
    """Whether dates, rising, are days without any Saturday or Sunday, for two weeks at least."""
    if (
        np.mod(values - values[0], _DAY_LENGTH).any()
        or values[-1] - values[0] < _TWO_WEEKS * _DAY_LENGTH
    ):
        return False
    if np.diff(values).min() > 1.5 * _DAY_LENGTH:
        return False
    return bool(np.is_busday(_dates(values).astype("datetime64[D]")).all())


def working_days(values: Array) -> Array:
    """Working days from 1970 to dates; a Saturday and a Sunday are the Monday after them."""
    return np.busday_count(_EPOCH, _dates(values).astype("datetime64[D]")).astype(float)


def of_working_days(numbers: Array) -> NDArray[Any]:
    """Dates of so many working days since 1970."""
    days = np.busday_offset(_EPOCH, np.round(numbers).astype(np.int64), roll="forward")
    return np.asarray(days.astype(MICROSECOND))


# --- Times of a series as numbers: numbers, dates of any library, dates with a time zone.

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
