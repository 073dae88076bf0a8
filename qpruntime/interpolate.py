"""Table lookups as numba kernels: a value, and whether the argument was inside."""

from __future__ import annotations

import math

from qpruntime.jit import kernel

__all__ = ["bilinear"]


@kernel
def bilinear(values, axes, row, mu, log10_sigma):
    """Bilinear interpolation in slab `row` of a grid; return (value, inside).

    `axes` holds start, stop and nodes per unit of mu, then the same of log10 sigma. All four
    edges are inside; NaN is outside.
    """
    if not (axes[0] <= mu <= axes[1] and axes[3] <= log10_sigma <= axes[4]):
        return math.nan, False
    t = (mu - axes[0]) * axes[2]
    u = (log10_sigma - axes[3]) * axes[5]
    i = min(int(t), values.shape[1] - 2)
    j = min(int(u), values.shape[2] - 2)
    t -= i
    u -= j
    low = values[row, i, j] + u * (values[row, i, j + 1] - values[row, i, j])
    high = values[row, i + 1, j] + u * (values[row, i + 1, j + 1] - values[row, i + 1, j])
    return low + t * (high - low), True
