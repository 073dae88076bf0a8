"""Elimination trees and fill-reducing orderings. Kernels only."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spilu

from qpruntime._numba import kernel
from qpruntime._typing import IntArray

__all__ = [
    "count_rows",
    "elimination_order",
    "fill_rows",
    "join",
    "postorder",
    "tree",
]

# --- Symbolic analysis
#
# A pattern is `indptr` and `indices`, symmetric; `order` has its columns in the order of
# elimination, and `place` is the inverse. Everything else is in that order.


@kernel
def tree(indptr: IntArray, indices: IntArray, order: IntArray, place: IntArray) -> IntArray:
    """Return the parents of the elimination tree, -1 for roots (Liu, 1986)."""
    n = order.size
    parent, ancestor = np.full(n, -1), np.full(n, -1)
    for i in range(n):
        old = order[i]
        for p in range(indptr[old], indptr[old + 1]):
            j = place[indices[p]]
            while j < i and j != -1:
                up = ancestor[j]
                ancestor[j] = i
                if up == -1:
                    parent[j] = i
                j = up if up != i else -1
    return parent


@kernel
def postorder(parent: IntArray) -> IntArray:
    """Return the columns such that each comes after its children, which keep their order."""
    n = parent.size
    head, following = np.full(n, -1), np.full(n, -1)
    for j in range(n - 1, -1, -1):
        if parent[j] >= 0:
            following[j] = head[parent[j]]
            head[parent[j]] = j
    ordered, stack, count = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for root in range(n):
        if parent[root] >= 0:
            continue
        depth = 1
        stack[0] = root
        while depth:
            j = stack[depth - 1]
            child = head[j]
            if child >= 0:
                head[j] = following[child]
                stack[depth] = child
                depth += 1
            else:
                ordered[count] = j
                count += 1
                depth -= 1
    return ordered


@kernel
def count_rows(
    indptr: IntArray,
    indices: IntArray,
    order: IntArray,
    place: IntArray,
    parent: IntArray,
    most: float,
) -> tuple[IntArray, bool]:
    """Return the number of rows of every column of the factor, and whether counting was complete.

    Counting ends early once more than `most` operations are certain, by a bound from the squared
    count over columns.
    """
    n = order.size
    counts, last_row, total = np.ones(n, np.int64), np.full(n, -1), 0.0
    for i in range(n):
        last_row[i] = i
        old = order[i]
        for p in range(indptr[old], indptr[old + 1]):
            j = place[indices[p]]
            while j < i and last_row[j] != i:
                counts[j] += 1
                total += 1.0
                last_row[j] = i
                j = parent[j]
        if total * total > most * n:
            return counts, False
    return counts, True


@kernel
def join(parent: IntArray, counts: IntArray, joined: tuple[tuple[int, float], ...]) -> IntArray:
    """Return the first columns of supernodes, and n: columns join if few zeros arise."""
    n = parent.size
    first, entries, top = np.empty(n + 1, np.int64), np.empty(n, np.int64), 0
    j = 0
    while j < n:
        end = j + 1
        total = counts[j]
        while end < n and parent[end - 1] == end and counts[end - 1] == counts[end] + 1:
            total += counts[end]
            end += 1
        first[top], entries[top] = j, total
        top += 1
        while top > 1:
            begin = first[top - 2]
            up = parent[first[top - 1] - 1]
            if up < 0 or up >= end:
                break
            width = end - begin
            low = counts[end - 1] - 1
            room = width * low + (width * (width + 1)) // 2
            numbers = entries[top - 2] + entries[top - 1]
            zeros = 1.0 - numbers / room
            merges = False
            for limit, share in joined:
                if width <= limit:
                    merges = zeros <= share
                    break
            if not merges:
                break
            top -= 1
            entries[top - 1] = numbers
        j = end
    first[top] = n
    return first[: top + 1].copy()


@kernel
def fill_rows(
    indptr: IntArray,
    indices: IntArray,
    order: IntArray,
    place: IntArray,
    first: IntArray,
    below: IntArray,
    owner: IntArray,
) -> tuple[IntArray, IntArray, int]:
    """Return rows below supernodes in any order, numbers of children, and the size of the stack."""
    S = first.size - 1
    rows = np.empty(below[S], np.int64)
    children, children_room = np.zeros(S, np.int64), np.zeros(S, np.int64)
    head, following = np.full(S, -1), np.full(S, -1)
    last_supernode = np.full(order.size, -1)
    top, peak = 0, 0
    for s in range(S):
        end, count, least = first[s + 1], below[s], order.size
        for j in range(first[s], end):
            old = order[j]
            for p in range(indptr[old], indptr[old + 1]):
                i = place[indices[p]]
                if i >= end and last_supernode[i] != s:
                    last_supernode[i] = s
                    rows[count] = i
                    count += 1
                    least = min(least, i)
        child = head[s]
        while child >= 0:
            children[s] += 1
            children_room[s] += (below[child + 1] - below[child]) ** 2
            for p in range(below[child], below[child + 1]):
                i = rows[p]
                if i >= end and last_supernode[i] != s:
                    last_supernode[i] = s
                    rows[count] = i
                    count += 1
                    least = min(least, i)
            child = following[child]
        size = (below[s + 1] - below[s]) ** 2
        peak = max(peak, top + size)
        top += size - children_room[s]
        if size:
            up = owner[least]
            following[s] = head[up]
            head[up] = s
    return rows, children, peak


# --- Elimination order

Index = NDArray[np.int64]

#: A column that meets more than this many times the root of the number of columns, and more than
#: the second number, is put last: a minimum degree order would follow it through every step.
_DENSE, _LEAST = 10.0, 16
#: Edges per column above which two sides that meet each other are known to fill.
_CROSSED = 4.0


def elimination_order(pattern: sparse.csr_array) -> Index:
    """Return the columns of a symmetric pattern (K, K) in the order of their elimination.

    The minimum degree order is SuperLU's: an incomplete factorisation that drops everything costs
    hardly more than its order. If the columns form two sides and meet columns of the other side
    only, as crossed groups do, the larger side is eliminated first, because the smaller one fills
    in any case.

    Parameters
    ----------
    pattern : csr_array
        Symmetric pattern with its diagonal; values are not used.
    """
    n = pattern.shape[0]
    degree = np.diff(pattern.indptr)
    dense = degree > max(_LEAST, _DENSE * np.sqrt(n))
    last = np.flatnonzero(dense)
    last = last[np.argsort(degree[last], kind="stable")]
    sparse_columns = np.flatnonzero(~dense)
    if not sparse_columns.size:
        return last
    inner = pattern if not last.size else pattern[sparse_columns][:, sparse_columns]
    return np.concatenate([sparse_columns[_inner_order(sparse.csr_array(inner))], last])


def _inner_order(pattern: sparse.csr_array) -> Index:
    n = pattern.shape[0]
    edges = (pattern.nnz - n) / 2
    if edges <= 0:
        return np.arange(n)
    if edges > _CROSSED * n:
        side = sides(pattern.indptr, pattern.indices)
        if side[0] >= 0:
            larger = int(2 * np.count_nonzero(side) > n)
            return np.concatenate([np.flatnonzero(side == larger), np.flatnonzero(side != larger)])
    values = np.full(pattern.nnz, 1e-3)
    matrix = sparse.csc_array((values, pattern.indices, pattern.indptr), shape=(n, n))
    matrix = sparse.csc_array(matrix + sparse.eye_array(n, format="csc"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        factorised = spilu(
            matrix,
            drop_tol=1.0,
            fill_factor=1.0,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    return np.argsort(factorised.perm_c)


@kernel
def sides(indptr: IntArray, indices: IntArray) -> IntArray:
    """Return the side, 0 or 1, of every column if columns meet those of the other side only.

    The first is -1 if there are no such sides.
    """
    n = indptr.size - 1
    side, queue = np.full(n, -1), np.empty(n, np.int64)
    for root in range(n):
        if side[root] >= 0:
            continue
        side[root] = 0
        queue[0], head, tail = root, 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            for p in range(indptr[j], indptr[j + 1]):
                i = indices[p]
                if i == j:
                    continue
                if side[i] < 0:
                    side[i] = 1 - side[j]
                    queue[tail] = i
                    tail += 1
                elif side[i] == side[j]:
                    side[0] = -1
                    return side
    return side
