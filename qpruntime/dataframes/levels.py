"""Levels of categorical columns: compared by value, whatever type stores them.

A level is the same level as text or bytes, as `datetime64` of any unit, as a date or a datetime, as
an integer or a float of the same value, and as single or double precision.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from numbers import Number
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from qpruntime._validation import shown, unmasked
from qpruntime.errors import InputError

__all__ = [
    "Codes",
    "Instant",
    "check_kinds",
    "is_missing",
    "kinds_of",
    "level_key",
    "level_keys",
    "level_text",
    "level_values",
    "numbers_of",
    "object_array",
    "sorted_levels",
]

Codes = NDArray[np.int64]

#: Nanoseconds of the units of NumPy's times; months and years are counted in days first.
_NANOSECONDS = {
    "W": 7 * 86_400_000_000_000,
    "D": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}


class Instant(NamedTuple):
    """A time or a duration as a level.

    Attributes
    ----------
    kind : {"times", "times with a zone", "durations"}
    nanoseconds : int
        Since 1970, in UTC if there is a zone.
    """

    kind: str
    nanoseconds: int


def is_missing(value: object) -> bool:
    """Tell whether a value stands for a missing one: None, NaN, NaT or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, (complex, np.complexfloating)):
        return bool(np.isnan(value))
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def level_key(value: Any) -> Hashable:
    """Return what equal levels of any type have in common.

    Raises
    ------
    InputError
        If the value cannot be compared by a dictionary, as a list.
    """
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return _instant(value)
    if isinstance(value, np.generic):
        # Single precision has the value of its shortest decimal: 0.1 and not 0.10000000149.
        short = isinstance(value, np.floating) and value.itemsize < 8
        value = (
            float(str(value))
            if short
            else float(value)
            if isinstance(value, np.longdouble)
            else value.item()
        )
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal):
        return float(value)
    if hasattr(value, "to_datetime64"):  # pandas' Timestamp, which has nanoseconds
        zone = value.tzinfo is not None
        plain = value.tz_convert("UTC").tz_localize(None) if zone else value
        return _instant(plain.to_datetime64(), zone)
    if isinstance(value, datetime):
        zone = value.tzinfo is not None
        plain = value.astimezone(UTC).replace(tzinfo=None) if zone else value
        return _instant(np.datetime64(plain, "us"), zone)
    if isinstance(value, date):
        return _instant(np.datetime64(value, "D"))
    if hasattr(value, "to_timedelta64"):
        return _instant(value.to_timedelta64())
    if isinstance(value, timedelta):
        return _instant(np.timedelta64(value, "us"))
    if isinstance(value, tuple):
        return tuple(level_key(part) for part in value)
    try:
        hash(value)
    except TypeError as error:
        raise InputError(f"{shown(value)} cannot be a level: give text or numbers") from error
    return cast("Hashable", value)


def level_keys(values: Iterable[Any]) -> list[Any]:
    """Return the keys of many values."""
    array = values if isinstance(values, np.ndarray) else object_array(values)
    if array.dtype.kind in "biuU" or (array.dtype.kind == "f" and array.dtype == np.float64):
        return list(array.tolist())
    return [level_key(value) for value in array]


def level_text(value: object) -> str:
    """Return a level as text, the same for equal levels."""
    key = level_key(value)
    if not isinstance(key, Instant) or key.kind == "durations":
        return str(value)
    time = np.datetime64(key.nanoseconds, "ns")
    unit = next((u for u in ("D", "s", "us") if time.astype(f"M8[{u}]") == time), "ns")
    return str(time.astype(f"M8[{unit}]")) + ("Z" if key.kind == "times with a zone" else "")


def level_values(values: object, name: str) -> NDArray[Any]:
    """Return levels in an array of one type where they are of one kind, None where missing.

    Text is ``str``, numbers are integers, doubles or booleans, times are ``datetime64``.

    Raises
    ------
    InputError
        If entries are masked.
    """
    array = np.asarray(unmasked(values, name))
    if array.dtype.kind == "f" and array.dtype.itemsize != 8:
        plain = array.astype(np.float64)
        known = ~np.isnan(plain)
        plain[known] = level_keys(array[known])
        return plain
    if array.dtype.kind in "biufUcmM":
        return array
    levels = object_array(None if is_missing(value) else value for value in array)
    present = [value for value in levels if value is not None]
    if len(present) < len(levels) or not present:
        return levels
    keys: list[Any] = [level_key(value) for value in present]
    kinds = kinds_of(keys)
    if kinds == {"text"}:
        return np.array(keys, dtype=str)
    if kinds == {"numbers"} and len({isinstance(key, bool) for key in keys}) == 1:
        numbers = np.array(keys)
        return numbers if numbers.dtype.kind in "bif" else levels
    if kinds == {"times"}:
        return _times([key.nanoseconds for key in keys])
    return levels


