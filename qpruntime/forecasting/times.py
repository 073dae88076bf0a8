"""Times of a series as whole steps, from numbers or dates, and the steps that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, shown

__all__ = ["Clock", "times_of"]

#: Times agree with whole steps to this share of one.
_CLOSE = 1e-6
_SECOND = 1_000_000
#: Of steps of dates: the least and the greatest length in seconds, and periods in seconds.
_HOUR, _DAY, _WEEK, _YEAR = 3600.0, 86_400.0, 604_800.0, 31_556_952.0


@dataclass(frozen=True)
class Clock:
    """Origin and length of the steps of a series.

    Attributes
    ----------
    origin, step : float
        In units of the index; of dates microseconds since 1970.
    dates : bool
    """

    origin: float
    step: float
    dates: bool

    @classmethod
    def of(cls, index: Any) -> Clock:
        """Return that of an index (N,) of numbers or dates, rising.

        Raises
        ------
        InputError
            If it does not rise, or has less than 3 times.
        """
        values, dates = times_of(index)
        if values.size < 3:
            raise InputError(f"a series needs at least 3 times, got {values.size}")
        gaps = np.diff(values)
        if not (gaps > 0.0).all():
            i = int(np.argmax(~(gaps > 0.0)))
            raise InputError(
                f"times must rise, and number {i + 1} is not after number {i}: sort the series, "
                "and add up what is of the same time"
            )
        return cls(float(values[0]), float(gaps.min()), dates)

    def steps(self, index: Any) -> Array:
        """Steps since the origin, shape (N,); whole where they are nearly so."""
        values, dates = times_of(index)
        if dates != self.dates:
            wanted = "dates" if self.dates else "numbers"
            raise InputError(f"times must be {wanted}, as those of the fit, got {shown(index)}")
        found = (values - self.origin) / self.step
        near = np.round(found)
        return np.where(np.abs(found - near) <= _CLOSE * np.maximum(1.0, np.abs(near)), near, found)

    def after(self, last: float, count: int) -> NDArray[Any]:
        """The times of `count` steps after step `last`."""
        found = self.origin + self.step * (last + np.arange(1.0, count + 1.0))
        if not self.dates:
            return found
        return np.round(found).astype(np.int64).astype("datetime64[us]")

    @property
    def seconds(self) -> float:
        """Length of a step of dates."""
        return self.step / _SECOND

    def calendar(self) -> tuple[float, ...]:
        """Periods of the calendar in steps that are longer than two of them."""
        if not self.dates:
            return ()
        # Months and quarters differ in length; what repeats in them does so by the year.
        found = [length / self.seconds for length in (_HOUR, _DAY, _WEEK, _YEAR)]
        return tuple(p for p in found if p > 2.5)


def times_of(index: Any) -> tuple[Array, bool]:
    """Times as numbers (N,), of dates microseconds since 1970, and whether they are dates.

    Raises
    ------
    InputError
        If they are neither, or some are missing.
    """
    found = index.to_numpy() if hasattr(index, "to_numpy") else np.asarray(index)
    if hasattr(index, "to_timestamp"):  # periods of pandas
        found = index.to_timestamp().to_numpy()
    if found.ndim != 1:
        raise InputError(f"times must have shape (N,), got {found.shape}")
    if found.dtype.kind == "M":
        if np.isnat(found).any():
            raise InputError(f"time number {int(np.argmax(np.isnat(found)))} is missing")
        return found.astype("datetime64[us]").astype(np.int64).astype(float), True
    if found.dtype.kind not in "iuf":
        raise InputError(
            f"times must be numbers or dates, got {shown(index)}: of text make dates, as by "
            "pandas.to_datetime"
        )
    numbers: Array = finite(np.asarray(found, dtype=float), "times")
    return numbers, False


def index_of(y: Any, index: ArrayLike | None) -> Any:
    """Return the index that was given, that of a pandas series, or 0, 1, 2, ..."""
    if index is not None:
        return index
    own = getattr(y, "index", None)
    if own is not None and not callable(own):
        return own
    return np.arange(len(np.asarray(y)))
