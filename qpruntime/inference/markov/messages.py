"""Messages as they are kept in rows of numbers, and as vectors and matrices.

A message ahead is N(m, P), one behind exp(eta' x - x' J x / 2); how `pair`, `trio` and `wide` write
them down is said there.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.state_space import StateSpace

__all__ = ["factored", "multiplied", "opening", "read", "width", "written"]


def width(space: StateSpace) -> int:
    """Numbers of a message."""
    d = space.dimension
    return 5 if space.pair is not None else d + d * (d + 1) // 2


def opening(space: StateSpace, begin: float) -> Array:
    """Messages that a series begins and ends with, (2, width): its prior, and nothing."""
    start = np.asarray(space.arrays(begin)[-1])
    zero = np.zeros(space.dimension)
    return np.array([written(space, zero, start, True), written(space, zero, 0.0 * start, False)])


def written(space: StateSpace, vector: Array, matrix: Array, ahead: bool) -> Array:
    """Return a message as a row of numbers."""
    d = vector.size
    if space.trio is not None:
        return factored(vector, matrix, ahead)
    if space.pair is None:
        return np.concatenate([vector, matrix[np.tril_indices(d)]])
    v, M = np.zeros(2), np.zeros((2, 2))
    v[:d], M[:d, :d] = vector, matrix
    if ahead:
        slope = M[0, 1] / M[0, 0] if M[0, 0] != 0.0 else 0.0
        return np.array([*v, M[0, 0], slope, M[1, 1] - slope * M[0, 1]])
    slope = M[0, 1] / M[1, 1] if M[1, 1] != 0.0 else 0.0
    return np.array([*v, M[0, 0] - slope * M[0, 1], M[1, 1], slope])


def read(space: StateSpace, row: Array, ahead: bool) -> tuple[Array, Array]:
    """Return the vector and the matrix of a message."""
    d = space.dimension
    if space.trio is not None:
        return multiplied(row, d, ahead)
    if space.pair is None:
        M = np.zeros((d, d))
        M[np.tril_indices(d)] = row[d:]
        return row[:d], np.tril(M) + np.tril(M, -1).T
    if ahead:
        D, c, s = row[2:]
        both = np.array([[D, D * c], [D * c, s + c * c * D]])
    else:
        sigma, E, g = row[2:]
        both = np.array([[sigma + E * g * g, E * g], [E * g, E]])
    return row[:d], both[:d, :d]


def factored(vector: Array, matrix: Array, ahead: bool) -> Array:
    """A message in factors, as `trio` and `careful` keep it.

    Ahead m and L diag(p) L', behind z and U diag(e) U' = J, eta = U z: the vector, and a triangle
    with the diagonal in it.
    """
    # U diag(e) U' is L diag(e) L' of the states in reverse.
    turn = slice(None, None, 1 if ahead else -1)
    d = vector.size
    rest, L, D = matrix[turn, turn].astype(float), np.eye(d), np.zeros(d)
    for k in range(d):
        # Less is a rounding of the matrix.
        if abs(rest[k, k]) > 1e-15 * abs(matrix[turn, turn][k, k]):
            D[k] = rest[k, k]
            L[k:, k] = rest[k:, k] / D[k]
            rest = rest - D[k] * np.outer(L[:, k], L[:, k])
    L, D = L[turn, turn], D[turn]
    kept = L if ahead else L.T
    inside = vector if ahead else np.linalg.solve(L, vector)
    return np.concatenate([inside, (kept - np.eye(d) + np.diag(D))[np.tril_indices(d)]])


def multiplied(row: Array, d: int, ahead: bool) -> tuple[Array, Array]:
    """Vector and matrix of d states of a message in factors."""
    L = np.zeros((d, d))
    L[np.tril_indices(d)] = row[d:]
    D = np.diag(L.diagonal())
    L[np.diag_indices(d)] = 1.0
    if ahead:
        return row[:d], L @ D @ L.T
    return L.T @ row[:d], L.T @ D @ L
