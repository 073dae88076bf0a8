"""What a posterior keeps of its factorisation: as much as prediction and the gradient need.

Inference leaves K, the factor and its inverse behind, 3 N^2 numbers. A prediction takes the weights
and the factor, the gradient of the evidence an inverse that is as soon computed again. A pickle
holds the one triangle of the factor that is not zero, N^2/2 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg.lapack import dtpttr, dtrttp

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense import tiles
from qpruntime.inference.dense.factor import Factor, Triangle
from qpruntime.inference.dense.triangles import mirror_upper
from qpruntime.validation import finite, real

__all__ = ["Kept"]


class Kept(Triangle):
    """The triangle of a `Factor`, and the solution: `weights` and `mean`, each of shape (N,).

    Parameters
    ----------
    factor : Factor
        Not changed; the triangle is shared with it.
    """

    def __init__(self, factor: Factor) -> None:
        self.weights, self.mean = factor.weights, factor.mean
        self.root, self.lower = factor.root, factor.lower
        self.negative, self._small, self._reach = factor.negative, factor._small, factor._reach

    def inner(self) -> Array:
        """Return (K + diag(1/tau))^-1, shape (N, N); computed anew, and not kept."""
        inverse = tiles.square(tiles.inverse_triangle(self.lower))
        mirror_upper(inverse.T)
        return self.inner_from(inverse)

    def predict(
        self, K_star: ArrayLike, k_star_diag: ArrayLike, mean: ArrayLike
    ) -> tuple[Array, Array]:
        """Latent mean and variance at T new points; see `Posterior.predict`."""
        K_star = real(K_star, "K_star")
        if K_star.ndim != 2 or K_star.shape[1] != self.root.size:
            raise InputError(
                f"K_star must have shape (T, {self.root.size}), one column per training point; "
                f"got {K_star.shape}"
            )

        def moments(some: slice) -> tuple[Array, Array]:
            rows = K_star[some]
            if not np.isfinite(rows).all():
                finite(K_star, "K_star")
            with np.errstate(over="ignore", invalid="ignore"):
                return rows @ self.weights, self.reduction(rows)

        centre, reduction = in_blocks(moments, len(K_star), self.root.size)
        prior, offset = finite(k_star_diag, "k_star_diag"), finite(mean, "mean")
        for name, given in (("k_star_diag", prior), ("mean", offset)):
            if given.shape not in ((), centre.shape):
                raise InputError(f"{name} must have shape {centre.shape}, got {given.shape}")
        centre += offset
        variance = np.maximum(prior - reduction, 0.0)
        if not (np.isfinite(centre).all() and np.isfinite(variance).all()):
            raise NumericalError(
                "a prediction is beyond double precision: K_star does not belong to this "
                "posterior, or the latent function has to be rescaled"
            )
        return centre, variance

    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Gradient of the log evidence, given the derivative of K; see `Posterior`."""
        dK = finite(dK, "dK")
        n = self.mean.size
        if dK.shape[:2] != (n, n):
            raise InputError(f"dK must begin with {(n, n)}, got shape {dK.shape}")
        inner = np.outer(self.weights, self.weights) - self.inner()
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = 0.5 * np.tensordot(inner, dK, axes=([0, 1], [0, 1]))
        if not np.isfinite(gradient).all():
            raise NumericalError("the gradient is beyond double precision: rescale dK")
        return float(gradient) if gradient.ndim == 0 else gradient

    def __getstate__(self) -> dict[str, Any]:
        packed, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"lower": packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.lower, _ = dtpttr(self.root.size, state["lower"], uplo="L")
