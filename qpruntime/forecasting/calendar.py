"""Times, steps and calendars of a series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, shown, unmasked
from qpruntime.dataframes.readers import ColumnLike
from qpruntime.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MICROSECOND",
    "StepClock",
    "Times",
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


#: Numbers or dates; with a time zone an index of pandas.
Times: TypeAlias = "NDArray[Any] | pd.DatetimeIndex"
#: Times agree with whole steps to this share of one.
_CLOSE = 1e-6
_SECOND = 1_000_000
#: Periods of the calendar in seconds.
_HOUR, _DAY, _WEEK, _YEAR = 3600.0, 86_400.0, 604_800.0, 31_556_952.0
#: Working days of a year.
_WORKING = _YEAR / _WEEK * 5.0


@restorable("calendar-clock/1")
@dataclass(frozen=True)
class StepClock:
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
    time : float
        Time of day that months and working days have in common, in microseconds.
    """

    origin: float
    step: float
    dates: bool
    kind: Literal["even", "months", "working days"] = "even"
    day: int = 0
    zone: str | None = None
    utc: bool = False
    time: float = 0.0

    @classmethod
    def of(cls, index: ArrayLike) -> StepClock:
        """Return the clock of an index (N,) of numbers or dates, in any order.

        A step is the least gap if all gaps are whole multiples of it, as for series with missing
        stretches. Otherwise times are irregular and a step is their median gap. Dates on one day
        of the month, or on its last day, have steps of months, quarters or years. Days without any
        Saturday and Sunday have steps of working days. Both may have one time of the day.

        Dates with a time zone have steps of the zone's clock. They have steps of UTC if the clock
        shows a time twice, or if only gaps in UTC are whole steps.

        Raises
        ------
        InputError
            If two times are the same, or there are fewer than 3.
        """
        zone, utc = zone_of(index), False
        times, dates = times_of(index)
        if zone is not None and np.unique(times).size < times.size:
            times, utc = times_of(index, utc=True)[0], True
        if times.size < 3:
            raise InputError(f"a series needs at least 3 times, got {times.size}")
        order = np.argsort(times, kind="stable")
        values = times[order]
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
            months_apart = float(np.gcd.reduce(np.round(np.diff(numbers)).astype(np.int64)))
            time = float(np.mod(values[0], _DAY_LENGTH))
            return cls(float(numbers[0]), months_apart, True, "months", day, zone, utc, time)
        if dates and are_working(values):
            first, time = float(working_days(values[:1])[0]), float(np.mod(values[0], _DAY_LENGTH))
            return cls(first, 1.0, True, "working days", 0, zone, utc, time)
        step = _whole_step(values)
        if step is None and zone is not None and not utc:
            instants = np.sort(times_of(index, utc=True)[0])
            step = _whole_step(instants)
            if step is not None:
                values, utc = instants, True
        if step is None:
            step = float(np.median(np.diff(values)))
        return cls(float(values[0]), step, dates, zone=zone, utc=utc)

    def steps(self, index: ArrayLike) -> Array:
        """Return the steps since the origin, shape (N,); nearly whole ones are rounded.

        Dates of another time zone are brought to that of the clock. Dates without one are read as
        the clock of its zone shows them.
        """
        if self.dates and self.zone is None and (zone := zone_of(index)) is not None:
            raise InputError(
                f"times have the time zone {zone}, and those of the fit have none: give them by "
                "the same clock, as by tz_convert(...).tz_localize(None) of pandas"
            )
        values, dates = times_of(index, utc=self.utc, zone=self.zone)
        if dates != self.dates:
            wanted = "dates" if self.dates else "numbers"
            raise InputError(f"times must be {wanted}, as those of the fit, got {shown(index)}")
        if self.kind == "months":
            values = in_months(values - self.time, self.day)
        elif self.kind == "working days":
            values = working_days(values)
        exact = (values - self.origin) / self.step
        near = np.round(exact)
        return np.where(np.abs(exact - near) <= _CLOSE * np.maximum(1.0, np.abs(near)), near, exact)

    def steps_after(self, last: float, count: int) -> Array:
        """Return the steps of the times of `after`, shape (count,)."""
        if self._elapses:
            return self.steps(self.after(last, count))
        return last + np.arange(1.0, count + 1.0)

    def after(self, last: float, count: int) -> Times:
        """Return the times of `count` steps after step `last`; with a time zone an index of pandas.

        Steps of an hour or less elapse: where clocks are put forward or back, none is left out or
        repeated. Longer ones keep the time that the clock shows.
        """
        if not self._elapses:
            return self.at(last + np.arange(1.0, count + 1.0))
        import pandas as pd

        elapsed = np.round(self.step * np.arange(1.0, count + 1.0)).astype("timedelta64[us]")
        begun = self._zoned(np.array([last])).tz_convert("UTC")[0]
        return (begun + pd.TimedeltaIndex(elapsed)).tz_convert(self.zone)

    def at(self, steps: Array) -> Times:
        """Return the times of these steps; with a time zone an index of pandas."""
        return self._plain(steps) if self.zone is None else self._zoned(steps)

    def _zoned(self, steps: Array) -> pd.DatetimeIndex:
        """Return the dates of these steps in the time zone of the clock."""
        import pandas as pd

        dates = pd.DatetimeIndex(self._plain(steps))
        if self.utc:
            return dates.tz_localize("UTC").tz_convert(self.zone)
        # If an hour comes twice in autumn, this is the first one, in summer time.
        return dates.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward")

    def wall_steps(self, steps: Array) -> Array:
        """Return steps as the clock on the wall counts them, shape (N,).

        Seasons follow this count. It is that of `steps`, unless those are of UTC: then it jumps
        where the clock is put forward, and repeats steps where the clock is put back.
        """
        if not self.utc:
            return steps
        times = self._zoned(np.append(0.0, steps))
        ahead = (times.tz_localize(None) - times.tz_convert(None)).to_numpy()
        ahead = ahead.astype("timedelta64[us]").astype(float)
        return np.asarray(steps + np.round((ahead[1:] - ahead[0]) / self.step))

    @property
    def _elapses(self) -> bool:
        """True if steps are so short that they must be those of UTC where clocks change."""
        short = self.kind == "even" and self.step <= _HOUR * _SECOND
        return short and self.zone is not None and not self.utc

    def _plain(self, steps: Array) -> NDArray[Any]:
        """Return the numbers, or the dates without a time zone, of these steps."""
        numbers = self.origin + self.step * steps
        if not self.dates:
            return numbers
        time = np.timedelta64(round(self.time), "us")
        if self.kind == "months":
            return of_months(numbers, self.day) + time
        if self.kind == "working days":
            return of_working_days(numbers) + time
        return np.round(numbers).astype(np.int64).astype(MICROSECOND)

    @property
    def seconds(self) -> float:
        """Length of a step of dates, on average."""
        if self.kind == "months":
            return self.step * _YEAR / 12.0
        return _YEAR / _WORKING if self.kind == "working days" else self.step / _SECOND

    def calendar(self) -> tuple[float, ...]:
        """Return the calendar's periods that are longer than two steps."""
        if not self.dates:
            return ()
        if self.kind == "working days":
            return 5.0, _WORKING
        # Months and quarters differ in length; what repeats in them does so by the year.
        lengths = (_YEAR,) if self.kind == "months" else (_HOUR, _DAY, _WEEK, _YEAR)
        periods = [length / self.seconds for length in lengths]
        return tuple(p for p in periods if p > 2.5)


