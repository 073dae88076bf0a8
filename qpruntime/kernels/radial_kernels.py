"""Compiled loops over radial functions of squared distances."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel, summed
from qpruntime._typing import Array
from qpruntime.kernels import stationary
from qpruntime.kernels.base import MATERN_3, MATERN_5, RBF

__all__ = [
    "contract_squares",
    "fill_radial",
    "squared_distances",
]

# --- Covariances of all pairs

# Every shape is zero, in double precision, at so many length-scales.
_FAR = 760.0
_ROOT_3, _ROOT_5 = math.sqrt(3.0), math.sqrt(5.0)
_THREE, _FIVE = stationary.matern_3_value_and_slope, stationary.matern_5_value_and_slope


@summed
def contract_squares(M: Array, K: Array, squares: Array, rate: float) -> tuple[float, float]:
    """Return the sums of M K and of M K squares rate; of distance 0 or K = 0 none."""
    total, spread = 0.0, 0.0
    n = len(K)
    for i in range(n):
        weights, row, square = M[i], K[i], squares[i]
        for j in range(n):
            product = weights[j] * row[j]
            total += product
            spread += product * square[j] * rate if (row[j] > 0.0) & (square[j] > 0.0) else 0.0
    return total, spread


@summed
def fill_radial(
    distances: Array,
    length: float,
    offset: float,
    level: float,
    kind: int,
    K: Array,
    slope: Array,
) -> None:
    """Fill K = offset + level f(r) and dK/dlog length, of a shape that is compiled."""
    rate = 1.0
    if kind == MATERN_3:
        rate = _ROOT_3
    elif kind == MATERN_5:
        rate = _ROOT_5
    for i in range(len(distances)):
        for j in range(i + 1):
            r = distances[i, j] / length
            k, d = 0.0, 0.0
            if kind == RBF:
                if r < _FAR:
                    t = r * r
                    k = level * math.exp(-0.5 * t)
                    d = t * k
            else:
                u = rate * r
                if u < _FAR:
                    e = level * math.exp(-u)
                    if kind == MATERN_5:
                        k, d = _FIVE(u, e)
                        d *= r * r
                    elif kind == MATERN_3:
                        k, d = _THREE(u, e)
                        d *= r * r
                    else:
                        k, d = e, u * e
            K[i, j] = K[j, i] = offset + k
            slope[i, j] = slope[j, i] = d


# --- Squared distances, exact to rounding


def squared_distances(x: Array, z: Array) -> Array:
    """Return |x_n - z_m|^2 (n, M) of points (n, d) and (M, d), sooner than scipy's cdist."""
    distances = np.empty((len(x), len(z)))
    _squares(np.ascontiguousarray(x), np.ascontiguousarray(z.T), distances)
    return distances


@kernel
def _squares(x: Array, columns: Array, found: Array) -> None:
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
