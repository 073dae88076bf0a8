"""How the factors of NFCPD look to one function: steps whose heights the other functions give.

The factor of point n says: not (all c_k(x_n) >= 0 and f(x_n) < f(x*)). Averaged over cavities of
the others it is a step in each function, with y = log(height right of 0/height left of 0).
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from qpruntime.arrays import Array

__all__ = ["log_heights", "log_one_minus"]


def log_one_minus(x: Array) -> Array:
    """log(1 - e^x), x <= 0."""
    with np.errstate(divide="ignore"):
        near = x > -np.log(2.0)
        return np.where(
            near, np.log(-np.expm1(np.where(near, x, -1.0))), np.log1p(-np.exp(np.minimum(x, -0.5)))
        )


def log_heights(alpha: Array) -> Array:
    """Return y of every function's step at every point, shape (..., K + 1, N).

    Parameters
    ----------
    alpha : ndarray, shape (..., K + 1, N)
        Mean over standard deviation of the cavities: of f_n - f(x*), then of c_k,n.
    """
    below, above = log_ndtr(-alpha[..., 0, :]), log_ndtr(alpha[..., 0, :])
    feasible = log_ndtr(alpha[..., 1:, :])
    constraints = feasible.shape[-2]
    y = np.empty(alpha.shape)
    y[..., 0, :] = -log_one_minus(feasible.sum(axis=-2)) if constraints else np.inf
    for k in range(constraints):
        others = np.delete(feasible, k, axis=-2).sum(axis=-2)  # differences might be inf - inf
        lost = others + below
        with np.errstate(divide="ignore"):
            much = np.logaddexp(log_one_minus(others), others + above)
            y[..., k + 1, :] = np.where(
                lost < -np.log(2.0), np.log1p(-np.exp(np.minimum(lost, -0.5))), much
            )
    return y
