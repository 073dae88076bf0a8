"""Linear algebra that corrects many points at once, each by its own k nearest places.

Each point is the last of k + 1 latent values h; the first k are those at its places. A and Q are
phi B^-1 phi^T and phi phi^T among the k + 1, and K has the lower triangles of their prior
covariances. Kernels loop over points and leave a status for each. The matrices are so small that
calls of BLAS would take twice as long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import contracted, summed
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.sparse.rows import Rows

__all__ = ["Left", "marginals", "products", "without_sites"]


class Left(NamedTuple):
    """Gaussian of h at the places and the point without the sites of the places.

    `V` has shape (b, k + 1, k + 1), `mean` (b, k + 1); both are undefined if not `good`.
    """

    V: Array
    mean: Array
    good: NDArray[np.bool_]


def products(slots: NDArray[np.intp], features: Rows, star: Rows) -> Array:
    """Return x x^T (b, k + 1, k + 1) of features (P, M) at slots (b, k), and of a star (b, M)."""
    b, k = slots.shape
    out = np.empty((b, k + 1, k + 1))
    _products(slots, features, np.ascontiguousarray(star, features.dtype), out)
    return out


def without_sites(A: Array, Q: Array, K: Array, mean: Array, T: Array, N: Array) -> Left:
    """Remove the sites (T, N), shape (b, k), of the places from w, and add the residual K - Q.

    `mean` (b, k + 1) is that of phi^T w. T is not negative.
    """
    V, cavity_mean = np.empty(A.shape), np.empty(mean.shape)
    good = np.empty(len(A), np.bool_)
    k = T.shape[1]
    rooms = np.zeros((k, k)), np.zeros((k, k + 2)), np.zeros(k + 1)
    _without(A, Q, K, mean, np.sqrt(T), N, V, cavity_mean, good, rooms)
    return Left(V, cavity_mean, good)


def marginals(cavity: Left, tau: Array, nu: Array) -> tuple[Array, Array]:
    """Multiply by sites (b, k) of h, and return means and variances (b,) of the points."""
    b, k = tau.shape
    moments = np.empty((2, b))
    rooms = np.zeros((k, k)), np.zeros((k, 2)), np.zeros(k)
    _marginals(cavity.V, cavity.mean, np.sqrt(tau), tau, nu, moments, rooms)
    return moments[0], moments[1]


@summed
def _products(slots: IntArray, features: Array, star: Array, out: Array) -> None:
    """Gather the features of a point and its places, then multiply tiles of three rows."""
    b, k = slots.shape
    rows = 3 * ((k + 3) // 3)
    room = np.zeros((rows, features.shape[1]), features.dtype)
    tiles = np.empty((rows, rows), features.dtype)
    for s in range(b):
        for j in range(k):
            slot = slots[s, j]
            for p in range(features.shape[1]):
                room[j, p] = features[slot, p]
        for p in range(features.shape[1]):
            room[k, p] = star[s, p]
        for i in range(0, rows, 3):
            for j in range(0, i + 1, 3):
                _tile(room, i, j, tiles)
        for i in range(k + 1):
            for j in range(i + 1):
                out[s, i, j] = tiles[i, j]
                out[s, j, i] = tiles[i, j]


@summed
def _tile(rows: Array, i: int, j: int, out: Array) -> None:
    """Fill products of three rows with three, the fastest of tiles of 2 to 6 by 2 to 4."""
    a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = rows.dtype.type(0)
    for p in range(rows.shape[1]):
        x, y, z = rows[i, p], rows[i + 1, p], rows[i + 2, p]
        u, v, w = rows[j, p], rows[j + 1, p], rows[j + 2, p]
        a0 += x * u
        a1 += x * v
        a2 += x * w
        b0 += y * u
        b1 += y * v
        b2 += y * w
        c0 += z * u
        c1 += z * v
        c2 += z * w
    out[i, j], out[i, j + 1], out[i, j + 2] = a0, a1, a2
    out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2] = b0, b1, b2
    out[i + 2, j], out[i + 2, j + 1], out[i + 2, j + 2] = c0, c1, c2


@contracted
def _factor(square: Array, k: int) -> bool:
    """Replace the lower triangle of (k, k) by its Cholesky factor; return False if it fails."""
    for j in range(k):
        pivot = square[j, j]
        for p in range(j):
            pivot -= square[j, p] * square[j, p]
        if not pivot > 0.0:
            return False
        pivot = np.sqrt(pivot)
        square[j, j] = pivot
        share = 1.0 / pivot
        whole = j + 1 + 4 * ((k - j - 1) // 4)
        for i in range(j + 1, whole, 4):
            a, b, c, d = square[i, j], square[i + 1, j], square[i + 2, j], square[i + 3, j]
            for p in range(j):
                x = square[j, p]
                a -= square[i, p] * x
                b -= square[i + 1, p] * x
                c -= square[i + 2, p] * x
                d -= square[i + 3, p] * x
            square[i, j], square[i + 1, j] = a * share, b * share
            square[i + 2, j], square[i + 3, j] = c * share, d * share
        for i in range(whole, k):
            a = square[i, j]
            for p in range(j):
                a -= square[i, p] * square[j, p]
            square[i, j] = a * share
    return True


@contracted
def _solve(lower: Array, k: int, rows: Array) -> None:
    """Replace rows (k, width) by L^-1 rows."""
    width = rows.shape[1]
    for j in range(k):
        for p in range(j):
            share = lower[j, p]
            for c in range(width):
                rows[j, c] -= share * rows[p, c]
        share = 1.0 / lower[j, j]
        for c in range(width):
            rows[j, c] *= share


@contracted
def _without(
    A: Array,
    Q: Array,
    K: Array,
    mean: Array,
    q: Array,
    N: Array,
    V: Array,
    cavity_mean: Array,
    good: NDArray[np.bool_],
    rooms: Arrays,
) -> None:
    C, Y, row = rooms
    b, k = q.shape
    for s in range(b):
        for i in range(k):
            for j in range(i + 1):
                C[i, j] = -q[s, i] * A[s, i, j] * q[s, j]
            C[i, i] += 1.0
        good[s] = _factor(C, k)
        if not good[s]:
            continue
        # The columns of Y are L^-1 q A of the k + 1 values, and last L^-1 q u for u = m - A N.
        for j in range(k):
            u = mean[s, j]
            for i in range(k):
                u -= A[s, j, i] * N[s, i]
            for i in range(k + 1):
                Y[j, i] = q[s, j] * A[s, j, i]
            Y[j, k + 1] = q[s, j] * u
        _solve(C, k, Y)
        for i in range(k + 1):
            offset = i * (i + 1) // 2
            total = mean[s, i]
            for j in range(k):
                total -= A[s, i, j] * N[s, j]
            for j in range(i + 1):
                row[j] = A[s, i, j] + K[s, offset + j] - Q[s, i, j]
            row[i] = A[s, i, i] + max(K[s, offset + i] - Q[s, i, i], 0.0)
            for p in range(k):
                share = Y[p, i]
                total += share * Y[p, k + 1]
                for j in range(i + 1):
                    row[j] += share * Y[p, j]
            cavity_mean[s, i] = total
            for j in range(i + 1):
                V[s, i, j] = row[j]
                V[s, j, i] = row[j]


@contracted
def _marginals(
    V: Array, prior: Array, root: Array, tau: Array, nu: Array, out: Array, rooms: Arrays
) -> None:
    B, W, pull = rooms
    b, k = root.shape
    for s in range(b):
        for j in range(k):
            pull[j] = nu[s, j] - tau[s, j] * prior[s, j]
        for i in range(k):
            for j in range(i + 1):
                B[i, j] = root[s, i] * V[s, i, j] * root[s, j]
            B[i, i] += 1.0
            total = 0.0
            for j in range(k):
                total += V[s, i, j] * pull[j]
            W[i, 0] = root[s, i] * V[s, i, k]
            W[i, 1] = root[s, i] * total
        if not _factor(B, k):
            out[0, s], out[1, s] = np.nan, np.nan
            continue
        _solve(B, k, W)
        mean, variance = prior[s, k], V[s, k, k]
        for j in range(k):
            mean += V[s, j, k] * pull[j] - W[j, 0] * W[j, 1]
            variance -= W[j, 0] * W[j, 0]
        out[0, s], out[1, s] = mean, variance
