"""Readers of pandas, polars and pyarrow tables and of mappings of columns."""

from __future__ import annotations

import contextlib
import enum
import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._formatting import meant
from qpruntime._typing import Array
from qpruntime._validation import floats, shown, unmasked
from qpruntime.dataframes.levels import (
    Instant,
    is_missing,
    level_key,
    level_text,
    level_values,
    object_array,
    sorted_levels,
)
from qpruntime.errors import InputError

__all__ = [
    "Column",
    "ColumnLike",
    "DataColumns",
    "DataLike",
    "DeclaredLevels",
    "Frame",
    "array_of",
    "categories_of",
    "columns_of",
    "is_frame",
    "of_array",
]

#: Data frames of pandas and polars, tables of pyarrow, mappings of columns and arrays. They share
#: no method: `_library` and `hasattr` tell which one it is, the protocols below what it then has.
Frame = Any
#: A column of any of them.
ColumnLike = Any


class PandasColumn(Protocol):
    """Members of a series of pandas that are read."""

    dtype: Any
    cat: Any

    def to_numpy(self, dtype: type, na_value: float) -> Array: ...

    def isna(self) -> ArrayLike: ...

    def tolist(self) -> list[Any]: ...


class PolarsColumn(Protocol):
    """Members of a series of polars that are read."""

    dtype: Any

    def cast(self, dtype: type) -> PolarsColumn: ...

    def to_numpy(self) -> ArrayLike: ...

    def to_list(self) -> list[Any]: ...


class ArrowColumn(Protocol):
    """The one member of a column of pyarrow that is read."""

    def to_pylist(self) -> list[Any]: ...


# --- Rows of data, by column: data frames of any library, mappings of columns, arrays.


class DataColumns:
    """Columns of data by name, or by number of a 2-D array.

    Parameters
    ----------
    data : data frame, mapping of columns or array-like, shape (N, d)

    Raises
    ------
    InputError
        If it has no columns, or columns of different lengths.
    """

    def __init__(self, data: Frame) -> None:
        self._columns: dict[Hashable, ColumnLike]
        self.rows: int
        if isinstance(data, DataColumns):
            self._columns, self.rows = data._columns, data.rows
            return
        if isinstance(data, Mapping):
            self._columns = dict(data)
        elif hasattr(data, "column_names"):
            self._columns = dict(zip(data.column_names, data.columns, strict=True))
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

    def column(self, name: Hashable) -> NDArray[Any]:
        """Return one column as an array of the type that it has, shape (N,)."""
        raw = self._raw(name)
        array = array_of(raw, f"column {shown(name)}")
        if array.ndim != 1:
            raise InputError(
                f"column {shown(name)} must have one value a row, got shape {array.shape}"
            )
        return array

    def first_row(self) -> dict[Any, NDArray[Any]]:
        """Return the columns of the first row that hold numbers, text or times."""
        row, values = self.take(np.array([0])), {}
        for name in row.names:
            with contextlib.suppress(InputError):
                column = row.column(name)
                if column.dtype.kind in "biufUMm" or isinstance(column[0], str):
                    values[name] = column
        return values

    def _raw(self, name: Hashable) -> ColumnLike:
        number = int(name) if isinstance(name, np.integer) else name
        try:
            return self._columns[number]
        except (KeyError, TypeError):
            if isinstance(number, int) and not isinstance(number, bool):
                named = self.names
                if 0 <= number < len(named) and not all(isinstance(n, int) for n in named):
                    return self._columns[named[number]]
            known = ", ".join(map(str, self.names[:12]))
            hint = (
                meant(name, [n for n in self.names if isinstance(n, str)])
                if isinstance(name, str)
                else ""
            )
            raise InputError(
                f"the data have no column {shown(name)}{hint}; they have {known}"
            ) from None

    def numbers(self, name: Hashable, *, times: bool = True, infinite: bool = False) -> Array:
        """Return one column as finite numbers, shape (N,); times become days since 1970.

        Parameters
        ----------
        name : str or int
        times : bool
            Whether times are taken, which are refused where days have no meaning.
        infinite : bool
            Whether -inf is a value.
        """
        column = self.column(name)
        if not times and (
            column.dtype.kind in "mM" or any(isinstance(cell, (date, timedelta)) for cell in column)
        ):
            raise InputError(
                f"column {shown(name)} holds times, and must be a column of numbers: give these, "
                "such as a duration in days"
            )
        if column.dtype.kind == "O":
            column = _with_gaps(column)
        if column.dtype.kind == "M":
            missing = np.isnat(column)
            days = column.astype("datetime64[us]").astype(np.int64) / 86_400e6
            values = np.where(missing, np.nan, days)
        else:
            try:
                values = floats(column)
            except TypeError as error:
                raise InputError(
                    f"column {shown(name)} must be a column of numbers, and has {error}"
                ) from error
        bad = ~(np.isfinite(values) | (infinite & np.isneginf(values)))
        if bad.any():
            raise InputError(
                f"column {shown(name)} has {values[bad][0]} in row {int(np.argmax(bad))}: leave "
                "such rows out, or fill in a value"
            )
        return np.array(values, dtype=float)

    def is_numeric(self, name: Hashable) -> bool:
        """Tell whether a column holds numbers or times, and is not declared to hold levels."""
        column = self.column(name)
        if categories_of(self._raw(name)).is_categorical:
            return False
        if column.dtype.kind == "O":
            present = (cell for cell in column if not is_missing(cell))
            return all(
                isinstance(cell, (Real, Decimal, date)) and not isinstance(cell, (bool, np.bool_))
                for cell in present
            )
        return column.dtype.kind in "fiuM"

    def levels(self, name: Hashable) -> NDArray[Any]:
        """Return one column as levels of any kind, none of them missing, shape (N,)."""
        column = level_values(self.column(name), f"column {shown(name)}")
        if column.dtype.kind in "fc":
            missing = np.isnan(column)
        elif column.dtype.kind in "mM":
            missing = np.isnat(column)
        elif column.dtype.kind == "O":
            missing = np.array([cell is None for cell in column], dtype=bool)
        else:
            missing = np.zeros(len(column), dtype=bool)
        if missing.any():
            raise InputError(
                f"column {shown(name)} has no level in row {int(np.argmax(missing))}: leave the "
                f"{int(missing.sum())} rows without one out, or give them a level of their own"
            )
        return column

    def distinct_levels(self, name: Hashable) -> NDArray[Any]:
        """Return the levels that occur in a column: in the declared order, or sorted."""
        return sorted_levels(self.levels(name), categories_of(self._raw(name)).declared)

    def take(self, rows: NDArray[Any] | slice) -> DataColumns:
        """Return the columns of some rows, with what they declare."""
        return DataColumns({name: _rows_of(self._raw(name), rows) for name in self.names})


