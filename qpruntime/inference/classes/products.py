"""Products of the blocks of classes: loops over N x N matrices."""

from __future__ import annotations

import numpy as np

from qpruntime.inference.dense.triangles import mirror_upper
from qpruntime.jit import kernel, summed

__all__ = ["products_of_rows", "scale_and_add"]


@kernel
def scale_and_add(upper, root, E, total):
    """Fill E = R B^-1 R, of the upper triangle of B^-1, and add its upper triangle to `total`."""
    n = root.size
    for i in range(n):
        scale, row, right, out, sums = root[i], upper[i, i:], root[i:], E[i, i:], total[i, i:]
        for j in range(n - i):
            out[j] = scale * row[j] * right[j]
            sums[j] += out[j]
    mirror_upper(E)


@summed
def products_of_rows(a, b):
    """Inner products of the rows of two matrices, shape (N,)."""
    n, width = a.shape
    out = np.empty(n)
    for i in range(n):
        total, first, second = 0.0, a[i], b[i]
        for j in range(width):
            total += first[j] * second[j]
        out[i] = total
    return out
