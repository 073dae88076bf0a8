"""The correction of many points at once, each by its own k nearest places: the linear algebra.

Point i is the last of k + 1 latent values h; the first k are those at its places. A and Q are phi
B^-1 phi^T and phi phi^T among the k + 1, K their prior covariances. Kernels loop over points and
leave a status for each; all that is eliminated is eliminated by rows, which are contiguous.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.jit import contracted, kernel

__all__ = ["Left", "marginals", "products", "without_sites"]


class Left(NamedTuple):
    """Prior of h at the places and the point, once the sites of the places are out.

    `V` has shape (b, k + 1, k + 1), `mean` (b, k + 1); where not `good` there is none.
    """

    V: Array
    mean: Array
    good: NDArray[np.bool_]


def products(slots: NDArray[np.intp], features: Any, star: Any) -> Array:
    """Return x x^T (b, k + 1, k + 1) of features (P, M) at slots (b, k), and of a star (b, M)."""
    b, k = slots.shape
    found = np.empty((b, k + 1, k + 1), features.dtype)
    with one_blas_thread():
        _products(slots, features, np.ascontiguousarray(star, features.dtype), found)
    return found.astype(float)


@kernel
def _products(slots, features, star, found):
    b, k = slots.shape
    room = np.empty((k + 1, features.shape[1]), features.dtype)
    for i in range(b):
        for j in range(k):
            room[j] = features[slots[i, j]]
        room[k] = star[i]
        np.dot(room, room.T, found[i])


def without_sites(A: Array, Q: Array, K: Array, mean: Array, T: Array, N: Array) -> Left:
    """Take the sites (T, N) (b, k) of the places out of w, and let what Q leaves of K be dependent.

    `mean` (b, k + 1) is that of phi^T w. T is not negative.
    """
    V, left = np.empty(A.shape), np.empty(mean.shape)
    good = np.empty(len(A), np.bool_)
    _without(A, Q, K, mean, np.sqrt(T), N, V, left, good)
    return Left(V, left, good)


def marginals(left: Left, tau: Array, nu: Array, last: bool) -> tuple[Array, Array]:
    """Put sites (b, k) of h back; return means and variances (b, k + 1), or of the point alone."""
    mean, variance = np.empty(left.mean.shape), np.empty(left.mean.shape)
    _marginals(left.V, left.mean, np.sqrt(tau), tau, nu, last, mean, variance)
    return (mean[:, -1], variance[:, -1]) if last else (mean, variance)


@contracted
def _factor(square, k):
    """Replace the lower triangle of (k, k) by its Cholesky factor; False if there is none."""
    for j in range(k):
        pivot = square[j, j]
        for p in range(j):
            pivot -= square[j, p] * square[j, p]
        if not pivot > 0.0:
            return False
        pivot = np.sqrt(pivot)
        square[j, j] = pivot
        for i in range(j + 1, k):
            total = square[i, j]
            for p in range(j):
                total -= square[i, p] * square[j, p]
            square[i, j] = total / pivot
    return True


@contracted
def _solve(lower, k, rows, width):
    """Replace rows (k, width) by L^-1 rows."""
    for j in range(k):
        for p in range(j):
            share = lower[j, p]
            for c in range(width):
                rows[j, c] -= share * rows[p, c]
        share = 1.0 / lower[j, j]
        for c in range(width):
            rows[j, c] *= share


@contracted
def _without(A, Q, K, mean, q, N, V, left, good):
    b, k = q.shape
    C, Y = np.empty((k, k)), np.empty((k, k + 2))
    for s in range(b):
        for i in range(k):
            for j in range(i + 1):
                C[i, j] = -q[s, i] * A[s, i, j] * q[s, j]
            C[i, i] += 1.0
        good[s] = _factor(C, k)
        if not good[s]:
            continue
        # Columns of Y are L^-1 q A of the k + 1 values, and last of u = m - A N.
        for j in range(k):
            u = mean[s, j]
            for i in range(k):
                u -= A[s, j, i] * N[s, i]
            for i in range(k + 1):
                Y[j, i] = q[s, j] * A[s, j, i]
            Y[j, k + 1] = q[s, j] * u
        _solve(C, k, Y, k + 2)
        for i in range(k + 1):
            total = mean[s, i]
            for j in range(k):
                total -= A[s, i, j] * N[s, j]
            for j in range(i + 1):
                V[s, i, j] = A[s, i, j] + K[s, i, j] - Q[s, i, j]
            V[s, i, i] = A[s, i, i] + max(K[s, i, i] - Q[s, i, i], 0.0)
            for p in range(k):
                share = Y[p, i]
                total += share * Y[p, k + 1]
                for j in range(i + 1):
                    V[s, i, j] += share * Y[p, j]
            left[s, i] = total
        for i in range(k + 1):
            for j in range(i):
                V[s, j, i] = V[s, i, j]


@contracted
def _marginals(V, prior, root, tau, nu, last, mean, variance):
    b, k = root.shape
    B, W, pull = np.empty((k, k)), np.empty((k, k + 2)), np.empty(k)
    first = k if last else 0
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
            for j in range(first, k + 1):
                W[i, j] = root[s, i] * V[s, i, j]
            W[i, k + 1] = root[s, i] * total
        if not _factor(B, k):
            mean[s, first:], variance[s, first:] = np.nan, np.nan
            continue
        _solve(B, k, W[:, first:], k + 2 - first)
        for i in range(first, k + 1):
            centre, width = prior[s, i], V[s, i, i]
            for j in range(k):
                centre += V[s, i, j] * pull[j] - W[j, i] * W[j, k + 1]
                width -= W[j, i] * W[j, i]
            mean[s, i], variance[s, i] = centre, width