# --- Columns of data frames: numbers, levels, or refused by name, with what to do instead.
#
# pandas, polars and pyarrow are known by the classes that are loaded; nothing here imports them.

# Text of which more than this share are numbers is a column of numbers that was read as text.
_AS_TEXT = 0.5
_DATES = (date, time, timedelta, np.datetime64, np.timedelta64)
_CLASSES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}


#: A data frame of any library, a mapping of columns, or an array-like of shape (N, d).
DataLike = ArrayLike | Mapping[Any, ArrayLike] | DataColumns


@dataclass(frozen=True, eq=False)
class Column:
    """One column: numbers with NaN where they are missing, or levels, of which None is missing.

    Attributes
    ----------
    name : str
        As messages call it.
    numbers : ndarray, shape (N,), or None
    levels : list or None
    declared : tuple or None
        All levels in their declared order, those among them that do not occur as well.
    """

    name: str
    numbers: Array | None = None
    levels: list[Any] | None = None
    declared: tuple[Any, ...] | None = None

    def take(self, rows: NDArray[np.intp]) -> Column:
        """Return some rows."""
        numbers = None if self.numbers is None else self.numbers[rows]
        levels = None if self.levels is None else [self.levels[k] for k in rows]
        return Column(self.name, numbers, levels, self.declared)


class DeclaredLevels(NamedTuple):
    """Levels that the type of a column declares.

    Attributes
    ----------
    is_categorical : bool
        Whether the column is declared to hold levels.
    declared : tuple or None
        All levels in their order, where the type has one.
    ordered : bool
        Whether that order has a meaning.
    """

    is_categorical: bool = False
    declared: tuple[Any, ...] | None = None
    ordered: bool = False


