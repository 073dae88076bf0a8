"""Sparsity patterns of rows and groups of equal rows. Kernels only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._numba import contracted, kernel
from qpruntime._restorable import restorable
from qpruntime._typing import Array, IntArray

__all__ = [
    "Equal",
    "add_rows",
    "back",
    "entry_coordinates",
    "equal_rows",
    "near_order",
    "pair_places",
    "place_of",
    "placed",
    "places",
    "sort_rows",
    "squares",
    "times",
]

# --- Equal rows

#: Rows are in order if their levels decrease this rarely.
_SORTED = 0.7


@restorable("equal/1")
class Equal(NamedTuple):
    """Grouping of rows by equality: the first row of each group.

    first : ndarray of int, shape (S,), ascending
    site : ndarray of int, shape (N,), which of these every row equals
    """

    first: NDArray[np.intp]
    site: NDArray[np.intp]


def equal_rows(A: sparse.csr_array, cache: dict[str, Any], *columns: Array) -> Equal:
    """Return which rows of A are equal and have equal numbers in `columns`, each (N,).

    `cache` keeps the result for calls with the same rows.
    """
    n = A.shape[0]
    values = (A.data + 0.0).view(np.uint64)
    extra = np.empty((len(columns), n))
    for k, column in enumerate(columns):
        extra[k] = column
    extra += 0.0
    keys = np.empty(n, np.uint64)
    hash_rows(A.indptr, A.indices, values, extra.view(np.uint64), keys)
    known: tuple[NDArray[np.uint64], Equal] | None = cache.get("equal")
    if known is not None and np.array_equal(known[0], keys):
        return known[1]
    equal = _equal(A, keys, values, extra)
    cache["equal"] = keys, equal
    return equal


def _equal(
    A: sparse.csr_array, keys: NDArray[np.uint64], values: NDArray[np.uint64], extra: Array
) -> Equal:
    n = keys.size
    _, first, site = np.unique(keys, return_index=True, return_inverse=True)
    if first.size == n:
        return Equal(np.arange(n), np.arange(n))
    # Groups are numbered in the order of their first rows.
    order = np.argsort(first)
    rank = np.empty(first.size, np.intp)
    rank[order] = np.arange(first.size)
    first, site = first[order], rank[site]
    if not all_equal(A.indptr, A.indices, values, extra.view(np.uint64), first[site]):
        return Equal(np.arange(n), np.arange(n))
    return Equal(first, site)


def near_order(A: sparse.csr_array, first: NDArray[np.intp]) -> NDArray[np.intp] | None:
    """Return an order of rows `first` in which those of one level follow each other.

    Kernels run through the rows, and then find a level's numbers in the cache. This halves the time
    for a million rows in random order. The result is None if the rows are in such an order already.
    """
    counts = np.bincount(A.indices, minlength=A.shape[1])
    keys = np.empty(first.size, np.int64)
    rarest(A.indptr, A.indices, counts, first, keys)
    if (keys[1:] >= keys[:-1]).mean() > _SORTED:
        return None
    return np.argsort(keys, kind="stable")


@kernel
def rarest(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    counts: IntArray,
    rows: IntArray,
    keys: IntArray,
) -> None:
    """Fill, for every row, the column that the fewest rows have."""
    for k in range(rows.size):
        n, least = rows[k], -1
        for p in range(indptr[n], indptr[n + 1]):
            j = indices[p]
            if least < 0 or counts[j] < counts[least]:
                least = j
        keys[k] = least


@kernel
def hash_rows(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    values: NDArray[np.uint64],
    extra: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> None:
    """Fill a hash for every row; unequal rows have equal hashes with probability 2^-64."""
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
def all_equal(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    values: NDArray[np.uint64],
    extra: NDArray[np.uint64],
    other: IntArray,
) -> bool:
    """Decide whether every row equals another one."""
    for n in range(other.size):
        m = other[n]
        if m == n:
            continue
        if indptr[n + 1] - indptr[n] != indptr[m + 1] - indptr[m]:
            return False
        for p in range(indptr[n + 1] - indptr[n]):
            entry, other_entry = indptr[n] + p, indptr[m] + p
            if indices[entry] != indices[other_entry] or values[entry] != values[other_entry]:
                return False
        for k in range(extra.shape[0]):
            if extra[k, n] != extra[k, m]:
                return False
    return True


# --- Sparse rows
#
# Rows are `indptr`, `columns`, `values` with columns ascending in the order of elimination. `pairs`
# has, row after row, the places in the panels of all pairs of a row's columns: for each column, its
# pairs with the columns at or after it.


@kernel
def place_of(shape: tuple[IntArray, ...], i: int, j: int) -> int:
    """Return the place in the panels of the entry in row i and column j <= i, or -1."""
    first, begins, below, rows, owner = shape[0], shape[1], shape[2], shape[3], shape[4]
    s = owner[j]
    c0, end = first[s], first[s + 1]
    nc, low, high = end - c0, below[s], below[s + 1]
    ld = nc + high - low
    start = begins[s] + (j - c0) * ld
    if i < end:
        return int(start + i - c0)
    b0 = low
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < i:
            low = middle + 1
        else:
            high = middle
    if low < below[s + 1] and rows[low] == i:
        return int(start + nc + low - b0)
    return -1


@kernel
def places(shape: tuple[IntArray, ...], i: IntArray, j: IntArray, out: NDArray[np.integer]) -> None:
    """Fill places of entries of either triangle, -1 where the panels have none."""
    for k in range(i.size):
        out[k] = place_of(shape, max(i[k], j[k]), min(i[k], j[k]))


@kernel
def sort_rows(
    indptr: NDArray[np.integer],
    indices: NDArray[np.integer],
    place: IntArray,
    chosen: IntArray,
    starts: IntArray,
    columns: NDArray[np.int32],
    order: NDArray[np.int32],
) -> None:
    """Fill the ascending places of the columns of chosen rows, and where their values are."""
    for k in range(chosen.size):
        begin = starts[k]
        end = begin
        for p in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            column, q = place[indices[p]], end
            while q > begin and columns[q - 1] > column:
                columns[q], order[q] = columns[q - 1], order[q - 1]
                q -= 1
            columns[q], order[q] = column, p
            end += 1


@kernel
def pair_places(
    shape: tuple[IntArray, ...],
    indptr: IntArray,
    columns: NDArray[np.int32],
    out: NDArray[np.int32],
) -> int:
    """Fill the places of all pairs of every row; return a row with a pair without place, or -1."""
    q = 0
    for n in range(indptr.size - 1):
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                place = place_of(shape, np.int64(columns[b]), np.int64(columns[a]))
                if place < 0:
                    return n
                out[q] = place
                q += 1
    return -1


@kernel
def entry_coordinates(
    indptr: NDArray[np.integer],
    columns: NDArray[np.integer],
    index: IntArray,
    i: IntArray,
    j: IntArray,
) -> None:
    """Fill row and column of the entries that belong to pairs of rows."""
    q = 0
    for n in range(indptr.size - 1):
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                i[index[q]], j[index[q]] = columns[b], columns[a]
                q += 1


@kernel
def placed(
    shape: tuple[IntArray, ...],
    indptr: IntArray,
    columns: NDArray[np.int32],
    found: NDArray[np.bool_],
) -> None:
    """Decide for every row whether all its pairs have places."""
    for n in range(found.size):
        found[n] = True
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                if found[n] and place_of(shape, np.int64(columns[b]), np.int64(columns[a])) < 0:
                    found[n] = False


@contracted
def add_rows(
    panels: Array, indptr: IntArray, values: Array, pairs: NDArray[np.int32], tau: Array
) -> None:
    """Add A^T diag(tau) A."""
    q = 0
    for n in range(tau.size):
        end = indptr[n + 1]
        for a in range(indptr[n], end):
            weight = tau[n] * values[a]
            for b in range(a, end):
                panels[pairs[q]] += weight * values[b]
                q += 1


@contracted
def squares(
    inverse: Array, indptr: IntArray, values: Array, pairs: NDArray[np.int32], out: Array
) -> None:
    """Fill a_n^T Z a_n of every row."""
    q = 0
    for n in range(out.size):
        end, total = indptr[n + 1], 0.0
        for a in range(indptr[n], end):
            diagonal, off_diagonal = values[a] * inverse[pairs[q]], 0.0
            q += 1
            for b in range(a + 1, end):
                off_diagonal += values[b] * inverse[pairs[q]]
                q += 1
            total += values[a] * (diagonal + 2.0 * off_diagonal)
        out[n] = total


@contracted
def times(
    indptr: IntArray, columns: NDArray[np.int32], values: Array, x: Array, out: Array
) -> None:
    """Fill A x."""
    for n in range(out.size):
        total = 0.0
        for p in range(indptr[n], indptr[n + 1]):
            total += values[p] * x[columns[p]]
        out[n] = total


@contracted
def back(indptr: IntArray, columns: NDArray[np.int32], values: Array, w: Array, out: Array) -> None:
    """Fill A^T w."""
    out[:] = 0.0
    for n in range(w.size):
        for p in range(indptr[n], indptr[n + 1]):
            out[columns[p]] += values[p] * w[n]
