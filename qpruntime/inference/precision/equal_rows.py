"""Which rows of a sparse matrix are equal, with their offsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = ["Equal", "equal_rows"]


class Equal(NamedTuple):
    """Rows by the first of those that equal them.

    first : ndarray of int, shape (S,), ascending
    site : ndarray of int, shape (N,), which of these every row equals
    """

    first: NDArray[np.intp]
    site: NDArray[np.intp]


def equal_rows(A: sparse.csr_array, *columns: Array) -> Equal:
    """Return which rows of A are equal, and have equal numbers in `columns`, each (N,)."""
    n = A.shape[0]
    values = (A.data + 0.0).view(np.uint64)
    extra = np.empty((len(columns), n))
    for k, column in enumerate(columns):
        extra[k] = column
    extra += 0.0
    keys = np.empty(n, np.uint64)
    hash_rows(A.indptr, A.indices, values, extra.view(np.uint64), keys)
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
