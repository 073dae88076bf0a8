"""Coefficients whose densities are profiled, with hyper-parameters integrated.

The corrected evidence is profiled at the mode of the hyper-parameters, which says how the density
differs from EP's normal there. In units of EP's mean and standard deviation that difference is
taken to be the same at every node.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.estimators.predictive.normals import Mixture
from qpruntime.inference.precision.posterior import PrecisionPosterior
from qpruntime.inference.precision.profile import Profile

__all__ = ["profiled_numbers"]

# Levels at which the profile's quantiles are taken, and bisections of the mixture's.
_LEVELS = 401
_HALVINGS = 50


def profiled_numbers(
    posterior: PrecisionPosterior, column: int, mixture: Mixture, q: Array
) -> Array:
    """Mean, standard deviation and quantiles of one coefficient, shape (2 + Q,).

    Parameters
    ----------
    posterior : PrecisionPosterior
        At the mode of the hyper-parameters.
    column : int
        Of the design.
    mixture : Mixture
        The effect (J, 1) at all nodes, in users' units.
    q : ndarray, shape (Q,)
    """
    found: Profile = posterior.coefficient(column)
    latent, variance = posterior.latent()
    own, std = float(latent[column]), float(np.sqrt(variance[column]))
    levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
    z = (found.quantile(levels) - own) / std
    # In users' units, in which an effect may only be of another scale.
    centre = mixture.mean[:, 0]
    each = np.sqrt(mixture.variance[:, 0])
    means = centre + each * (found.mean - own) / std
    mean = float(mixture.weights @ means)
    within = (each * found.std / std) ** 2
    sd = float(np.sqrt(mixture.weights @ (within + (means - mean) ** 2)))
    low = np.full(len(q), (centre + each * z[0]).min())
    high = np.full(len(q), (centre + each * z[-1]).max())
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        at = (middle[:, None] - centre) / each
        below = np.interp(at, z, levels, left=0.0, right=1.0) @ mixture.weights
        low, high = np.where(below < q, middle, low), np.where(below < q, high, middle)
    return np.concatenate([[mean, sd], 0.5 * (low + high)])
