"""Zero-inflated counts: 0 with probability `zeros`, whatever f; else negative binomial of mean e^f.

A large dispersion makes the others Poisson.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.jit import FRAME, MOMENTS, RAISED_FRAME, RAISED_MOMENTS, SPLIT, Pointer, kernel
from qpruntime.likelihoods.bend import bent, bent_frame, bent_moments
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.kinds.mixed import log_sum, mixed
from qpruntime.likelihoods.kinds.one_peak import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.negative_binomial import dispersed_shape
from qpruntime.likelihoods.observations import LARGEST_COUNT, counts
from qpruntime.quadrature.adaptive import adaptive_rule

__all__ = ["likelihood"]

# theta has dispersion and zeros, then the logarithms of dispersion, zeros and 1 - zeros.


def _constants(dispersion, zeros):
    return math.log(dispersion), math.log(zeros), math.log1p(-zeros)


def _split(f, y, theta):
    log_p = theta[4] + bent(f, dispersed_shape(y, theta[0], theta[2]))
    return (log_p if y > 0.0 else log_sum(theta[3], log_p)), 0.0


@kernel
def log_none(f, y, theta):
    """Log probability of 0."""
    return log_sum(theta[3], theta[4] + bent(f, dispersed_shape(0.0, theta[0], theta[2])))


def _raised_moments(mu, sigma, y, theta, power):
    if y > 0.0:
        shape = dispersed_shape(y, theta[0], theta[2])
        log_z, mean, variance = bent_moments(mu, sigma, shape, power)
        return log_z + power * theta[4], mean, variance
    return one_peak_moments(log_none, mu, sigma, y, theta, power, -math.inf, 0.0, 1.0)


@kernel
def raised_frame(mu, sigma, y, theta, power):
    """Where a power of the likelihood is integrated."""
    if y > 0.0:
        return bent_frame(mu, sigma, dispersed_shape(y, theta[0], theta[2]), power)
    return one_peak_frame(log_none, mu, sigma, y, theta, power, -math.inf, 1.0)


def _frame(mu, sigma, y, theta):
    return raised_frame(mu, sigma, y, theta, 1.0)


def _raised_frame(mu, sigma, y, theta, power):
    return raised_frame(mu, sigma, y, theta, power)


def _moments(mu, sigma, y, theta):
    shape = dispersed_shape(y, theta[0], theta[2])
    log_z, mean, variance = bent_moments(mu, sigma, shape, 1.0)
    log_z += theta[4]
    if y > 0.0:
        return log_z, mean, variance
    return mixed(theta[3], mu, sigma, log_z, mean, variance)


class _Inflated:
    """Distribution of the count given f, with the methods of SciPy's that are asked for."""

    def __init__(self, f: Array, dispersion: float, zeros: float) -> None:
        from scipy import stats  # takes longer to import than all likelihoods

        rate = np.exp(np.minimum(f, 700.0))
        self.zeros, self.own = zeros, stats.nbinom(dispersion, dispersion / (dispersion + rate))

    def cdf(self, y: ArrayLike) -> Array:
        found: Array = (1.0 - self.zeros) * self.own.cdf(y)
        return found + self.zeros * (np.asarray(y) >= 0.0)

    def sf(self, y: ArrayLike) -> Array:
        found: Array = (1.0 - self.zeros) * self.own.sf(y)
        return found + self.zeros * (np.asarray(y) < 0.0)

    def mean(self) -> Array:
        found: Array = (1.0 - self.zeros) * self.own.mean()
        return found

    def var(self) -> Array:
        found: Array = self.own.var() + self.zeros * self.own.mean() ** 2
        return (1.0 - self.zeros) * found

    def ppf(self, q: float) -> Array:
        found: Array = self.own.ppf(max(0.0, q - self.zeros) / (1.0 - self.zeros))
        return np.maximum(found, 0.0)

    def rvs(self, size: Any, random_state: np.random.Generator) -> Array:
        drawn = self.own.rvs(size=size, random_state=random_state)
        return np.where(random_state.uniform(size=size) < self.zeros, 0.0, drawn)


def _given(f: Array, theta: Array) -> Any:
    return _Inflated(np.asarray(f, dtype=float), theta[0], theta[1])


likelihood = Likelihood(
    name="zero-inflated",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(
        Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME), whole=False
    ),
    rule=adaptive_rule,
    log_concave=False,
    parameters={"dispersion": 1.0, "zeros": 0.2},
    limits={"dispersion": (1e-3, 1e9), "zeros": (1e-9, 0.999999)},
    derive=_constants,
    given=_given,
    log_link=True,
)
