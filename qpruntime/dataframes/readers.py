"""Readers of pandas, polars and pyarrow tables and of mappings of columns."""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._formatting import meant
from qpruntime._typing import Array
from qpruntime._validation import real, shown, unmasked
from qpruntime.errors import InputError

__all__ = [
    "Column",
    "Frame",
    "columns_of",
    "is_frame",
    "of_array",
]

# --- Rows of data, by column: data frames of any library, mappings of columns, arrays.


class Frame:
    """Columns of data by name, or by number of a 2-D array.

    Parameters
    ----------
    data : data frame, mapping of columns or array-like, shape (N, d)

    Raises
    ------
    InputError
        If it has no columns, or columns of different lengths.
    """

    def __init__(self, data: Any) -> None:
        self._columns: dict[Any, Any]
        self.rows: int
        if isinstance(data, Frame):
            self._columns, self.rows = data._columns, data.rows
            return
        if isinstance(data, Mapping):
            self._columns = dict(data)
        elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
            self._columns = {name: data[name] for name in data.columns}
        else:
            values = np.asarray(unmasked(data, "the data"))
            if values.ndim != 2:
                raise InputError(
                    f"data must be a data frame, a mapping of columns or an array of shape (N, d), "
                    f"got shape {values.shape}"
                )
            self._columns = dict(enumerate(values.T))
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) != 1:
            raise InputError(f"the data's columns must be of one length, got {sorted(lengths)}")
        self.rows = lengths.pop()
        if not self.rows:
            raise InputError("the data have no rows")

    @property
    def names(self) -> list[Any]:
        """Names or numbers of the columns."""
        return list(self._columns)

    def column(self, name: Any) -> NDArray[Any]:
        """One column as it is, shape (N,)."""
        number = int(name) if isinstance(name, np.integer) else name
        try:
            found = self._columns[number]
        except (KeyError, TypeError):
            if isinstance(number, int) and not isinstance(number, bool):
                named = self.names
                if 0 <= number < len(named) and not all(isinstance(n, int) for n in named):
                    return self.column(named[number])
            known = ", ".join(map(str, self.names[:12]))
            hint = (
                meant(name, [n for n in self.names if isinstance(n, str)])
                if isinstance(name, str)
                else ""
            )
            raise InputError(
                f"the data have no column {shown(name)}{hint}; they have {known}"
            ) from None
        if hasattr(found, "to_numpy"):
            found = found.to_numpy()
        array = np.asarray(unmasked(found, f"column {shown(name)}"))
        if array.ndim != 1:
            raise InputError(
                f"column {shown(name)} must have one value a row, got shape {array.shape}"
            )
        return array

    def numbers(self, name: Any) -> Array:
        """One column as finite numbers, shape (N,); times become days since 1970."""
        column = self.column(name)
        if column.dtype.kind == "M":
            missing = np.isnat(column)
            days = column.astype("datetime64[us]").astype(np.int64) / 86_400e6
            found = np.where(missing, np.nan, days)
        else:
            found = real(column, f"column {shown(name)}")
        bad = ~np.isfinite(found)
        if bad.any():
            raise InputError(
                f"column {shown(name)} has {found[bad][0]} in row {int(np.argmax(bad))}: leave "
                "such rows out, or fill in a value"
            )
        return np.array(found, dtype=float)

    def is_numeric(self, name: Any) -> bool:
        """Whether a column holds numbers or times, not labels."""
        column = self.column(name)
        if column.dtype.kind == "O":
            return not any(isinstance(one, (str, bytes, bool, np.bool_)) for one in column)
        return column.dtype.kind in "fiuM"

    def levels(self, name: Any) -> NDArray[Any]:
        """One column as levels of any kind, none of them missing, shape (N,)."""
        column = self.column(name)
        if column.dtype.kind in "fc":
            missing = np.isnan(column)
        elif column.dtype.kind in "mM":
            missing = np.isnat(column)
        elif column.dtype.kind == "O":
            missing = np.array([one is None or one != one for one in column], dtype=bool)
        else:
            missing = np.zeros(len(column), dtype=bool)
        if missing.any():
            raise InputError(
                f"column {shown(name)} has no level in row {int(np.argmax(missing))}: leave the "
                f"{int(missing.sum())} rows without one out, or give them a level of their own"
            )
        if column.dtype.kind == "O" and all(isinstance(one, str) for one in column):
            return column.astype(str)
        return column


# --- Columns of data frames: numbers, levels, or refused by name, with what to do instead.
#
# pandas, polars and pyarrow are known by the classes that are loaded; nothing here imports them.

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
