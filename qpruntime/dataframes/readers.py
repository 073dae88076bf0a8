"""Columns of data frames: numbers, levels, or refused by name, with what to do instead.

pandas, polars and pyarrow are known by the classes that are loaded; nothing here imports them.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import shown

__all__ = ["Column", "columns_of", "is_frame", "of_array"]

# Text of which more than this share are numbers is a column of numbers that was read as text.
_AS_TEXT = 0.5
_DATES = (date, time, timedelta, np.datetime64, np.timedelta64)
_CLASSES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}


@dataclass(frozen=True, eq=False)
class Column:
    """One column: numbers with NaN where they are missing, or levels, of which None is missing.

    Attributes
    ----------
    name : str
        As messages call it.
    numbers : ndarray, shape (N,), or None
    levels : list or None
    """

    name: str
    numbers: Array | None = None
    levels: list[Any] | None = None


def is_frame(X: Any) -> bool:
    """Whether X is a data frame of pandas or polars, or a table of pyarrow.

    Raises
    ------
    InputError
        If it is a polars frame whose rows are not there yet.
    """
    lazy = getattr(sys.modules.get("polars"), "LazyFrame", None)
    if lazy is not None and isinstance(X, lazy):
        raise InputError("X is a LazyFrame, which has no rows yet: give X.collect()")
    return _library(X) is not None


def columns_of(X: Any) -> list[Column]:
    """Read all columns of a data frame.

    Raises
    ------
    InputError
        If a column has no place in a model: dates, nested values, text that is meant as numbers.
    """
    library = _library(X)
    if library == "pandas":
        # By position, for names may stand twice.
        return [_of_pandas(shown(name), X.iloc[:, k]) for k, name in enumerate(X.columns)]
    if library == "polars":
        return [_of_polars(shown(name), X[name]) for name in X.columns]
    pairs = zip(X.column_names, X.columns, strict=True)
    return [_of_objects(shown(name), one.to_pylist()) for name, one in pairs]


def of_array(X: Any, names: Sequence[str]) -> list[Column]:
    """Read the columns of a two-dimensional array, of numbers or of objects."""
    if X.dtype.kind in "biuf":
        return [
            Column(name, _checked(name, np.asarray(one, dtype=float)))
            for name, one in zip(names, X.T, strict=True)
        ]
    return [_of_objects(name, list(one)) for name, one in zip(names, X.T, strict=True)]


def _library(X: Any) -> str | None:
    for name, frame in _CLASSES.items():
        known = getattr(sys.modules.get(name), frame, None)
        if known is not None and isinstance(X, known):
            return name
    return None


def _of_pandas(name: str, column: Any) -> Column:
    kind, words = getattr(column.dtype, "kind", "O"), str(column.dtype)
    if words == "category":
        missing = np.asarray(column.isna())
        values = column.astype(object).tolist()
        return Column(name, levels=_declared(values, missing))
    if kind in "mM" or words.startswith("period"):
        raise _dates(name, words)
    if kind in "biuf":
        return Column(name, _checked(name, column.to_numpy(dtype=float, na_value=math.nan)))
    if kind == "c" or words.startswith("interval"):
        raise _foreign(name, words)
    missing = np.asarray(column.isna())
    values = [None if gone else one for one, gone in zip(column.tolist(), missing, strict=True)]
    return _of_objects(name, values)


def _of_polars(name: str, column: Any) -> Column:
    words = str(column.dtype)
    base = words.partition("(")[0]
    if column.dtype.is_temporal():
        raise _dates(name, words)
    if column.dtype.is_numeric() or base == "Boolean":
        numbers = column.cast(sys.modules["polars"].Float64).to_numpy()
        return Column(name, _checked(name, np.array(numbers, dtype=float)))
    if base in ("Categorical", "Enum"):
        values = column.to_list()
        return Column(name, levels=_declared(values, [one is None for one in values]))
    if base in ("String", "Null", "Object"):
        return _of_objects(name, column.to_list())
    raise _foreign(name, words)


def _of_objects(name: str, values: list[Any]) -> Column:
    """A column of Python objects: all numbers, or all text."""
    values = [None if _missing(one) else one for one in values]
    present = [one for one in values if one is not None]
    number = text = 0
    for one in present:
        if isinstance(one, _DATES):
            raise _dates(name, type(one).__name__)
        if isinstance(one, (enum.Enum, str)):
            text += 1
        elif isinstance(one, (Real, Decimal, np.bool_)):
            number += 1
        else:
            raise _foreign(name, type(one).__name__)
    if number and text:
        odd = next(one for one in present if isinstance(one, str) == (text < number))
        raise InputError(
            f"column {name} has numbers and text, such as {shown(odd)}: make all numbers, "
            "pandas.to_numeric(..., errors='coerce'), or all levels, .astype('category')"
        )
    if not text:
        numbers = [math.nan if one is None else float(one) for one in values]
        return Column(name, _checked(name, np.array(numbers, dtype=float)))
    levels = [one.name if isinstance(one, enum.Enum) else one for one in values]
    _refuse_numbers(name, {one for one in levels if one is not None})
    return Column(name, levels=[None if one is None else str(one) for one in levels])


def _declared(values: list[Any], missing: Any) -> list[Any]:
    """Levels of a column that says that it has levels: as they are, if they are plain."""
    found: list[Any] = []
    for one, gone in zip(values, missing, strict=True):
        plain = one.item() if isinstance(one, np.generic) else one
        if isinstance(plain, enum.Enum):
            plain = plain.name
        if not isinstance(plain, (str, int, float)):
            plain = str(plain)  # intervals, dates
        found.append(None if gone else plain)
    return found


def _checked(name: str, numbers: Array) -> Array:
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise InputError(
            f"column {name} has {'-' if numbers[row] < 0.0 else ''}infinity in row {row}: put NaN "
            "where a value is missing, or leave the row out"
        )
    return numbers


def _missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _refuse_numbers(name: str, levels: set[str]) -> None:
    """Raise `InputError` for numbers that were read as text."""
    others = [one for one in levels if not _is_number(one)]
    if len(levels) - len(others) <= _AS_TEXT * len(levels):
        return
    but = f", but for {shown(min(others))}" if others else ""
    raise InputError(
        f"column {name} is text, and its values are numbers{but}: convert it, "
        "pandas.to_numeric(..., errors='coerce') or polars' .cast(float, strict=False), or say "
        "that they are levels, .astype('category')"
    )


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _dates(name: str, words: str) -> InputError:
    return InputError(
        f"column {name} holds dates or times ({words}), which have no distance here: give numbers, "
        "as days since the first, (x - x.min()).dt.days or .dt.total_days(), and parts that come "
        "again, as month or weekday; for a series of observations use GPForecaster"
    )


def _foreign(name: str, words: str) -> InputError:
    return InputError(
        f"column {name} holds {words}, which are neither numbers nor levels: leave it out, or make "
        "columns of numbers of it"
    )
