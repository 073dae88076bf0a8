"""Encoding of columns: levels, codes and missing values."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.dataframes.levels import Codes, check_kinds, numbers_of, sorted_levels
from qpruntime.dataframes.readers import (
    Column,
    DataColumns,
    Frame,
    is_frame,
)
from qpruntime.errors import InputError, warn

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Coding",
    "EncodedTable",
    "column_numbers",
    "held",
    "indicator_rows",
    "names_of",
    "permuted",
    "rows_of",
]

# --- Levels of groups as numbers 0, 1, ..., also of combinations of several columns.


@restorable("coding/1")
class Coding:
    """Levels of one column, or of the combinations of several that occur.

    Parameters
    ----------
    columns : sequence
        Names of the columns.
    data : DataColumns
        Where the levels are taken from.

    Attributes
    ----------
    each : tuple of ndarray
        Levels of every column.
    combined : ndarray of int, shape (K,)
        The combinations that occur, as one number each, rising.
    """

    def __init__(self, columns: Sequence[Any], data: DataColumns) -> None:
        self.names = tuple(columns)
        self.each = tuple(data.distinct_levels(name) for name in self.names)
        self.combined = np.unique(self._combine(data))

    @property
    def size(self) -> int:
        """Number of levels."""
        return len(self.combined)

    @property
    def labels(self) -> NDArray[Any]:
        """Name of every level, shape (K,): as in the data, joined by ":" for several columns."""
        if len(self.each) == 1:
            return self.each[0][self.combined]
        parts, remaining = [], self.combined.copy()
        for levels in reversed(self.each):
            parts.append(levels[remaining % len(levels)])
            remaining //= len(levels)
        return np.array(
            [":".join(map(str, labels)) for labels in zip(*reversed(parts), strict=True)]
        )

    def _combine(self, data: DataColumns) -> Codes:
        codes = np.zeros(data.rows, dtype=np.int64)
        unknown = np.zeros(data.rows, dtype=bool)
        for name, levels in zip(self.names, self.each, strict=True):
            column_codes = numbers_of(data.levels(name), levels, f"column {shown(name)}")
            unknown |= column_codes < 0
            codes = codes * len(levels) + column_codes
        return np.where(unknown, -1, codes)

    def codes(self, data: DataColumns) -> Codes:
        """Return the number of each row's level, -1 for unknown levels, shape (N,)."""
        wanted = self._combine(data)
        place = np.minimum(np.searchsorted(self.combined, wanted), self.size - 1)
        return np.where(self.combined[place] == wanted, place, -1)


def indicator_rows(codes: Codes) -> tuple[Codes, Codes]:
    """Rows of known levels, and their levels."""
    rows = np.flatnonzero(codes >= 0)
    return rows, codes[rows]


# --- Tables with one column changed: permuted, or the same in every row; the user's own stays.


def names_of(X: Frame) -> list[str]:
    """Names of the columns of a table; those of an array are their numbers."""
    if hasattr(X, "column_names"):
        return [str(name) for name in X.column_names]
    return [str(name) for name in (X.columns if is_frame(X) else range(np.shape(X)[1]))]


def column_numbers(X: Frame, wanted: Iterable[int | str]) -> list[int]:
    """Numbers of columns that are given by name or number, -1 for those that there are not."""
    names = names_of(X)
    numbers = []
    for name in wanted:
        if isinstance(name, str):
            numbers.append(names.index(name) if name in names else -1)
        else:
            whole = isinstance(name, (int, np.integer)) and not isinstance(name, bool)
            numbers.append(int(name) if whole and 0 <= name < len(names) else -1)
    return numbers


def rows_of(X: Frame, some: NDArray[np.intp]) -> Frame:
    """Return some rows, in this order."""
    if hasattr(X, "iloc"):
        return X.iloc[some]
    if hasattr(X, "column_names"):
        return X.take(some)
    return X[some] if is_frame(X) else np.asarray(X)[some]


def permuted(X: Frame, k: int, order: NDArray[np.intp]) -> Frame:
    """Return a table whose k-th column is in another order."""
    if hasattr(X, "iloc"):
        shuffled = X.copy()
        shuffled.isetitem(k, X.iloc[:, k].iloc[order].array)
        return shuffled
    if hasattr(X, "column_names"):
        return X.set_column(k, X.column_names[k], X.column(k).take(order))
    if is_frame(X):
        return X.with_columns(X[:, k][order].alias(X.columns[k]))
    shuffled = np.array(X, copy=True)
    shuffled[:, k] = shuffled[order, k]
    return shuffled


def held(X: Frame, k: int, value: object) -> Frame:
    """Return a table whose k-th column has this value in every row; None is missing."""
    if hasattr(X, "iloc"):
        replaced = X.copy()
        replaced.isetitem(k, [value] * len(X))
        return replaced
    if hasattr(X, "column_names"):
        return X.set_column(k, X.column_names[k], [[value] * len(X)])
    if is_frame(X):
        original = copy.copy(X[:, k])
        return X.with_columns(type(original)(X.columns[k], [value] * len(X)))
    plain = np.asarray(X)
    replaced = plain.astype(object if plain.dtype.kind == "O" else float)
    replaced[:, k] = np.nan if value is None and replaced.dtype.kind == "f" else value
    return replaced


