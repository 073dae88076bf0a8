"""Functions drawn from a posterior, whole: random features corrected by Matheron's rule.

path(x) = p(x) + k(x, X) (K + noise)^-1 (y - p(X) - e): p a draw from the prior out of random
cosines and sines, e noise. Only p is approximate, and only away from the data.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import InputError

__all__ = ["FEATURES", "Paths", "Term", "terms"]

#: Pairs of cosine and sine. The median error of the log standard deviation is then .1 at most.
FEATURES = 1000


class Term(NamedTuple):
    """variance times a stationary correlation: nu is that of Matern, inf for RBF, 0 a constant."""

    variance: float
    length: Array
    nu: float


def terms(kernel: Any, variance: float = 1.0) -> list[Term]:
    """Return the terms of a kernel whose spectrum is known, or raise `InputError`."""
    name = type(kernel).__name__
    if name == "Sum":
        return terms(kernel.k1, variance) + terms(kernel.k2, variance)
    if name == "Product":
        for one, other in ((kernel.k1, kernel.k2), (kernel.k2, kernel.k1)):
            if type(one).__name__ == "ConstantKernel":
                return terms(other, variance * one.constant_value)
    if name == "ConstantKernel":
        return [Term(variance * kernel.constant_value, np.ones(1), 0.0)]
    if name == "WhiteKernel":
        return []
    if name == "RBF":
        return [Term(variance, np.atleast_1d(kernel.length_scale), math.inf)]
    if name == "Matern":
        return [Term(variance, np.atleast_1d(kernel.length_scale), float(kernel.nu))]
    raise InputError(
        f"functions cannot be drawn with the kernel {kernel}: its spectrum is not known; use "
        "RBF, Matern and WhiteKernel, their sums, and products with constants"
    )


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
        self.terms = terms(surrogate.kernel)
        d = surrogate.X.shape[1]
        smooth = [t for t in self.terms if t.nu > 0.0]
        frequencies, scales, self._constant = [], [], np.zeros(M)
        for term in smooth:
            J = max(1, features // len(smooth))
            w = rng.standard_normal((J, d)) / term.length
            if math.isfinite(term.nu):
                w *= np.sqrt(2.0 * term.nu / rng.chisquare(2.0 * term.nu, J))[:, None]
            frequencies.append(w)
            scales.append(np.full(J, math.sqrt(term.variance / J)))
        for term in self.terms:
            if term.nu == 0.0:
                self._constant = self._constant + math.sqrt(term.variance) * rng.standard_normal(M)
        self.W = np.vstack(frequencies).T if smooth else np.zeros((d, 0))
        amplitude = np.concatenate(scales) if smooth else np.zeros(0)
        self.a = amplitude[:, None] * rng.standard_normal((amplitude.size, M))
        self.b = amplitude[:, None] * rng.standard_normal((amplitude.size, M))
        self._single = self.W.astype(np.float32), np.vstack([self.a, self.b]).astype(np.float32)
        e = math.sqrt(surrogate.noise) * rng.standard_normal((len(surrogate.X), M))
        gap = (surrogate.y - surrogate.mean)[:, None] - self.prior(surrogate.X) - e
        self.weights = surrogate.solve(gap)

    def prior(self, X: Array) -> Array:
        """The draws from the prior, without its mean, shape (T, M)."""
        phase = X @ self.W
        return np.cos(phase) @ self.a + np.sin(phase) @ self.b + self._constant

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
            if term.nu == 0.0:
                k += term.variance
                continue
            u = (x - s.X) / term.length
            r2 = np.einsum("nd,nd->n", u, u)
            value, factor = _correlation(r2, term.nu)
            k += term.variance * value
            # factor = -(1/r) d correlation/dr
            dk -= term.variance * factor[:, None] * u / term.length
        return k, dk


def _correlation(r2: Array, nu: float) -> tuple[Array, Array]:
    """Correlation at distance r, and -(1/r) times its derivative."""
    if nu == math.inf:
        value = np.exp(-0.5 * r2)
        return value, value
    r = np.sqrt(r2)
    if nu == 0.5:
        value = np.exp(-r)
        return value, value / np.maximum(r, 1e-12)
    if nu == 1.5:
        t = math.sqrt(3.0) * r
        decay = np.exp(-t)
        return (1.0 + t) * decay, 3.0 * decay
    if nu == 2.5:
        t = math.sqrt(5.0) * r
        decay = np.exp(-t)
        return (1.0 + t + t * t / 3.0) * decay, 5.0 / 3.0 * (1.0 + t) * decay
    from scipy.special import kv

    # r^nu K_nu(r), whose derivative is -r^nu K_(nu - 1)(r).
    t = np.maximum(math.sqrt(2.0 * nu) * r, 1e-10)
    front = 2.0 ** (1.0 - nu) / math.gamma(nu)
    return front * t**nu * kv(nu, t), 2.0 * nu * front * t ** (nu - 1.0) * kv(nu - 1.0, t)
