"""Table lookups as numba kernels: a value, and whether the argument was inside."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import contracted, inlined, kernel

__all__ = ["bilinear", "quintic", "quintic_weights"]

_C1, _C5, _C10, _C20 = 1.0 / 120.0, 5.0 / 120.0, 10.0 / 120.0, 20.0 / 120.0
_C26, _C30, _C50, _C60, _C66 = 26.0 / 120.0, 30.0 / 120.0, 50.0 / 120.0, 60.0 / 120.0, 66.0 / 120.0


@kernel
def bilinear(values, axes, row, mu, log10_sigma):
    """Bilinear interpolation in slab `row` of a grid; return (value, inside).

    `axes` holds start, stop and nodes per unit of mu, then the same of log10 sigma. All four
    edges are inside; NaN is outside. One branch and unsigned indices let the processor run ahead
    over several lookups, whose cache misses are what a dense grid costs: 30 ns against 78.
    """
    inside = (mu >= axes[0]) & (mu <= axes[1]) & (log10_sigma >= axes[3]) & (log10_sigma <= axes[4])
    if not inside:
        return math.nan, False
    t = (mu - axes[0]) * axes[2]
    u = (log10_sigma - axes[3]) * axes[5]
    one = np.uint64(1)
    k = np.uint64(row)
    i = min(np.uint64(t), np.uint64(values.shape[1] - 2))
    j = min(np.uint64(u), np.uint64(values.shape[2] - 2))
    t -= i
    u -= j
    low = values[k, i, j] + u * (values[k, i, j + one] - values[k, i, j])
    high = values[k, i + one, j] + u * (values[k, i + one, j + one] - values[k, i + one, j])
    return low + t * (high - low), True


@contracted
def quintic_weights(t):
    """Values at 0 <= t <= 1 of the six uniform quintic B-splines that are not zero there."""
    # Written without a division, of which six would cost as much as all the rest.
    s = 1.0 - t
    t2, s2 = t * t, s * s
    return (
        s2 * s2 * s * _C1,
        _C26 + t * (-_C50 + t * (_C20 + t * (_C20 + t * (-_C20 + _C5 * t)))),
        _C66 + t2 * (-_C60 + t2 * (_C30 - _C10 * t)),
        _C66 + s2 * (-_C60 + s2 * (_C30 - _C10 * s)),
        _C26 + s * (-_C50 + s * (_C20 + s * (_C20 + s * (-_C20 + _C5 * s)))),
        t2 * t2 * t * _C1,
    )


@inlined
def quintic(values, axes, row, u, v):
    """Quintic spline through slab `row` of a compact table, its arguments held to the axes' ends.

    `values` holds B-spline coefficients, five more than cells along an axis; a second-to-last
    dimension of 1 means a table over `v` alone. `axes` is as for `bilinear`. Unsigned indices
    spare the test for negative ones, and written-out sums let the compiler use vectors. A view of
    one slab would be counted as a reference, with an atomic add that nothing overtakes: 6 ns
    against 25 along one axis.
    """
    b = min(max(v, axes[3]), axes[4])
    b = (b - axes[3]) * axes[5]
    m = values.shape[2] - 5
    j = max(min(int(b), m - 1), 0)  # NaN becomes a negative integer, and gives NaN
    w0, w1, w2, w3, w4, w5 = quintic_weights(b - j)
    k = np.uint64(row)
    one = np.uint64(1)
    j0 = np.uint64(j)
    j1 = j0 + one
    j2 = j1 + one
    j3 = j2 + one
    j4 = j3 + one
    j5 = j4 + one
    if values.shape[1] == 1:
        o = np.uint64(0)
        low = (w0 * values[k, o, j0] + w1 * values[k, o, j1]) + w2 * values[k, o, j2]
        high = (w3 * values[k, o, j3] + w4 * values[k, o, j4]) + w5 * values[k, o, j5]
        return low + high
    a = min(max(u, axes[0]), axes[1])
    a = (a - axes[0]) * axes[2]
    n = values.shape[1] - 5
    i = max(min(int(a), n - 1), 0)
    x0, x1, x2, x3, x4, x5 = quintic_weights(a - i)
    i0 = np.uint64(i)
    i1 = i0 + one
    i2 = i1 + one
    i3 = i2 + one
    i4 = i3 + one
    i5 = i4 + one
    s0 = x0 * values[k, i0, j0] + x1 * values[k, i1, j0] + x2 * values[k, i2, j0]
    s0 += x3 * values[k, i3, j0] + x4 * values[k, i4, j0] + x5 * values[k, i5, j0]
    s1 = x0 * values[k, i0, j1] + x1 * values[k, i1, j1] + x2 * values[k, i2, j1]
    s1 += x3 * values[k, i3, j1] + x4 * values[k, i4, j1] + x5 * values[k, i5, j1]
    s2 = x0 * values[k, i0, j2] + x1 * values[k, i1, j2] + x2 * values[k, i2, j2]
    s2 += x3 * values[k, i3, j2] + x4 * values[k, i4, j2] + x5 * values[k, i5, j2]
    s3 = x0 * values[k, i0, j3] + x1 * values[k, i1, j3] + x2 * values[k, i2, j3]
    s3 += x3 * values[k, i3, j3] + x4 * values[k, i4, j3] + x5 * values[k, i5, j3]
    s4 = x0 * values[k, i0, j4] + x1 * values[k, i1, j4] + x2 * values[k, i2, j4]
    s4 += x3 * values[k, i3, j4] + x4 * values[k, i4, j4] + x5 * values[k, i5, j4]
    s5 = x0 * values[k, i0, j5] + x1 * values[k, i1, j5] + x2 * values[k, i2, j5]
    s5 += x3 * values[k, i3, j5] + x4 * values[k, i4, j5] + x5 * values[k, i5, j5]
    return ((w0 * s0 + w1 * s1) + (w2 * s2 + w3 * s3)) + (w4 * s4 + w5 * s5)