def sorted_levels(values: Iterable[Any], declared: Iterable[Any] | None = None) -> NDArray[Any]:
    """Return the different values: declared ones in their order, others sorted by kind and value.

    Values that cannot be sorted keep the order in which they come.
    """
    array = values if isinstance(values, np.ndarray) else object_array(values)
    if declared is None and array.dtype.kind in "biufUmM":
        return np.unique(array)
    first: dict[Any, int] = {}
    for row, key in enumerate(level_keys(array)):
        first.setdefault(key, row)
    place = {key: k for k, key in enumerate(level_keys(() if declared is None else declared))}
    known = sorted((key for key in first if key in place), key=lambda key: place[key])
    others = [key for key in first if key not in place]
    with suppress(TypeError):  # values without an order
        others.sort(key=lambda key: (_kind(key), key))
    return array[[first[key] for key in (*known, *others)]]


def numbers_of(values: NDArray[Any], levels: NDArray[Any], name: str = "") -> Codes:
    """Return the number of every value among the levels, -1 for one that is not there.

    Raises
    ------
    InputError
        If `name` is given and no level is of the kind of a value, as text among numbers.
    """
    whole = values.dtype.kind == "i" == levels.dtype.kind
    if whole and levels.size and (np.diff(levels) > 0).all():
        place = np.minimum(np.searchsorted(levels, values), levels.size - 1)
        return np.where(levels[place] == values, place, -1)
    repeated: Any = slice(None)
    if values.dtype.kind in "iufUmM":
        values, repeated = np.unique(values, return_inverse=True)
    keys, known = level_keys(values), level_keys(levels)
    if name:
        check_kinds(keys, known, name)
    codes = {key: k for k, key in enumerate(known)}
    key_codes = np.array([codes.get(key, -1) for key in keys], dtype=np.int64)
    return np.asarray(key_codes[repeated])


def check_kinds(keys: Iterable[Any], known: Iterable[Any], name: str) -> None:
    """Raise `InputError` for keys of a kind that no known level has; None is of every kind."""
    had = kinds_of(known)
    new_kinds = sorted(kinds_of(keys) - had)
    if had and new_kinds:
        raise InputError(
            f"{name} has levels that are {' and '.join(sorted(had))} in the fit and {new_kinds[0]} "
            "now: give them as in the fit"
        )


def kinds_of(keys: Iterable[Any]) -> set[str]:
    """Return the kinds of keys, as messages name them; None is of none."""
    return {_kind(key) for key in keys if key is not None}


def _kind(key: object) -> str:
    if isinstance(key, str):
        return "text"
    if isinstance(key, Instant):
        return key.kind
    if isinstance(key, Number):
        return "numbers"
    return f"of type {type(key).__name__}"


def _instant(value: np.datetime64 | np.timedelta64, zone: bool = False) -> Instant:
    durations = isinstance(value, np.timedelta64)
    kind = "durations" if durations else "times with a zone" if zone else "times"
    unit, count = np.datetime_data(value.dtype)
    if unit in ("Y", "M") and not durations:
        value, unit, count = value.astype("M8[D]"), "D", 1
    if unit not in _NANOSECONDS:  # finer than nanoseconds, or without a unit
        value, unit, count = value.astype(f"{value.dtype.kind}8[ns]"), "ns", 1
    return Instant(kind, int(value.astype(np.int64)) * count * _NANOSECONDS[unit])


def _times(nanoseconds: list[int]) -> NDArray[Any]:
    """Return times in the coarsest unit that has them all: 64 bits of nanoseconds are 584 years."""
    unit = next(u for u in ("D", "us", "ns") if not any(n % _NANOSECONDS[u] for n in nanoseconds))
    whole = [n // _NANOSECONDS[unit] for n in nanoseconds]
    return np.array(whole, dtype=np.int64).astype(f"M8[{unit}]")


def _decoded(value: bytes) -> Hashable:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def object_array(values: Iterable[Any]) -> NDArray[Any]:
    """Return values in an array of objects, also where they are sequences."""
    items = list(values)
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