def _whole_step(values: Array) -> float | None:
    """Return the least gap between rising values if all gaps are whole numbers of it."""
    gaps = np.diff(values)
    step = float(gaps.min())
    parts = gaps / step
    return None if (np.abs(parts - np.round(parts)) > _CLOSE * parts).any() else step


def _said(value: float, dates: bool) -> str:
    return str(np.int64(value).astype(MICROSECOND))[:19] if dates else f"{value:g}"


# --- Months and working days as numbers; dates are microseconds since 1970 -----------------------

_DAY_LENGTH = 86_400_000_000.0
_SHORTEST_MONTH = 27.5
# Days that a series without weekends spans at least.
_TWO_WEEKS = 14.0
_EPOCH = np.datetime64("1970-01-01")


def _dates(values: Array) -> NDArray[Any]:
    return values.astype(np.int64).astype(MICROSECOND)


def _lengths(month: NDArray[Any]) -> NDArray[np.int64]:
    """Return the days of months."""
    ends = (month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")
    return np.asarray(ends.astype(np.int64))


def whole_months(values: Array) -> tuple[Array, int] | None:
    """Return months since 1970 and their day, if rising dates are of whole months.

    Day 31 stands for the last of each; None where dates are others, or not at one time of the day.
    """
    time = np.mod(values, _DAY_LENGTH)
    if np.diff(values).min() < _SHORTEST_MONTH * _DAY_LENGTH or (time != time[0]).any():
        return None
    days = _dates(values).astype("datetime64[D]")
    month = days.astype("datetime64[M]")
    number = (days - month.astype("datetime64[D]")).astype(np.int64) + 1
    length, months = _lengths(month), month.astype(np.int64).astype(float)
    if (number == length).all():
        return months, 31
    day = int(number.max())
    # The 30th of each month is the last of February.
    return (months, day) if (number == np.minimum(day, length)).all() else None


def in_months(values: Array, day: int) -> Array:
    """Return dates as months since 1970 with fractions, whole on this day."""
    month = _dates(values).astype("datetime64[M]")
    length = _lengths(month)
    begun = month.astype(MICROSECOND).astype(np.int64) + (np.minimum(day, length) - 1) * _DAY_LENGTH
    return np.asarray(month.astype(np.int64) + (values - begun) / (length * _DAY_LENGTH))


def of_months(numbers: Array, day: int) -> NDArray[Any]:
    """Return the dates on this day of months since 1970."""
    month = np.round(numbers).astype(np.int64).astype("datetime64[M]")
    days = month.astype("datetime64[D]") + np.minimum(day, _lengths(month)) - 1
    return np.asarray(days.astype(MICROSECOND))


def are_working(values: Array) -> bool:
    """Decide whether rising dates skip all Saturdays and Sundays, over two weeks or more."""
    if (
        np.mod(values - values[0], _DAY_LENGTH).any()
        or values[-1] - values[0] < _TWO_WEEKS * _DAY_LENGTH
    ):
        return False
    if np.diff(values).min() > 1.5 * _DAY_LENGTH:
        return False
    return bool(np.is_busday(_dates(values).astype("datetime64[D]")).all())


def working_days(values: Array) -> Array:
    """Return working days from 1970 to dates; Saturday and Sunday count as the next Monday."""
    return np.busday_count(_EPOCH, _dates(values).astype("datetime64[D]")).astype(float)


def of_working_days(numbers: Array) -> NDArray[Any]:
    """Return the dates of these numbers of working days since 1970."""
    days = np.busday_offset(_EPOCH, np.round(numbers).astype(np.int64), roll="forward")
    return np.asarray(days.astype(MICROSECOND))


# --- Reading times -------------------------------------------------------------------------------

#: Units of dates: microseconds since 1970.
MICROSECOND = "datetime64[us]"


def times_of(index: ArrayLike, utc: bool = False, zone: str | None = None) -> tuple[Array, bool]:
    """Return times as numbers (N,), dates in microseconds since 1970, and whether they are dates.

    Dates with a time zone are those of the clock on its walls, so that days begin at midnight, or
    of UTC, where no hour is repeated in autumn.

    Parameters
    ----------
    index : array-like, shape (N,)
    utc : bool
        Whether dates with a time zone are those of UTC.
    zone : str, optional
        Time zone whose clock is meant: of dates with a time zone by default their own. Dates
        without one are of this clock.

    Raises
    ------
    InputError
        If they are neither, or some are missing.
    """
    times = _read(index)
    if not isinstance(times, np.ndarray):
        times = times if zone is None else times.tz_convert(zone)
    elif zone is not None and utc and times.dtype.kind == "M":
        import pandas as pd

        dates = pd.DatetimeIndex(times)
        times = dates.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
    if not isinstance(times, np.ndarray):
        times = (times.tz_convert(None) if utc else times.tz_localize(None)).to_numpy()
    if times.ndim != 1:
        raise InputError(f"times must have shape (N,), got {times.shape}")
    if times.dtype.kind == "M":
        if np.isnat(times).any():
            raise InputError(f"time number {int(np.argmax(np.isnat(times)))} is missing")
        return times.astype(MICROSECOND).astype(np.int64).astype(float), True
    if times.dtype.kind not in "iuf":
        raise InputError(
            f"times must be numbers or dates, got {shown(index)}: of text make dates, as by "
            "pandas.to_datetime"
        )
    numbers: Array = finite(np.asarray(times, dtype=float), "times")
    return numbers, False


def zone_of(index: ArrayLike) -> str | None:
    """Return the name of the time zone of an index, a column of any library, or a list of dates."""
    zone = getattr(_read(index), "tz", None)
    return None if zone is None else str(zone)


def _read(index: ArrayLike) -> Times:
    """Return an array of numbers or dates, or an index of pandas if there is a time zone."""
    column: Any = unmasked(index, "times")
    dtype = getattr(column, "dtype", None)
    if str(dtype).startswith("period"):  # of pandas
        column = getattr(column, "dt", column).to_timestamp()
    elif getattr(dtype, "time_zone", None) is not None:  # of polars
        column = column.to_list()
    accessor = getattr(column, "dt", column)
    if getattr(accessor, "tz", None) is not None and hasattr(accessor, "tz_localize"):
        import pandas as pd

        return pd.DatetimeIndex(column)
    times = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    if times.dtype.kind == "O" and times.ndim == 1 and times.size:
        if all(hasattr(t, "isoformat") for t in times):
            return _of_objects(times)
        if all(hasattr(t, "to_timestamp") for t in times):  # periods of pandas
            return np.array([t.to_timestamp().to_datetime64() for t in times])
    return times


def _of_objects(times: NDArray[Any]) -> Times:
    """Convert dates and times of Python or pandas."""
    zones = [getattr(t, "tzinfo", None) for t in times]
    without = [zone is None for zone in zones]
    if all(without):
        return np.array([np.datetime64(t.isoformat(), "us") for t in times])
    if any(without):
        raise InputError(
            f"time number {without.index(True)} has no time zone, and others have one: give all "
            "times one time zone"
        )
    import pandas as pd

    # Offsets that differ, as of times read from text, name no clock: these are instants of UTC.
    same = len({str(zone) for zone in zones}) == 1
    return pd.to_datetime(times, utc=True).tz_convert(zones[0] if same else "UTC")


def index_of(y: ArrayLike, index: ArrayLike | None) -> ColumnLike:
    """Return the index that was given, that of a pandas series, or 0, 1, 2, ..."""
    if index is not None:
        return cast("ColumnLike", index)
    labels: ColumnLike | None = getattr(y, "index", None)
    if labels is not None and not callable(labels):
        return labels
    return np.arange(len(np.asarray(unmasked(y, "y", missing=True))))
