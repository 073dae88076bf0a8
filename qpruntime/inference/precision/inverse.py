"""Entries of the inverse where the factor has numbers (Takahashi, Fagan & Chin, 1973).

Supernodes from the last: of the rows below R and the columns J, with Y = L_RJ L_JJ^-1,
Z_RJ = -Z_RR Y and Z_JJ = (L_JJ L_JJ^T)^-1 - Y^T Z_RJ. Z_RR stands in the panels of ancestors.
"""

from __future__ import annotations

import numpy as np

from qpruntime.inference.precision.blas import dgemm, dpotri, dsymm, dtrsm
from qpruntime.jit import contracted

__all__ = ["selected_inverse"]

_SMALL = 300


@contracted
def selected_inverse(shape, panels, inverse, routines, widest):
    """Fill the panels of the inverse from those of the factor.

    Lower triangles alone, as of the factor. `widest` has the largest number of rows below, and the
    largest of these times columns.
    """
    first, begins, below = shape[0], shape[1], shape[2]
    most, product = widest
    W, Y = np.empty(most * most), np.empty(product)
    local, info = np.empty(most, np.int64), np.zeros(1, np.int32)
    at, to, w, y = panels.ctypes.data, inverse.ctypes.data, W.ctypes.data, Y.ctypes.data
    for s in range(first.size - 2, -1, -1):
        c0 = first[s]
        nc, b0 = first[s + 1] - c0, below[s]
        nr = below[s + 1] - b0
        ld, p0 = nc + nr, begins[s]
        gather(shape, inverse, b0, nr, local, W)
        if nc == 1 and nr * nr < _SMALL:
            single(panels, inverse, p0, nr, W, Y)
            continue
        for j in range(nc):
            for i in range(j, nc):
                inverse[p0 + j * ld + i] = panels[p0 + j * ld + i]
            for i in range(nr):
                Y[j * nr + i] = panels[p0 + j * ld + nc + i]
        dpotri(routines, nc, to + 8 * p0, ld, info.ctypes.data)
        if nr:
            low = to + 8 * (p0 + nc)
            dtrsm(routines, False, False, nr, nc, at + 8 * p0, ld, y, nr)
            dsymm(routines, nr, nc, -1.0, w, nr, y, nr, 0.0, low, ld)
            dgemm(routines, True, False, nc, nc, nr, -1.0, y, nr, low, ld, 1.0, to + 8 * p0, ld)


@contracted
def gather(shape, inverse, b0, nr, local, W):
    """Fill the lower triangle of Z_RR, column-major, by merging lists of rows."""
    first, begins, below, rows, owner, _ = shape
    i = 0
    while i < nr:
        s = owner[rows[b0 + i]]
        c0, end = first[s], first[s + 1]
        nc = end - c0
        ld = nc + below[s + 1] - below[s]
        j = i
        while j < nr and rows[b0 + j] < end:
            local[j] = rows[b0 + j] - c0
            j += 1
        p = below[s]
        for k in range(j, nr):
            row = rows[b0 + k]
            while rows[p] < row:
                p += 1
            local[k] = nc + p - below[s]
        for a in range(i, j):
            column = begins[s] + local[a] * ld
            for b in range(a, nr):
                W[a * nr + b] = inverse[column + local[b]]
        i = j


@contracted
def single(panels, inverse, p0, nr, W, Y):
    """Selected inverse of a panel of one column."""
    scale = 1.0 / panels[p0]
    for i in range(nr):
        Y[i] = panels[p0 + 1 + i] * scale
        inverse[p0 + 1 + i] = 0.0
    for a in range(nr):
        y, total = Y[a], W[a * nr + a] * Y[a]
        for b in range(a + 1, nr):
            value = W[a * nr + b]
            total += value * Y[b]
            inverse[p0 + 1 + b] -= value * y
        inverse[p0 + 1 + a] -= total
    left = scale * scale
    for i in range(nr):
        left -= Y[i] * inverse[p0 + 1 + i]
    inverse[p0] = left
