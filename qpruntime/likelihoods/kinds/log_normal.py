"""Log-normal times: log T = f + scale e, e standard normal; times may be censored. Closed moments.

An observation is a row of the first and the last time that T can be: `spans`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import LANDMARK, MOMENTS, SPLIT, Pointer
from qpruntime.likelihoods.contract import Likelihood
from qpruntime.likelihoods.kinds.between import log_between, noisy_between
from qpruntime.likelihoods.kinds.gaussian import tilted
from qpruntime.likelihoods.kinds.observed import spans
from qpruntime.likelihoods.kinds.times import edge_of, ends_of

__all__ = ["likelihood"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def _constants(scale):
    return (-math.log(scale) - _HALF_LOG_2PI,)


def _split(f, y, theta):
    low, high = ends_of(y, theta)
    z = (low - f) / theta[0]
    if low == high:
        return theta[1] - low - 0.5 * z * z, 0.0
    return log_between(z, (high - f) / theta[0]), 0.0


def _moments(mu, sigma, y, theta):
    low, high = ends_of(y, theta)
    if low == high:
        log_z, mean, variance = tilted(mu, sigma, low, theta[0])
        return log_z + theta[1] - low, mean, variance
    return noisy_between(mu, sigma, low, high, theta[0])


def _edge(y, theta, k):
    return edge_of(y, theta, k)


def _given(f: Array, theta: Array) -> Any:
    from scipy import stats  # takes longer to import than all likelihoods

    return stats.lognorm(theta[0], scale=np.exp(np.clip(f, -700.0, 700.0)))


likelihood = Likelihood(
    name="log-normal",
    outcomes="pairs (first, last) of times",
    split=Pointer(_split, SPLIT),
    validate=spans,
    columns=2,
    moments=Pointer(_moments, MOMENTS),
    landmarks=Pointer(_edge, LANDMARK),
    parameters={"scale": 0.5},
    limits={"scale": (1e-4, 1e4)},
    derive=_constants,
    given=_given,
)
