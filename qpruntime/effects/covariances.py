"""Covariances S = D R D of the d numbers of a group, by free parameters.

theta: d logarithms of standard deviations, then d (d - 1)/2 inverse hyperbolic tangents of partial
correlations, by rows of the Cholesky factor of R. Their joint density that is uniform over R is
that of Lewandowski, Kurowicka & Joe (2009).
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array

__all__ = ["covariance_of", "log_prior_of_partials", "precision_of"]

# Of complex steps, whose derivatives have no cancellation.
_STEP = 1e-30


def _factor(theta: Array, d: int) -> Array:
    """Cholesky factor of S; of complex theta too."""
    std, partial = np.exp(theta[:d]), np.tanh(theta[d:])
    L = np.zeros((d, d), dtype=theta.dtype)
    k = 0
    for i in range(d):
        left = theta.dtype.type(1.0)
        for j in range(i):
            L[i, j] = partial[k] * np.sqrt(left)
            left = left * (1.0 - partial[k] ** 2)
            k += 1
        L[i, i] = np.sqrt(left)
    return std[:, None] * L


def covariance_of(theta: Array, d: int) -> Array:
    """S, shape (d, d)."""
    L = _factor(theta, d)
    return L @ L.T


def precision_of(theta: Array, d: int) -> tuple[Array, Array]:
    """Inverse of S, shape (d, d), and its derivatives by theta, (p, d, d)."""

    def inverse(at: Array) -> Array:
        root = np.linalg.inv(_factor(at, d))
        return root.T @ root

    slopes = np.empty((len(theta), d, d))
    for k in range(len(theta)):
        at = theta.astype(complex)
        at[k] += 1j * _STEP
        slopes[k] = inverse(at).imag / _STEP
    return inverse(theta), slopes


def log_det_of(theta: Array, d: int) -> tuple[float, Array]:
    """log |S| and its slopes."""
    t, slope = theta[d:], np.zeros(len(theta))
    value = 2.0 * float(theta[:d].sum())
    slope[:d] = 2.0
    # |R| is the product of 1 - partial^2.
    value -= 2.0 * float((np.logaddexp(t, -t) - np.log(2.0)).sum())
    slope[d:] = -2.0 * np.tanh(t)
    return value, slope


def log_prior_of_partials(t: Array, d: int) -> tuple[float, Array]:
    """Log density of atanh of partial correlations with R uniform, not normalised, and slopes."""
    # The partial correlation in column j has density (1 - p^2)^((d - j)/2 - 1), and the Jacobian
    # of tanh is one power more.
    columns = np.array([j for i in range(d) for j in range(i)], dtype=float)
    power = 0.5 * (d - 2.0 - columns) + 1.0
    log_cosh = np.logaddexp(t, -t) - np.log(2.0)
    return float((-2.0 * power * log_cosh).sum()), -2.0 * power * np.tanh(t)
