"""Slopes by the marginals of a dense posterior, carried back to its sites and to K."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.solver import Pullback

__all__ = ["DensePullback"]


class DensePullback(Pullback):
    """Transposed derivative of variances v and means m, for S the posterior covariance.

    With the prior fixed dv = -(S * S) dtau and dm = S (dnu - mean dtau). With the sites fixed S
    changes with K by A dK A', and the mean by A dK weights, for A' = K^-1 S = I - diag(tau) S.
    """

    def __init__(self, factor: Factor, tau: Array, kept: Array) -> None:
        self._tau, self._kept = tau, kept
        self._mean, self._weights = factor.mean, factor.weights
        self._S = factor.covariance()
        self._squared = self._S * self._S

    def to_sites(self, by_variance: Array, by_mean: Array) -> Array:
        back = self._S @ by_mean
        return np.array([-(self._squared @ by_variance) - self._mean * back, back])

    def to_prior(self, by_variance: Array, by_mean: Array) -> Array:
        # The diagonal of A is known; as I - (K + 1/tau)^-1 K it would cancel under a vast prior.
        A = -self._tau[:, None] * self._S
        A.flat[:: len(A) + 1] = self._kept
        M: Array = (A * by_variance) @ A.T
        to_mean = A @ by_mean
        M += 0.5 * (np.outer(to_mean, self._weights) + np.outer(self._weights, to_mean))
        return M
