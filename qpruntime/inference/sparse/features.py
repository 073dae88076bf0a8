"""Inducing inputs under one kernel: the factor of k(Z, Z), and what it makes of rows."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.sparse.blas import divide
from qpruntime.kernels.cross import contract_square, cross_covariance, diagonal

__all__ = ["MOST_JITTER", "Inducing"]

#: More jitter than this, relative to the variance, is no rounding any more.
MOST_JITTER = 1e-4


class Inducing:
    """Inducing inputs Z (M, d) of a kernel.

    Parameters
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    jitter : float
        Least relative lift of the diagonal of k(Z, Z); times ten, at most `MOST_JITTER`, until it
        has a factor.
    dtype : dtype
        Of the features of rows; the factor is computed in float64.

    Attributes
    ----------
    L : ndarray, shape (M, M)
        Lower factor of k(Z, Z) + jitter variance I, the mean variance at Z.
    jitter : float
        What it took.

    Raises
    ------
    NumericalError
        If k(Z, Z) has no factor.
    """

    def __init__(
        self, kernel: Any, Z: Array, jitter: float = 1e-8, dtype: DTypeLike = np.float64
    ) -> None:
        self.kernel, self.Z, self.dtype = kernel, Z, np.dtype(dtype)
        self.least = jitter
        K = cross_covariance(kernel, Z, Z)
        variance = float(np.mean(K.diagonal()))
        if not np.isfinite(K).all() or not variance > 0.0:
            raise NumericalError(
                f"the kernel has no finite, positive variances at the inducing inputs: {kernel}"
            )
        self.L, self.jitter = _factor(K, variance, jitter)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rounded"}

    @property
    def size(self) -> int:
        """Number of inducing inputs."""
        return len(self.Z)

    @cached_property
    def rounded(self) -> Any:
        """The factor in the dtype of the features."""
        return self.L.astype(self.dtype, copy=False)

    def on(self, kernel: Any, Z: Array) -> Inducing:
        """Return the same factor for the same inputs in other units, in which the kernel is."""
        moved = copy.copy(self)
        moved.kernel, moved.Z = kernel, Z
        return moved

    def in_dtype(self, dtype: DTypeLike) -> Inducing:
        """Return the same factor for features of another dtype."""
        moved = copy.copy(self)
        moved.__dict__.pop("rounded", None)
        moved.dtype = np.dtype(dtype)
        return moved

    def features(self, X: Array, out: Any = None) -> tuple[Any, Array]:
        """Return L^-1 k(Z, x_n) (n, M), and r_n = k(x_n, x_n) less their squares, not negative.

        The features are written to `out`, if it is given.
        """
        phi = divide(cross_covariance(self.kernel, X, self.Z, self.dtype, out), self.rounded)
        rest = diagonal(self.kernel, X) - np.einsum("nm,nm->n", phi, phi)
        return phi, np.maximum(rest, 0.0, out=rest)

    def slopes(self, S: Array) -> tuple[Array, Array]:
        """Sum of S * dk(Z, Z), by theta and by Z, jitter and all, for symmetric S (M, M)."""
        lifted = S + np.diag(np.full(self.size, self.jitter * np.trace(S) / self.size))
        return contract_square(self.kernel, self.Z, lifted)


def _factor(K: Array, variance: float, jitter: float) -> tuple[Array, float]:
    """Return the lower factor of K + jitter variance I, and the jitter that it took."""
    while True:
        try:
            L = np.linalg.cholesky(K + jitter * variance * np.eye(len(K)))
            if np.isfinite(L).all():
                return np.ascontiguousarray(L), jitter
        except np.linalg.LinAlgError:
            pass
        if jitter >= MOST_JITTER:
            raise NumericalError(
                f"the covariance of the {len(K)} inducing inputs is not positive definite, even "
                f"with {jitter:g} of the variance on its diagonal: the kernel is none"
            )
        jitter = min(max(10.0 * jitter, 1e-12), MOST_JITTER)
