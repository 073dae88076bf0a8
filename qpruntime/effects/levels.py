"""Levels of groups as numbers 0, 1, ..., also of combinations of several columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.effects.frame import Frame

__all__ = ["Coding", "indicator_rows", "numbers_of", "sorted_levels"]

Codes = NDArray[np.int64]


def sorted_levels(values: NDArray[Any]) -> NDArray[Any]:
    """Different values, sorted if they can be, else in the order in which they come."""
    try:
        return np.unique(values)
    except TypeError:
        found = np.empty(0, dtype=object)
        seen = list(dict.fromkeys(values))
        found = np.empty(len(seen), dtype=object)
        found[:] = seen
        return found


def numbers_of(values: NDArray[Any], levels: NDArray[Any]) -> Codes:
    """Number of every value among the levels, -1 for one that is not there."""
    if (
        values.dtype.kind == "i" == levels.dtype.kind
        and levels.size
        and (np.diff(levels) > 0).all()
    ):
        place = np.minimum(np.searchsorted(levels, values), levels.size - 1)
        return np.where(levels[place] == values, place, -1)
    known = {level: k for k, level in enumerate(levels.tolist())}
    return np.array([known.get(value, -1) for value in values.tolist()], dtype=np.int64)


class Coding:
    """Levels of one column, or of the combinations of several that occur.

    Parameters
    ----------
    columns : sequence
        Names of the columns.
    data : Frame
        Where the levels are taken from.

    Attributes
    ----------
    each : tuple of ndarray
        Levels of every column.
    combined : ndarray of int, shape (K,)
        The combinations that occur, as one number each, rising.
    """

    def __init__(self, columns: Sequence[Any], data: Frame) -> None:
        self.names = tuple(columns)
        self.each = tuple(sorted_levels(data.levels(name)) for name in self.names)
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
        parts, rest = [], self.combined.copy()
        for levels in reversed(self.each):
            parts.append(levels[rest % len(levels)])
            rest //= len(levels)
        return np.array([":".join(map(str, one)) for one in zip(*reversed(parts), strict=True)])

    def _combine(self, data: Frame) -> Codes:
        found = np.zeros(data.rows, dtype=np.int64)
        unknown = np.zeros(data.rows, dtype=bool)
        for name, levels in zip(self.names, self.each, strict=True):
            own = numbers_of(data.levels(name), levels)
            unknown |= own < 0
            found = found * len(levels) + own
        return np.where(unknown, -1, found)

    def codes(self, data: Frame) -> Codes:
        """Number of the level of every row, -1 for levels that are not known, shape (N,)."""
        wanted = self._combine(data)
        place = np.minimum(np.searchsorted(self.combined, wanted), self.size - 1)
        return np.where(self.combined[place] == wanted, place, -1)


def indicator_rows(codes: Codes) -> tuple[Codes, Codes]:
    """Rows of known levels, and their levels."""
    rows = np.flatnonzero(codes >= 0)
    return rows, codes[rows]
