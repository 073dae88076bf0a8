"""Quadratic forms a' S a of sparse rows, entry by entry: no row of A S is formed."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = ["quadratic_forms"]


def quadratic_forms(rows: Any, S: Array) -> tuple[Array, Array]:
    """Return a' S a of every row, and (sum_j |a_j| sqrt(S_jj))^2, which bounds its terms.

    Parameters
    ----------
    rows : csr_array, shape (N, n)
    S : ndarray, shape (n, n)
        Symmetric, positive semi-definite.
    """
    found, reach = np.empty((2, rows.shape[0]))
    indices, starts = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    _fill(rows.data, indices, starts, np.ascontiguousarray(S), np.sqrt(S.diagonal()), found, reach)
    return found, reach


@kernel
def _fill(data, indices, starts, S, deviation, found, reach):
    for i in range(found.size):
        first, last = starts[i], starts[i + 1]
        form, bound = 0.0, 0.0
        for p in range(first, last):
            row, own = S[indices[p]], data[p]
            for q in range(first, last):
                form += own * data[q] * row[indices[q]]
            bound += abs(own) * deviation[indices[p]]
        found[i], reach[i] = form, bound * bound
