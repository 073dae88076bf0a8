"""What inducing points make of rows, and the two products with them that take most of the time.

Both are over pairs of classes: sums over rows of w_i phi_ic phi_id', and phi_ic' V_cd phi_id of a
row. Where all classes have one kernel, phi phi' of a row is formed once for all pairs of classes,
of M (M + 1)/2 numbers: half the operations, and one product of matrices for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qpruntime.arrays import Array

__all__ = ["Features", "features_of"]

# Numbers that are formed at once, of rows that are multiplied together.
_TOGETHER = 1_500_000


class Features:
    """What inducing points make of N rows.

    Parameters
    ----------
    phi : sequence of ndarray, shape (N, M)
        One for each class, or one for all.
    rest : ndarray, shape (C, N) or (1, N)
        Variances that they leave out.
    classes : int
        C.
    """

    def __init__(self, phi: Sequence[Array], rest: Array, classes: int) -> None:
        self.phi, self.rest, self.classes = tuple(phi), rest, classes

    @property
    def shape(self) -> tuple[int, int]:
        """N and M."""
        n, m = self.phi[0].shape
        return n, m

    def of(self, c: int) -> Array:
        """Those of a class."""
        return self.phi[c % len(self.phi)]

    def chunks(self, width: int) -> Iterator[slice]:
        """Rows to be multiplied at once, of so many numbers each."""
        step = max(64, _TOGETHER // width)
        for first in range(0, self.shape[0], step):
            yield slice(first, first + step)

    def precision(self, own: Array, shared: Array) -> Array:
        """I + sum_i w_icd phi_ic phi_id', (C M, C M), of which the upper blocks are filled.

        The weight of a pair of classes is -shared_c shared_d, that of a class with itself `own`,
        both of shape (C, N).
        """
        C, (_, m) = self.classes, self.shape
        P = np.zeros((C * m, C * m))
        for some in self.chunks(C * m):
            for c in range(C):
                weights = -shared[c, some] * shared[c:, some]
                weights[0] = own[c, some]
                scaled = [self.of(c + k)[some] * w[:, None] for k, w in enumerate(weights)]
                P[c * m : (c + 1) * m, c * m :] += self.of(c)[some].T @ np.hstack(scaled)
        P.flat[:: C * m + 1] += 1.0
        return P

    def quadratic(self, covariance: Array) -> Array:
        """Covariances phi_ic' V_cd phi_id of rows, shape (N, C, C), for V (C M, C M)."""
        C, (n, m) = self.classes, self.shape
        found = np.empty((n, C, C))
        for some in self.chunks(C * m):
            for c in range(C):
                reached = self.of(c)[some] @ covariance[c * m : (c + 1) * m, c * m :]
                for d in range(c, C):
                    part = reached[:, (d - c) * m : (d - c + 1) * m]
                    found[some, c, d] = np.einsum("nm,nm->n", part, self.of(d)[some])
                    found[some, d, c] = found[some, c, d]
        return found

    def collected(self, values: Array) -> Array:
        """Sum of phi_ic values_ic over rows, one class after the other, shape (C M,)."""
        return np.concatenate([self.of(c).T @ one for c, one in enumerate(values)])

    def spread(self, weights: Array) -> Array:
        """phi_ic' w_c, shape (C, N)."""
        parts = weights.reshape(self.classes, -1)
        return np.array([self.of(c) @ one for c, one in enumerate(parts)])


class _Shared(Features):
    """Features of one kernel for all classes."""

    def _products(self) -> Iterator[tuple[slice, Array]]:
        """Rows, and phi_k phi_l of them for k <= l, shape (M (M + 1)/2, n)."""
        m = self.shape[1]
        for some in self.chunks(m * (m + 1) // 2):
            phi = np.ascontiguousarray(self.phi[0][some].T)
            found, first = np.empty((m * (m + 1) // 2, phi.shape[1])), 0
            for k in range(m):
                np.multiply(phi[k:], phi[k], out=found[first : first + m - k])
                first += m - k
            yield some, found

    def precision(self, own: Array, shared: Array) -> Array:
        C, (_, m) = self.classes, self.shape
        one, other = np.triu_indices(C)
        diagonal = one == other
        # The longer side first: three times as quick as the other way round.
        sums = np.zeros((m * (m + 1) // 2, one.size))
        for some, products in self._products():
            weights = -shared[one, some] * shared[other, some]
            weights[diagonal] = own[:, some]
            sums += products @ np.ascontiguousarray(weights.T)
        P, (low, high) = np.zeros((C * m, C * m)), np.triu_indices(m)
        for c, d, row in zip(one, other, sums.T, strict=True):
            block = P[c * m : (c + 1) * m, d * m : (d + 1) * m]
            block[low, high] = block[high, low] = row
        P.flat[:: C * m + 1] += 1.0
        return P

    def quadratic(self, covariance: Array) -> Array:
        C, (n, m) = self.classes, self.shape
        one, other = np.triu_indices(C)
        low, high = np.triu_indices(m)
        packed = np.empty((one.size, low.size))
        for row, c, d in zip(packed, one, other, strict=True):
            block = covariance[c * m : (c + 1) * m, d * m : (d + 1) * m]
            row[:] = np.where(low == high, 0.5, 1.0) * (block[low, high] + block[high, low])
        found, across = np.empty((n, C * C)), np.ascontiguousarray(packed.T)
        for some, products in self._products():
            values = products.T @ across
            found[some, one * C + other] = values
            found[some, other * C + one] = values
        return found.reshape(n, C, C)


def features_of(phi: Sequence[Array], rest: Array, classes: int) -> Features:
    """Return what inducing points make of rows, by the quicker of two ways."""
    return (_Shared if len(phi) == 1 else Features)(phi, rest, classes)
