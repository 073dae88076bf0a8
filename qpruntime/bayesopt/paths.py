"""Functions drawn from a posterior, whole: random features corrected by Matheron's rule.

path(x) = p(x) + k(x, X) (K + noise)^-1 (y - p(X) - e): p a draw from the prior out of random
cosines and sines, e noise. Only p is approximate, and only away from the data.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.kernels.prior_draws import PriorDraws
from qpruntime.kernels.spectrum import stationary_terms

__all__ = ["FEATURES", "Paths"]

#: Pairs of cosine and sine. The median error of the log standard deviation is then .1 at most.
FEATURES = 1000


class Paths:
    """M functions drawn from the posterior of one surrogate.

    Their frequencies are the same, their amplitudes independent.

    Parameters
    ----------
    surrogate : Surrogate
    M : int
    rng : Generator
    features : int
        Pairs of cosine and sine, shared by the terms of the kernel.
    """

    def __init__(
        self, surrogate: Surrogate, M: int, rng: np.random.Generator, features: int = FEATURES
    ) -> None:
        self.surrogate = surrogate
        self.prior = PriorDraws(surrogate.kernel, surrogate.X.shape[1], M, rng, features)
        self.terms, self.W = stationary_terms(surrogate.kernel), self.prior.frequencies
        self.a, self.b, self._constant = self.prior.a, self.prior.b, self.prior.constant
        self._single = self.W.astype(np.float32), np.vstack([self.a, self.b]).astype(np.float32)
        e = math.sqrt(surrogate.noise) * rng.standard_normal((len(surrogate.X), M))
        gap = (surrogate.y - surrogate.mean)[:, None] - self.prior(surrogate.X) - e
        self.weights = surrogate.solve(gap)

    def __call__(self, X: Array) -> Array:
        """All functions at X, shape (T, M)."""
        s = self.surrogate
        return s.mean + self.prior(X) + s.covariance(X, s.X) @ self.weights

    def coarse(self, X: Array) -> Array:
        """The same to about five digits, in an eighth of the time."""
        s = self.surrogate
        W, both = self._single
        phase = X.astype(np.float32) @ W
        waves = np.empty((len(X), 2 * phase.shape[1]), dtype=np.float32)
        np.cos(phase, out=waves[:, : phase.shape[1]])
        np.sin(phase, out=waves[:, phase.shape[1] :])
        return s.mean + self._constant + waves @ both + s.covariance(X, s.X) @ self.weights

    def slope(self, x: Array, m: int) -> tuple[float, Array]:
        """Value and gradient (d,) of function m at one point x (d,)."""
        s = self.surrogate
        phase = x @ self.W
        cos, sin = np.cos(phase), np.sin(phase)
        value = s.mean + self._constant[m] + cos @ self.a[:, m] + sin @ self.b[:, m]
        gradient = self.W @ (cos * self.b[:, m] - sin * self.a[:, m])
        if len(s.X):
            k, dk = self._kernel_slope(x)
            value += k @ self.weights[:, m]
            gradient = gradient + self.weights[:, m] @ dk
        return float(value), gradient

    def _kernel_slope(self, x: Array) -> tuple[Array, Array]:
        """k(x, X), shape (n,), and its gradient in x, shape (n, d)."""
        s = self.surrogate
        k, dk = np.zeros(len(s.X)), np.zeros(s.X.shape)
        for term in self.terms:
            value, slope = term.slope(x, s.X)
            k += value
            dk += slope
        return k, dk
