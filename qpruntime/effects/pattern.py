"""Places of the entries of a symmetric sparse matrix, made once; only its values follow theta."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime.arrays import Array

__all__ = ["Pattern", "block_pattern", "diagonal_pattern"]


class Pattern:
    """Where a matrix (K, K) may have entries, by columns.

    Parameters
    ----------
    rows, columns : array-like of int, shape (m,)
        Places; one may be named several times, and what stands there is then added up.
    size : int
        K.

    Attributes
    ----------
    indices, indptr : ndarray of int
        As of a CSC array, rows sorted.
    place : ndarray of int, shape (m,)
        Which entry each of the given places has become.
    """

    def __init__(self, rows: ArrayLike, columns: ArrayLike, size: int) -> None:
        r, c = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        found, self.place = np.unique(c * size + r, return_inverse=True)
        self.size = int(size)
        self.indices = (found % size).astype(np.int32)
        per_column = np.bincount(found // size, minlength=size)
        self.indptr = np.concatenate([[0], np.cumsum(per_column)]).astype(np.int32)

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.indices)

    def added(self, values: ArrayLike) -> Array:
        """Entries from a value for each given place."""
        weights = np.asarray(values, dtype=float)
        return np.bincount(self.place, weights, self.count).astype(float, copy=False)

    def of(self, matrix: sparse.sparray | sparse.spmatrix) -> Array:
        """Entries of a matrix that has none outside the pattern."""
        own = sparse.coo_array(matrix)
        keys = own.col.astype(np.int64) * self.size + own.row
        places = np.searchsorted(self.keys, keys)
        return np.bincount(places, own.data, self.count).astype(float, copy=False)

    @property
    def keys(self) -> NDArray[np.int64]:
        """Numbers of the places, rising."""
        return self.columns.astype(np.int64) * self.size + self.indices

    @property
    def columns(self) -> NDArray[np.intp]:
        """Column of every entry."""
        return np.repeat(np.arange(self.size), np.diff(self.indptr))

    def matrix(self, entries: Array) -> sparse.csc_array:
        """The matrix of these entries; zeros among them stay."""
        found = sparse.csc_array(
            (entries, self.indices, self.indptr), shape=(self.size, self.size), copy=False
        )
        found.has_sorted_indices = True
        return found


def diagonal_pattern(size: int) -> Pattern:
    """The pattern of a diagonal matrix."""
    return Pattern(np.arange(size), np.arange(size), size)


def block_pattern(patterns: list[Pattern]) -> Pattern:
    """The pattern of the matrix with these on its diagonal; its entries are theirs, in order."""
    starts = np.cumsum([0] + [one.size for one in patterns])
    pairs = zip(patterns, starts, strict=False)
    rows, columns = [], []
    for one, start in pairs:
        rows.append(one.indices + start)
        columns.append(one.columns + start)
    return Pattern(np.concatenate(rows), np.concatenate(columns), int(starts[-1]))
