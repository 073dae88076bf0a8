"""Slopes by the marginals of functionals, carried back to their sites and to the prior of f."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.solver import Pullback

__all__ = ["LatentPullback"]


class LatentPullback(Pullback):
    """Transposed derivative of variances v = diag(A S A') and means, S that of f.

    With the sites fixed S changes with K by D dK D', D = K^-1 S taken from the left, and the mean
    by A D' dK A' weights.

    Parameters
    ----------
    covariance : ndarray, shape (N, N)
        Posterior covariance of the functionals.
    K : ndarray, shape (n, n)
    functionals : Functionals
    tau : ndarray, shape (N,)
    solution : tuple of ndarray
        Weights and means of the functionals.
    """

    def __init__(
        self,
        covariance: Array,
        K: Array,
        functionals: Functionals,
        tau: Array,
        solution: tuple[Array, Array],
    ) -> None:
        self._S, self._K, self._rows, self._tau = covariance, K, functionals, tau
        self._weights, self._mean = solution

    def to_sites(self, by_variance: Array, by_mean: Array) -> Array:
        back = self._S @ by_mean
        squared = (self._S * self._S) @ by_variance
        return np.array([-squared - self._mean * back, back])

    def to_prior(self, by_variance: Array, by_mean: Array) -> Array:
        # v_i = a' S a, S = (K^-1 + H)^-1: dS = (I + K H)^-1 dK (I + H K)^-1.
        rows, H = self._rows, self._rows.precision(self._tau)
        across = np.linalg.solve((np.eye(len(H)) + self._K @ H).T, rows.back(np.eye(rows.n)))
        M: Array = (across * by_variance) @ across.T
        to_mean, weights = across @ by_mean, rows.back(self._weights)
        M += 0.5 * (np.outer(to_mean, weights) + np.outer(weights, to_mean))
        return M
