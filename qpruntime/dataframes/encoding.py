"""What a fit has seen of the columns of a table, and rows as numbers of it.

Levels become codes 0, 1, ... in their column; a level that the fit has not seen gets a code beyond.
A missing level is a level of its own. A missing number becomes the median of its column, and a
further column of the matrix, of two levels, says where it was missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.columns.frames import Column
from qpruntime.errors import InputError, warn
from qpruntime.validation import shown

__all__ = ["Table"]

# Stands for levels of text that a fit did not have.
_UNSEEN = "(not in the fit)"


@dataclass(frozen=True, eq=False)
class Table:
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
    def of(cls, columns: Sequence[Column]) -> Table:
        """Look at the columns of a fit."""
        levels = tuple(None if c.levels is None else _ordered(c.levels) for c in columns)
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
        """Whether all columns are numbers, none of them missing."""
        return not self.gaps and all(one is None for one in self.levels)

    @property
    def categorical(self) -> tuple[int, ...]:
        """Columns of the matrix that are codes of levels."""
        own = [k for k, one in enumerate(self.levels) if one is not None]
        return (*own, *range(len(self.names), len(self.names) + len(self.gaps)))

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the columns of the matrix."""
        return (*self.names, *(f"{self.names[k]} missing" for k in self.gaps))

    def matrix(self, columns: Sequence[Column]) -> Array:
        """Rows as numbers, shape (N, d + gaps).

        Raises
        ------
        InputError
            If a column has levels where the fit had numbers, or the other way round.
        """
        parts = [self._part(k, column) for k, column in enumerate(columns)]
        for k in self.gaps:
            numbers = columns[k].numbers
            assert numbers is not None
            parts.append(np.isnan(numbers).astype(float))
        return np.column_stack(parts)

    def frame(self, names: Sequence[str], matrix: Array) -> Any:
        """Columns as the user has them, of these names: a pandas frame of rows of the matrix.

        Booleans are 0 and 1. A level that no row of the fit had is text that says so; it is missing
        where levels are no text.
        """
        import pandas

        found = {}
        for k, name in enumerate(names):
            own, levels = matrix[:, k], self.levels[k]
            if levels is not None:
                values = np.empty(len(levels) + 1, dtype=object)
                values[:-1] = levels
                values[-1] = _UNSEEN if isinstance(_first(levels), str) else None
                found[name] = values[np.minimum(own, len(levels)).astype(int)]
            elif k in self.gaps:
                there = matrix[:, len(self.names) + self.gaps.index(k)] == 0.0
                found[name] = np.where(there, own, np.nan)
            else:
                found[name] = own
        return pandas.DataFrame(found)

    def _part(self, k: int, column: Column) -> Array:
        levels = self.levels[k]
        if levels is not None:
            return self._codes(k, column)
        if column.numbers is None:
            raise InputError(
                f"column {self.names[k]} has numbers in the fit and text now, such as "
                f"{shown(_first(column.levels))}: give numbers"
            )
        missing = np.isnan(column.numbers)
        if missing.any() and k not in self.gaps:
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
            values = [None if np.isnan(one) else float(one) for one in numbers]
        texts = {isinstance(one, str) for one in known if one is not None}
        now = {isinstance(one, str) for one in values if one is not None}
        if len(texts) == 1 and now - texts:
            had, has = ("text", "numbers") if True in texts else ("numbers", "text")
            raise InputError(
                f"column {self.names[k]} has levels that are {had} in the fit and {has} now: give "
                "them as in the fit"
            )
        codes = {level: float(number) for number, level in enumerate(known)}
        for one in values:
            codes.setdefault(one, float(len(codes)))
        return np.array([codes[one] for one in values])


def _ordered(values: Sequence[Any]) -> tuple[Any, ...]:
    """Levels in their order, a missing one last."""
    present = {one for one in values if one is not None}
    found = sorted(present, key=lambda one: (isinstance(one, str), one))
    return (*found, None) if len(present) < len(set(values)) else tuple(found)


def _first(values: Sequence[Any] | None) -> Any:
    return next((one for one in values or () if one is not None), None)