def categories_of(column: object) -> DeclaredLevels:
    """Return what a column of pandas, polars or pyarrow declares about its levels.

    The order of pandas' categories and of polars' Enum is kept. The order of polars' Categorical
    and of pyarrow's dictionaries is that in which values came, so it is not kept unless the
    dictionary is ordered.
    """
    kind = getattr(column, "dtype", None)
    kind = getattr(kind, "pyarrow_dtype", kind)
    name = type(kind).__name__
    if name == "CategoricalDtype" and kind is not None:
        return DeclaredLevels(True, tuple(np.asarray(kind.categories)), bool(kind.ordered))
    if name == "Enum" and kind is not None:
        return DeclaredLevels(True, tuple(kind.categories), True)
    if name == "Categorical":
        return DeclaredLevels(True)
    arrow = kind if name == "DictionaryType" else getattr(column, "type", None)
    if type(arrow).__name__ != "DictionaryType":
        return DeclaredLevels()
    if not getattr(arrow, "ordered", False):
        return DeclaredLevels(True)
    whole = column.array.__arrow_array__() if hasattr(column, "array") else column
    chunks = getattr(whole, "chunks", None) or [whole]
    declared = dict.fromkeys(level for chunk in chunks for level in chunk.dictionary.to_pylist())
    return DeclaredLevels(True, tuple(declared), True)


def array_of(column: ColumnLike, name: str) -> NDArray[Any]:
    """Return a column of any library as an array; times with a zone stay objects."""
    zone = getattr(getattr(column, "dtype", None), "time_zone", None)  # polars
    arrow = str(column.type) if hasattr(column, "to_pylist") else ""
    if zone is not None or "tz=" in arrow or arrow.startswith("dictionary"):
        return object_array(column.to_pylist() if arrow else column.to_list())
    if arrow:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if hasattr(column, "to_numpy"):
        column = column.to_numpy()
    plain = unmasked(column, name)
    array = np.asarray(plain)
    if array.dtype.kind in "US" and isinstance(plain, (list, tuple)):
        # NumPy turns whatever stands beside text into text, a missing value into "nan".
        texts = all(isinstance(cell, (str, bytes)) for cell in plain)
        return array if texts or array.ndim != 1 else object_array(plain)
    return array


def _rows_of(column: ColumnLike, rows: NDArray[Any] | slice) -> ColumnLike:
    """Return some rows of a column of any library."""
    if hasattr(column, "iloc"):
        return column.iloc[rows]
    if hasattr(column, "to_pylist"):
        return column.take(rows)
    return column[rows] if hasattr(column, "dtype") else array_of(column, "a column")[rows]


