"""Log-normal times: log T = f + scale e, e standard normal; times may be censored. Closed moments.

An observation is a row of the first and the last time that T can be: `spans`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import (
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    SPLIT,
    Pointer,
    kernel,
)
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.kinds.between import ends_top, log_between, noisy_between
from qpruntime.likelihoods.kinds.gaussian import tilted
from qpruntime.likelihoods.kinds.observed import spans
from qpruntime.likelihoods.kinds.one_peak import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.kinds.times import edge_of, ends_of
from qpruntime.quadrature.adaptive import adaptive_rule

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


@kernel
def raised_frame(mu, sigma, y, theta, power):
    """Where a power of the likelihood is integrated."""
    low, high = ends_of(y, theta)
    if low == high:
        _, mean, variance = tilted(mu, sigma, low, theta[0] / math.sqrt(power))
        return mean, math.sqrt(variance), 0.0, 0.0
    top = ends_top(low, high)
    return one_peak_frame(log_within, mu, sigma, y, theta, power, top, theta[0])


def _frame(mu, sigma, y, theta):
    return raised_frame(mu, sigma, y, theta, 1.0)


def _raised_frame(mu, sigma, y, theta, power):
    return raised_frame(mu, sigma, y, theta, power)


def _moments(mu, sigma, y, theta):
    low, high = ends_of(y, theta)
    if low == high:
        log_z, mean, variance = tilted(mu, sigma, low, theta[0])
        return log_z + theta[1] - low, mean, variance
    return noisy_between(mu, sigma, low, high, theta[0])


@kernel
def log_within(f, y, theta):
    """Log probability of a span."""
    low, high = ends_of(y, theta)
    return log_between((low - f) / theta[0], (high - f) / theta[0])


def _raised_moments(mu, sigma, y, theta, power):
    low, high = ends_of(y, theta)
    if low == high:
        log_z, mean, variance = tilted(mu, sigma, low, theta[0] / math.sqrt(power))
        return log_z + power * (theta[1] - low), mean, variance
    top = ends_top(low, high)
    return one_peak_moments(log_within, mu, sigma, y, theta, power, top, 0.0, theta[0])


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
    frame=Pointer(_frame, FRAME),
    powers=Powers(
        Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME), whole=False
    ),
    rule=adaptive_rule,
    landmarks=Pointer(_edge, LANDMARK),
    parameters={"scale": 0.5},
    limits={"scale": (1e-4, 1e4)},
    derive=_constants,
    given=_given,
)
