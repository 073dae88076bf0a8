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
def predictive_many(split, theta, points, weights, y, out):
    """Fill log of the mean of p(y|f), for y (T, Q)."""
    for i in range(y.shape[0]):
        for q in range(y.shape[1]):
            top, total = -math.inf, 0.0
            for k in range(points.shape[1]):
                f, weight = points[i, k], weights[i, k]
                if weight == 0.0:
                    continue
                rest, curvature = call_split(split, f, y[i, q], theta)
                e = rest - 0.5 * curvature * f * f
                if e > top:
                    total *= math.exp(top - e) if top > -math.inf else 0.0
                    top = e
                if e > -math.inf:
                    total += weight * math.exp(e - top)
            out[i, q] = top + math.log(total) if total > 0.0 else -math.inf


def log_predictive(
    likelihood: Likelihood, densities: Densities, mean: Array, variance: Array, y: Array
) -> Array:
    """Log predictive densities of encoded observations `y` (T, Q)."""
    out = np.empty(y.shape)
    points, weights = densities.points, densities.weights
    predictive_many(likelihood.split.handle, likelihood.theta, points, weights, y, out)
    likelihood.raise_failure()
    rare = ~(out > _RARE)
    if rare.any():
        i = np.nonzero(rare)[0]
        normal = project_arrays(likelihood, mean[i], np.sqrt(variance[i]), y[rare], "ep").log_z
        # What the grid has is a part of the whole.
        out[rare] = np.maximum(out[rare], normal)
    return out