def _with_gaps(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column of objects with NaN where one is missing; dates as days since 1970."""
    values: list[Any] = [math.nan if is_missing(cell) else cell for cell in column]
    keys = [level_key(cell) if isinstance(cell, (date, np.datetime64)) else cell for cell in values]
    return object_array(
        key.nanoseconds / 86_400e9 if isinstance(key, Instant) else key for key in keys
    )


def is_frame(X: object) -> bool:
    """Decide whether X is a data frame of pandas or polars, or a table of pyarrow.

    Raises
    ------
    InputError
        If it is a polars frame whose rows are not there yet.
    """
    lazy = getattr(sys.modules.get("polars"), "LazyFrame", None)
    if lazy is not None and isinstance(X, lazy):
        raise InputError("X is a LazyFrame, which has no rows yet: give X.collect()")
    return _library(X) is not None


def columns_of(X: Frame) -> list[Column]:
    """Read all columns of a data frame.

    Raises
    ------
    InputError
        If a column has no place in a model: dates, nested values, text that is meant as numbers.
    """
    library = _library(X)
    if library == "pandas":
        # Columns are taken by position, because names may stand twice.
        return [_of_pandas(shown(name), X.iloc[:, k]) for k, name in enumerate(X.columns)]
    if library == "polars":
        return [_of_polars(shown(name), X[name]) for name in X.columns]
    pairs = zip(X.column_names, X.columns, strict=True)
    return [_of_arrow(shown(name), column) for name, column in pairs]


def of_array(X: NDArray[Any], names: Sequence[str]) -> list[Column]:
    """Read the columns of a two-dimensional array, of numbers or of objects."""
    if X.dtype.kind in "biuf":
        return [
            Column(name, _checked(name, np.asarray(column, dtype=float)))
            for name, column in zip(names, X.T, strict=True)
        ]
    return [_of_objects(name, list(column)) for name, column in zip(names, X.T, strict=True)]


def _library(X: object) -> str | None:
    for name, frame in _CLASSES.items():
        known = getattr(sys.modules.get(name), frame, None)
        if known is not None and isinstance(X, known):
            return name
    return None


def _of_pandas(name: str, column: PandasColumn) -> Column:
    kind, words = getattr(column.dtype, "kind", "O"), str(column.dtype)
    if words == "category":
        # Codes are compared: as objects, categories in single precision become other doubles.
        categories = np.asarray(column.dtype.categories)
        codes = column.cat.codes.tolist()
        return _of_categories(name, column, [categories[k] if k >= 0 else None for k in codes])
    if kind in "mM" or words.startswith("period"):
        raise _dates(name, words)
    if kind in "biuf":
        return Column(name, _checked(name, column.to_numpy(dtype=float, na_value=math.nan)))
    if kind == "c" or words.startswith("interval"):
        raise _foreign(name, words)
    missing = np.asarray(column.isna())
    values = [None if gone else cell for cell, gone in zip(column.tolist(), missing, strict=True)]
    return _of_objects(name, values)


def _of_polars(name: str, column: PolarsColumn) -> Column:
    words = str(column.dtype)
    base = words.partition("(")[0]
    if column.dtype.is_temporal():
        raise _dates(name, words)
    if column.dtype.is_numeric() or base == "Boolean":
        numbers = column.cast(sys.modules["polars"].Float64).to_numpy()
        return Column(name, _checked(name, np.array(numbers, dtype=float)))
    if base in ("Categorical", "Enum"):
        return _of_categories(name, column, column.to_list())
    if base in ("String", "Null", "Object"):
        return _of_objects(name, column.to_list())
    raise _foreign(name, words)


def _of_objects(name: str, values: list[Any]) -> Column:
    """Read a column of Python objects: all numbers, or all text."""
    values = [None if is_missing(cell) else cell for cell in values]
    present = [cell for cell in values if cell is not None]
    number = text = 0
    for value in present:
        if isinstance(value, _DATES):
            raise _dates(name, type(value).__name__)
        if isinstance(value, (enum.Enum, str)):
            text += 1
        elif isinstance(value, (Real, Decimal, np.bool_)):
            number += 1
        else:
            raise _foreign(name, type(value).__name__)
    if number and text:
        odd = next(cell for cell in present if isinstance(cell, str) == (text < number))
        raise InputError(
            f"column {name} has numbers and text, such as {shown(odd)}: make all numbers, "
            "pandas.to_numeric(..., errors='coerce'), or all levels, .astype('category')"
        )
    if not text:
        numbers = [math.nan if cell is None else float(cell) for cell in values]
        return Column(name, _checked(name, np.array(numbers, dtype=float)))
    levels = [level.name if isinstance(level, enum.Enum) else level for level in values]
    _refuse_numbers(name, {level for level in levels if level is not None})
    return Column(name, levels=[None if level is None else str(level) for level in levels])


def _of_arrow(name: str, column: ArrowColumn) -> Column:
    values = column.to_pylist()
    if categories_of(column).is_categorical:
        return _of_categories(name, column, values)
    return _of_objects(name, values)


def _of_categories(name: str, column: object, values: list[Any]) -> Column:
    """Read a column that declares levels: text and numbers as they are, others as text."""
    levels = [None if level is None else _plain(level) for level in values]
    declared = categories_of(column).declared
    ordered = None if declared is None else tuple(_plain(level) for level in declared)
    return Column(name, levels=levels, declared=ordered)


def _plain(value: object) -> str | float:
    key = level_key(value)
    return key if isinstance(key, (str, int, float)) else level_text(value)


def _checked(name: str, numbers: Array) -> Array:
    infinite = np.isinf(numbers)
    if infinite.any():
        row = int(np.argmax(infinite))
        raise InputError(
            f"column {name} has {'-' if numbers[row] < 0.0 else ''}infinity in row {row}: put NaN "
            "where a value is missing, or leave the row out"
        )
    return numbers


def _refuse_numbers(name: str, levels: set[str]) -> None:
    """Raise `InputError` for numbers that were read as text."""
    others = [level for level in levels if not _is_number(level)]
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
