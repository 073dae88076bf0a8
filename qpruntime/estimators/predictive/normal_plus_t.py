"""Quantiles of the sum of a normal and a Student-t variable, which has no closed form."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, ndtr

from qpruntime.arrays import Array

__all__ = ["symmetric_reach"]

# exp(_LOW) and exp(_HIGH) leave no distance out; 70 bisections between them reach its last digit.
_LOW, _HIGH, _HALVINGS = -1000.0, 300.0, 70


def symmetric_reach(variance: Array, nu: float, scale: float, tail: Array) -> Array:
    """Distance r with P(|normal + scale t| > r) = 2 tail, by bisection.

    The t is a normal whose log precision has the weights below: the trapezoid rule, as for the
    moments of the likelihood.

    Parameters
    ----------
    variance : ndarray, shape (T,)
        Of the normals; their means are 0.
    nu, scale : float
        Of the t.
    tail : ndarray, shape (Q,)
        In (0, 1/2].

    Returns
    -------
    ndarray, shape (T, Q)
    """
    h = min(0.26, 0.7 / np.sqrt(nu))
    u = np.arange(-90.0 / nu - 12.0 / np.sqrt(nu), 5.0 + 12.0 / np.sqrt(nu), h)
    weight = np.exp(0.5 * nu * (u - np.expm1(u)) + 0.5 * nu * np.log(0.5 * nu) - 0.5 * nu)
    weight *= h * np.exp(-gammaln(0.5 * nu))
    keep = weight > 1e-18 * weight.max()
    u, weight = u[keep], weight[keep] / weight[keep].sum()
    spread = np.sqrt(np.maximum(variance, 0.0)[:, None] + scale**2 * np.exp(-u))
    out = np.zeros((variance.size, tail.size))
    for k in np.flatnonzero(tail < 0.5):
        low, high = np.full(variance.size, _LOW), np.full(variance.size, _HIGH)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            beyond = ndtr(-np.exp(middle)[:, None] / spread) @ weight > tail[k]
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        out[:, k] = np.exp(low)
    return out
