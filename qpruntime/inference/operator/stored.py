"""What a posterior along an operator keeps: the algebra that predictions of f take.

With H = A' diag(tau) A the posterior precision of f is K^-1 + H. Along coordinates W' f with
H = W diag(h) W' it is that of sites of precision h, one for each: the dense factor serves again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import qr

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import NumericalError
from qpruntime.inference import solver
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.dense.stored import Kept
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.sites import Sites

__all__ = ["LatentAlgebra", "LatentKept", "RowsKept"]


class LatentAlgebra(solver.Kept, ABC):
    """What predictions and the gradient take, whichever side it is computed on.

    Attributes
    ----------
    latent_weights : ndarray, shape (n,)
        K^-1 (posterior mean - prior mean) of f.
    """

    latent_weights: Array

    @abstractmethod
    def reduction(self, K_star: Array) -> Array:
        """Prior less posterior variance at points with covariances `K_star` (T, n) with f."""

    @abstractmethod
    def reduced(self, K_star: Array) -> Array:
        """Prior less posterior covariance (T, T) of them."""

    @abstractmethod
    def inner(self) -> Array:
        """(K + H^-1)^-1, shape (n, n)."""

    def predict(self, *new: Any) -> tuple[Array, Array]:
        """Means and variances at points, of K_star (T, n), prior variances and prior means."""
        K_star, variances, means = new

        def moments(some: slice) -> tuple[Array, Array]:
            rows = K_star[some]
            with np.errstate(over="ignore", invalid="ignore"):
                return rows @ self.latent_weights, self.reduction(rows)

        centre, reduction = in_blocks(moments, len(K_star), self.latent_weights.size)
        variance = np.maximum(variances - reduction, 0.0)
        if not (np.isfinite(centre).all() and np.isfinite(variance).all()):
            raise NumericalError(
                "a prediction is beyond double precision: K_star does not belong to this "
                "posterior, or the latent function has to be rescaled"
            )
        return centre + means, variance

    def slope(self) -> Array:
        """Derivative of the log evidence by K, the sites being fixed, shape (n, n)."""
        found = np.outer(self.latent_weights, self.latent_weights)
        found -= self.inner()
        found *= 0.5
        return found

    def evidence_gradient(self, change: Any) -> Array | float:
        """Slope of the log evidence where K changes so, (n, n) or (n, n, p)."""
        found: Array = np.tensordot(self.slope(), change, axes=([0, 1], [0, 1]))
        return float(found) if found.ndim == 0 else found


class RowsKept(LatentAlgebra):
    """By the factor of the functionals themselves, shape (N, N)."""

    def __init__(self, kept: Kept, functionals: Functionals) -> None:
        self.kept, self.functionals = kept, functionals
        self.latent_weights = functionals.back(kept.weights)

    @property
    def weights(self) -> Array:
        """Weights of the functionals: (A K A')^-1 (posterior mean - prior mean), shape (N,)."""
        return self.kept.weights

    def reduction(self, K_star: Array) -> Array:
        return self.kept.reduction(self._seen(K_star))

    def reduced(self, K_star: Array) -> Array:
        return self.kept.reduced(self._seen(K_star))

    def inner(self) -> Array:
        # (K + H^-1)^-1 = A' (A K A' + diag(1/tau))^-1 A.
        back = self.functionals.back
        return back(np.ascontiguousarray(back(self.kept.inner()).T))

    def _seen(self, K_star: Array) -> Array:
        return np.ascontiguousarray(self.functionals.times(np.ascontiguousarray(K_star.T)).T)


class LatentKept(LatentAlgebra):
    """By the factor of n coordinates of f, found when it is first asked for.

    Parameters
    ----------
    K : ndarray, shape (n, n)
    functionals : Functionals
    tau, weights : ndarray, shape (N,)
        Site precisions, and (A K A')^-1 (posterior mean - prior mean).
    """

    def __init__(self, K: Array, functionals: Functionals, tau: Array, weights: Array) -> None:
        self._K, self._functionals, self._tau, self._weights = K, functionals, tau, weights
        self.latent_weights = functionals.back(weights)

    @property
    def weights(self) -> Array:
        """Weights of the functionals, shape (N,)."""
        return self._weights

    @cached_property
    def _factor(self) -> tuple[Array, Kept]:
        """W, shape (n, c), and the factor along its columns."""
        tau, rows = self._tau, self._functionals.rows
        if not sparse.issparse(rows) and (tau >= 0.0).all():
            upper: Array = qr(rows * np.sqrt(tau)[:, None], mode="r")[0][: len(self._K)]
            across = np.ascontiguousarray(upper.T)
            depth = np.ones(across.shape[1])
        else:
            depth, across = np.linalg.eigh(self._functionals.precision(tau))
            rounded = np.abs(depth) <= len(depth) * np.finfo(float).eps * np.abs(depth).max()
            if (tau >= 0.0).all():
                rounded |= depth < 0.0
            depth, across = depth[~rounded], np.ascontiguousarray(across[:, ~rounded])
        along = across.T @ self._K @ across
        none = np.zeros(depth.size)
        return across, Kept(Factor(0.5 * (along + along.T), Sites(depth, none), none))

    def reduction(self, K_star: Array) -> Array:
        across, kept = self._factor
        return kept.reduction(K_star @ across)

    def reduced(self, K_star: Array) -> Array:
        across, kept = self._factor
        return kept.reduced(K_star @ across)

    def inner(self) -> Array:
        across, kept = self._factor
        found: Array = across @ kept.inner() @ across.T
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_factor": self._factor,
            "_weights": self._weights,
            "latent_weights": self.latent_weights,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
