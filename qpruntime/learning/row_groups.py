"""Groups of rows that are left out together, so that no row is judged by its own copy.

Rows with equal features are one group unless the user names groups: after oversampling, or where a
subject has several rows, the rest of a group knows what the row that is left out would say.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.inference.leave_groups import leave_groups_out
from qpruntime.inference.sparse.data import chunk_count, chunk_slice, is_lazy, read

__all__ = ["RowGroups", "equal_rows"]

# Multipliers and shifts of the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST = np.uint64(31)


class RowGroups:
    """Group of each row.

    Parameters
    ----------
    X : inputs, shape (N, d)
        Read when the groups are first asked for.
    given : ndarray of int, shape (N,), or None
        Groups that the user names; by default rows with equal features are a group.
    """

    def __init__(self, X: Any, given: NDArray[np.intp] | None = None) -> None:
        self._X, self._given = X, given

    @cached_property
    def codes(self) -> NDArray[np.intp]:
        """Number of the group of each row, shape (N,)."""
        if self._given is None:
            return self._equal
        return np.unique(self._given, return_inverse=True)[1].astype(np.intp)

    @cached_property
    def _equal(self) -> NDArray[np.intp]:
        return equal_rows(self._X)

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        return int(self.codes.max()) + 1 if self.codes.size else 0

    @property
    def repeat(self) -> bool:
        """True if any group has two rows."""
        return self.count < self.codes.size

    @cached_property
    def coincide(self) -> bool:
        """True if all rows of a group have equal features."""
        if self._given is None:
            return True
        pairs = np.unique(np.column_stack([self.codes, self._equal]), axis=0)
        return len(pairs) == self.count

    def subset(self, rows: slice | NDArray[np.intp]) -> RowGroups:
        """Return the groups of these rows."""
        subset = RowGroups(None, self.codes[rows])
        subset.__dict__["coincide"] = self.coincide
        return subset

    def pooled(self, values: Array, rows: NDArray[np.intp] | slice = slice(None)) -> Array:
        """Sum values (..., n) by group, times the number of groups per row, which keeps the mean.

        Rows of one group carry the same information, so the standard error of a mean is that of its
        groups.
        """
        codes = np.unique(self.codes[rows], return_inverse=True)[1]
        count = int(codes.max()) + 1
        if count == codes.size:
            return values
        sums = [np.bincount(codes, row, minlength=count) for row in np.atleast_2d(values)]
        return np.reshape(sums, (*values.shape[:-1], count)) * (count / codes.size)

    def left_out(self, posterior: Any, rows: NDArray[np.intp] | None = None) -> Array:
        """Return log predictive densities of rows without all rows of their groups."""
        if not self.repeat:
            return np.asarray(posterior.loo(rows))
        indices = np.arange(self.codes.size) if rows is None else rows
        return leave_groups_out(posterior, self.codes, indices, self.coincide)


def equal_rows(X: Any) -> NDArray[np.intp]:
    """Return row labels (N,) that are equal for equal rows of X (N, d).

    Rows are compared by a 64-bit hash. Among a million distinct rows, two have the same hash with
    probability 3e-8.
    """
    n = int(X.shape[0])
    hashes = np.empty(n, np.uint64)
    for number in range(chunk_count(n)):
        block = chunk_slice(number, n)
        hashes[block] = _marks(read(X, block) if is_lazy(X) else X[block])
    return np.unique(hashes, return_inverse=True)[1].astype(np.intp)


def _marks(X: Array) -> NDArray[np.uint64]:
    """Return 64 bits for each row; 0 and -0 are equal, and so is all that is not a number."""
    points = np.array(X, dtype=np.float64) + 0.0
    points[np.isnan(points)] = np.nan
    marks = np.zeros(len(points), np.uint64)
    for column in np.ascontiguousarray(points.T).view(np.uint64):
        marks = (marks + _STEP) ^ column
        for shift, times in _MIX:
            marks = (marks ^ (marks >> shift)) * times
        marks ^= marks >> _LAST
    return marks
