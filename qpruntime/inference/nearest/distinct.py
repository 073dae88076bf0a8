"""Equal rows of a matrix, in an order that does not depend on the order of the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = ["distinct"]

Numbers = NDArray[np.intp]

# Rows that are copied at a time.
_ROWS = 2**16


def distinct(A: Array) -> tuple[Numbers, Numbers]:
    """Return the first row of each set of equal rows of A (N, d), and the set of every row.

    Sets are ordered by a hash of their numbers. ``np.unique(axis=0)`` compares records field by
    field, and takes 20 times as long.

    Returns
    -------
    first : ndarray of int, shape (P,)
    group : ndarray of int, shape (N,)
    """
    A = np.asarray(np.ascontiguousarray(A))
    hashes = np.empty(len(A), np.uint64)
    for start in range(0, len(A), _ROWS):
        some = slice(start, start + _ROWS)
        hashes[some] = _hashes((A[some] + 0.0).view(np.uint64))  # so that -0 is 0
    order = np.argsort(hashes, kind="stable")
    first, group = np.empty(len(A), np.intp), np.empty(len(A), np.intp)
    count = _grouped(A, hashes, order, first, group)
    return first[:count].copy(), group


@kernel
def _hashes(words):
    """Mix the bits of every row (splitmix64)."""
    n, d = words.shape
    found = np.empty(n, np.uint64)
    for i in range(n):
        state = np.uint64(0x9E3779B97F4A7C15)
        for j in range(d):
            state = state ^ words[i, j]
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = (state ^ (state >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
        found[i] = state
    return found


@kernel
def _grouped(A, hashes, order, first, group):
    """Go through runs of equal hashes; rows that share one by chance are told apart."""
    n, d = A.shape
    count, begun = 0, 0
    for at in range(n):
        row = order[at]
        if at > 0 and hashes[row] != hashes[order[at - 1]]:
            begun = count
        found = -1
        for other in range(begun, count):
            same = True
            for j in range(d):
                if A[row, j] != A[first[other], j]:
                    same = False
                    break
            if same:
                found = other
                break
        if found < 0:
            first[count] = row
            found = count
            count += 1
        group[row] = found
    return count