# --- What a fit has seen of the columns of a table, and rows as numbers of it.
#
# Levels become codes 0, 1, ... in their column; a level that the fit has not seen gets a code
# beyond. A missing level is a level of its own. A missing number becomes the median of its column,
# and a further column of the matrix, of two levels, says where it was missing.

# Stands for levels of text that a fit did not have.
_UNSEEN = "(not in the fit)"


@restorable("encoded-table/1")
@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Columns of the rows of a fit.

    Attributes
    ----------
    names : tuple of str
        As messages call them.
    levels : tuple of tuple or None
        Of each column its levels in the order of their codes, None among them if one was missing;
        None for a column of numbers.
    middle : ndarray, shape (d,)
        What stands for a missing number: the median of its column.
    gaps : tuple of int
        Columns of numbers of which some were missing; the k-th has column d + k of the matrix.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[Any, ...] | None, ...]
    middle: Array
    gaps: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> EncodedTable:
        """Look at the columns of a fit."""
        levels = tuple(None if c.levels is None else _ordered(c) for c in columns)
        middle = np.zeros(len(columns))
        gaps = []
        for k, column in enumerate(columns):
            if column.numbers is None:
                continue
            known = column.numbers[~np.isnan(column.numbers)]
            if known.size:
                middle[k] = np.median(known)
            if known.size < column.numbers.size:
                gaps.append(k)
        return cls(tuple(c.name for c in columns), levels, middle, tuple(gaps))

    @property
    def plain(self) -> bool:
        """True if all columns are numbers and none of them is missing."""
        return not self.gaps and all(column_levels is None for column_levels in self.levels)

    @property
    def categorical(self) -> tuple[int, ...]:
        """Columns of the matrix that are codes of levels."""
        with_levels = [
            k for k, column_levels in enumerate(self.levels) if column_levels is not None
        ]
        return (*with_levels, *range(len(self.names), len(self.names) + len(self.gaps)))

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the columns of the matrix."""
        return (*self.names, *(f"{self.names[k]} missing" for k in self.gaps))

    def matrix(self, columns: Sequence[Column], silent: bool = False) -> Array:
        """Return rows as numbers, shape (N, d + gaps).

        `silent` is for rows of the fit: of those whose weight is 0 nothing need be known.

        Raises
        ------
        InputError
            If a column has levels where the fit had numbers, or the other way round.
        """
        parts = [self._part(k, column, silent) for k, column in enumerate(columns)]
        for k in self.gaps:
            numbers = columns[k].numbers
            assert numbers is not None
            parts.append(np.isnan(numbers).astype(float))
        return np.column_stack(parts)

    def frame(self, names: Sequence[str], matrix: Array) -> pandas.DataFrame:
        """Columns as the user has them, of these names: a pandas frame of rows of the matrix.

        Booleans are 0 and 1. A level that no row of the fit had is text that says so; it is missing
        where levels are no text.
        """
        import pandas

        columns = {}
        for k, name in enumerate(names):
            codes, levels = matrix[:, k], self.levels[k]
            if levels is not None:
                values = np.empty(len(levels) + 1, dtype=object)
                values[:-1] = levels
                values[-1] = _UNSEEN if isinstance(_first(levels), str) else None
                columns[name] = values[np.minimum(codes, len(levels)).astype(int)]
            elif k in self.gaps:
                present = matrix[:, len(self.names) + self.gaps.index(k)] == 0.0
                columns[name] = np.where(present, codes, np.nan)
            else:
                columns[name] = codes
        return pandas.DataFrame(columns)

    def _part(self, k: int, column: Column, silent: bool) -> Array:
        levels = self.levels[k]
        if levels is not None:
            return self._codes(k, column)
        if column.numbers is None:
            raise InputError(
                f"column {self.names[k]} has numbers in the fit and text now, such as "
                f"{shown(_first(column.levels))}: give numbers"
            )
        missing = np.isnan(column.numbers)
        if missing.any() and k not in self.gaps and not silent:
            warn(
                f"column {self.names[k]} is missing in {int(missing.sum())} rows and was in none "
                "of the fit, which cannot say what that means: its median stands there",
                UserWarning,
            )
        return np.where(missing, self.middle[k], column.numbers)

    def _codes(self, k: int, column: Column) -> Array:
        known = self.levels[k]
        assert known is not None
        values: list[Any] | None = column.levels
        if values is None:
            numbers = column.numbers
            assert numbers is not None
            values = [None if np.isnan(number) else float(number) for number in numbers]
        check_kinds(values, known, f"column {self.names[k]}")
        codes = {level: float(number) for number, level in enumerate(known)}
        for value in values:
            codes.setdefault(value, float(len(codes)))
        return np.array([codes[value] for value in values])


def _ordered(column: Column) -> tuple[Any, ...]:
    """Levels in their order, a missing one last."""
    values = column.levels or []
    present = [value for value in values if value is not None]
    levels = tuple(sorted_levels(present, column.declared))
    return (*levels, None) if len(present) < len(values) else levels


def _first(values: Sequence[Any] | None) -> object:
    return next((value for value in values or () if value is not None), None)
