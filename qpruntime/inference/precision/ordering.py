"""In what order columns are eliminated, so that the factor has few numbers."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spilu

from qpruntime.jit import kernel

__all__ = ["Ordering", "elimination_order"]

Ordering = Literal["mmd", "natural"]
Index = NDArray[np.int64]

#: A column that meets more than this many times the root of all columns, and more than so many, is
#: put last: a minimum degree order would follow it through every step.
_DENSE, _LEAST = 10.0, 16
#: Edges for each column from which on two sides that meet are known to fill.
_CROSSED = 4.0


def elimination_order(pattern: sparse.csr_array, ordering: Ordering = "mmd") -> Index:
    """Return the columns of a symmetric pattern (K, K) in the order of their elimination.

    The minimum degree order is SuperLU's. An incomplete factorisation that drops everything costs
    hardly more than its order. Of two sides of which each column meets columns of the other alone,
    as crossed groups do, the larger is eliminated first: the smaller fills in any case.

    Parameters
    ----------
    pattern : csr_array
        Symmetric, with a diagonal; values are not looked at.
    ordering : {"mmd", "natural"}
    """
    n = pattern.shape[0]
    if ordering == "natural":
        return np.arange(n)
    degree = np.diff(pattern.indptr)
    dense = degree > max(_LEAST, _DENSE * np.sqrt(n))
    last = np.flatnonzero(dense)
    last = last[np.argsort(degree[last], kind="stable")]
    rest = np.flatnonzero(~dense)
    if not rest.size:
        return last
    inner = pattern if not last.size else pattern[rest][:, rest]
    return np.concatenate([rest[_inner_order(sparse.csr_array(inner))], last])


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
        found = spilu(
            matrix,
            drop_tol=1.0,
            fill_factor=1.0,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    return np.argsort(found.perm_c)


@kernel
def sides(indptr, indices):
    """Return the side, 0 or 1, of every column where columns meet those of the other side alone.

    The first is -1 where there are no such sides.
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
