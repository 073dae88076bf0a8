"""Squared distances between rows and inducing inputs, exact to rounding however close these are."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = ["squared_distances"]


def squared_distances(x: Array, z: Array) -> Array:
    """Return |x_n - z_m|^2 (n, M) of points (n, d) and (M, d), sooner than scipy's cdist."""
    found = np.empty((len(x), len(z)))
    _squares(np.ascontiguousarray(x), np.ascontiguousarray(z.T), found)
    return found


@kernel
def _squares(x, columns, found):
    """Feature by feature along a row of `found`, where processors take several at once."""
    n, d = x.shape
    m = columns.shape[1]
    for i in range(n):
        for j in range(m):
            step = x[i, 0] - columns[0, j]
            found[i, j] = step * step
        for k in range(1, d):
            at = x[i, k]
            for j in range(m):
                step = at - columns[k, j]
                found[i, j] += step * step
