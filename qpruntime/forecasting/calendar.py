"""The clock of a series: times as steps from its first, and the times of steps to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.forecasting import calendars
from qpruntime.forecasting.times import MICROSECOND, times_of, zone_of
from qpruntime.validation import shown

__all__ = ["Clock"]

#: Times agree with whole steps to this share of one.
_CLOSE = 1e-6
_SECOND = 1_000_000
#: Periods of the calendar in seconds.
_HOUR, _DAY, _WEEK, _YEAR = 3600.0, 86_400.0, 604_800.0, 31_556_952.0
#: Working days of a year.
_WORKING = _YEAR / _WEEK * 5.0


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
        if dates and (months := calendars.months(values)) is not None:
            numbers, day = months
            step = float(np.gcd.reduce(np.round(np.diff(numbers)).astype(np.int64)))
            return cls(float(numbers[0]), step, True, "months", day, zone, utc)
        if dates and calendars.are_working(values):
            first = float(calendars.working_days(values[:1])[0])
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
            values = calendars.in_months(values, self.day)
        elif self.kind == "working days":
            values = calendars.working_days(values)
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
            return calendars.of_months(found, self.day)
        if self.kind == "working days":
            return calendars.of_working_days(found)
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
