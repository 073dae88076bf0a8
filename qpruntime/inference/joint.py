"""Joint draws of a normal whose covariance may be singular, as that of close points is."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from qpruntime.arrays import Array

__all__ = ["draws"]


def draws(mean: Array, covariance: Array, count: int, rng: np.random.Generator) -> Array:
    """Return draws, shape (count, T), of N(mean, covariance), which is (T, T).

    By its eigenvalues: those that rounding has left below zero count as zero.
    """
    values, vectors = eigh(covariance, check_finite=False)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Array = mean + rng.standard_normal((count, mean.size)) @ root.T
    return found
