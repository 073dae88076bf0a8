"""Which rows of a sparse matrix are equal, with their offsets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = ["Equal", "equal_rows", "near_order"]

#: Rows whose levels fall this rarely are in order.
_SORTED = 0.7


class Equal(NamedTuple):
    """Rows by the first of those that equal them.

    first : ndarray of int, shape (S,), ascending
    site : ndarray of int, shape (N,), which of these every row equals
    """

    first: NDArray[np.intp]
    site: NDArray[np.intp]


def equal_rows(A: sparse.csr_array, held: dict[str, Any], *columns: Array) -> Equal:
    """Return which rows of A are equal, and have equal numbers in `columns`, each (N,).

    What was found is kept in `held`, for calls with the same rows.
    """
    n = A.shape[0]
    values = (A.data + 0.0).view(np.uint64)
    extra = np.empty((len(columns), n))
    for k, column in enumerate(columns):
        extra[k] = column
    extra += 0.0
    keys = np.empty(n, np.uint64)
    hash_rows(A.indptr, A.indices, values, extra.view(np.uint64), keys)
    known = held.get("equal")
    if known is not None and np.array_equal(known[0], keys):
        found: Equal = known[1]
        return found
    found = _equal(A, keys, values, extra)
    held["equal"] = keys, found
    return found


def _equal(A: sparse.csr_array, keys: Any, values: Any, extra: Array) -> Equal:
    n = keys.size
    _, first, site = np.unique(keys, return_index=True, return_inverse=True)
    if first.size == n:
        return Equal(np.arange(n), np.arange(n))
    # In the order of the first of each.
    order = np.argsort(first)
    rank = np.empty(first.size, np.intp)
    rank[order] = np.arange(first.size)
    first, site = first[order], rank[site]
    if not all_equal(A.indptr, A.indices, values, extra.view(np.uint64), first[site]):
        return Equal(np.arange(n), np.arange(n))
    return Equal(first, site)


def near_order(A: sparse.csr_array, first: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return an order of rows `first` in which those of one level follow each other.

    Kernels run through rows, and a level's numbers are then found in the cache: half the time for a
    million rows that come in no order. None where they are in such an order already.
    """
    counts = np.bincount(A.indices, minlength=A.shape[1])
    keys = np.empty(first.size, np.int64)
    rarest(A.indptr, A.indices, counts, first, keys)
    if (keys[1:] >= keys[:-1]).mean() > _SORTED:
        return None
    return np.argsort(keys, kind="stable")


@kernel
def rarest(indptr, indices, counts, rows, keys):
    """Fill the column of every row that the fewest rows have."""
    for k in range(rows.size):
        n, least = rows[k], -1
        for p in range(indptr[n], indptr[n + 1]):
            j = indices[p]
            if least < 0 or counts[j] < counts[least]:
                least = j
        keys[k] = least


@kernel
def hash_rows(indptr, indices, values, extra, keys):
    """Fill a number for every row that tells unequal ones apart, but for one in 2^64."""
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    for n in range(keys.size):
        h = np.uint64(indptr[n + 1] - indptr[n])
        for p in range(indptr[n], indptr[n + 1]):
            h = (h ^ np.uint64(indices[p])) * multiplier
            h ^= h >> np.uint64(29)
            h = (h ^ values[p]) * multiplier
            h ^= h >> np.uint64(32)
        for k in range(extra.shape[0]):
            h = (h ^ extra[k, n]) * multiplier
            h ^= h >> np.uint64(31)
        keys[n] = h


@kernel
def all_equal(indptr, indices, values, extra, other):
    """Whether every row equals another one."""
    for n in range(other.size):
        m = other[n]
        if m == n:
            continue
        if indptr[n + 1] - indptr[n] != indptr[m + 1] - indptr[m]:
            return False
        for p in range(indptr[n + 1] - indptr[n]):
            one, two = indptr[n] + p, indptr[m] + p
            if indices[one] != indices[two] or values[one] != values[two]:
                return False
        for k in range(extra.shape[0]):
            if extra[k, n] != extra[k, m]:
                return False
    return True
