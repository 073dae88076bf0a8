"""Predictive densities of observations: p(y|f) integrated over the density of f on its grid."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.corrections.grid import Densities
from qpruntime.jit import call_split, kernel
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays

__all__ = ["log_predictive"]

#: Below this the tails of the grid decide, and the normal of the same moments takes over.
_RARE = math.log(1e-7)


@kernel
def predictive_many(split, theta, low, high, logs, y, out):
    """Fill log of the integral of p(y|f) times the density, for y (T, Q): Simpson's rule."""
    n = logs.shape[1]
    for i in range(y.shape[0]):
        step = (high[i] - low[i]) / (n - 1)
        for q in range(y.shape[1]):
            top, total = -math.inf, 0.0
            for k in range(n):
                f = low[i] + step * k
                rest, curvature = call_split(split, f, y[i, q], theta)
                e = rest - 0.5 * curvature * f * f + logs[i, k]
                weight = 1.0 if k in (0, n - 1) else (4.0 if k % 2 else 2.0)
                if e > top:
                    total *= math.exp(top - e) if top > -math.inf else 0.0
                    top = e
                if e > -math.inf:
                    total += weight * math.exp(e - top)
            out[i, q] = top + math.log(total * step / 3.0) if total > 0.0 else -math.inf


def log_predictive(
    likelihood: Likelihood, densities: Densities, mean: Array, variance: Array, y: Array
) -> Array:
    """Log predictive densities of encoded observations `y` (T, Q)."""
    out = np.empty(y.shape)
    low, high, logs, _ = densities
    predictive_many(likelihood.split.handle, likelihood.theta, low, high, logs, y, out)
    likelihood.raise_failure()
    rare = ~(out > _RARE)
    if rare.any():
        i = np.nonzero(rare)[0]
        normal = project_arrays(likelihood, mean[i], np.sqrt(variance[i]), y[rare], "ep").log_z
        # What the grid has is a part of the whole.
        out[rare] = np.maximum(out[rare], normal)
    return out
