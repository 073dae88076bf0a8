"""Mixtures of normals over nodes of hyper-parameters: moments, probabilities and quantiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from qpruntime.arrays import Array

__all__ = ["Mixture"]

# Bisections of a quantile: from some standard deviations to rounding.
_HALVINGS = 60


class Mixture(NamedTuple):
    """R numbers, each a mixture of J normals.

    Attributes
    ----------
    mean, variance : ndarray, shape (J, R)
    weights : ndarray, shape (J,)
        They sum to 1.
    """

    mean: Array
    variance: Array
    weights: Array

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        centre = self.weights @ self.mean
        return centre, self.weights @ (self.variance + (self.mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,) or one number."""
        z = (limit - self.mean) / np.sqrt(np.maximum(self.variance, 1e-300))
        found: Array = self.weights @ ndtr(z)
        return found

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (R, Q), by bisection."""
        std = np.sqrt(np.maximum(self.variance, 0.0))
        found = np.empty((self.mean.shape[1], len(q)))
        for k, level in enumerate(q):
            each = self.mean + std * ndtri(level)
            low, high = each.min(axis=0), each.max(axis=0)
            for _ in range(_HALVINGS if len(self.weights) > 1 else 0):
                middle = 0.5 * (low + high)
                short = self.below(middle) < level
                low, high = np.where(short, middle, low), np.where(short, high, middle)
            found[:, k] = 0.5 * (low + high)
        return found
