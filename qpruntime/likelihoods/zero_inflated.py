"""Counts with extra zeros: zero-inflated and hurdle models."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import bent, bent_frame, bent_moments, softplus
from qpruntime.likelihoods._unimodal_kernels import log_sum, mixed, one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import NegativeBinomialResponse
from qpruntime.likelihoods.negative_binomial import dispersed_shape
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts
from qpruntime.quadrature.adaptive_kernels import adaptive_rule

__all__ = [
    "hurdle_likelihood",
    "zero_inflated_likelihood",
]

# --- Zero-inflated counts
#
# They are 0 with probability `zeros`; else negative binomial of mean e^f.
#
# A large dispersion makes the others Poisson.

# theta has dispersion and zeros, then the logarithms of dispersion, zeros and 1 - zeros.


def _constants(dispersion: float, zeros: float) -> Floats:
    return math.log(dispersion), math.log(zeros), math.log1p(-zeros)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    log_p = theta[4] + bent(f, dispersed_shape(y, theta[0], theta[2]))
    return (log_p if y > 0.0 else log_sum(theta[3], log_p)), 0.0


@kernel
def log_none(f: float, y: float, theta: Array) -> float:
    """Log probability of 0."""
    return log_sum(theta[3], theta[4] + bent(f, dispersed_shape(0.0, theta[0], theta[2])))


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    if y > 0.0:
        shape = dispersed_shape(y, theta[0], theta[2])
        log_z, mean, variance = bent_moments(mu, sigma, shape, power)
        return log_z + power * theta[4], mean, variance
    return one_peak_moments(log_none, mu, sigma, y, theta, power, -math.inf, 0.0, 1.0)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    if y > 0.0:
        return bent_frame(mu, sigma, dispersed_shape(y, theta[0], theta[2]), power)
    return one_peak_frame(log_none, mu, sigma, y, theta, power, -math.inf, 1.0)


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    shape = dispersed_shape(y, theta[0], theta[2])
    log_z, mean, variance = bent_moments(mu, sigma, shape, 1.0)
    log_z += theta[4]
    if y > 0.0:
        return log_z, mean, variance
    return mixed(theta[3], mu, sigma, log_z, mean, variance)


class _Inflated:
    """Distribution of the count given f, with the methods of SciPy's that are asked for."""

    def __init__(self, f: Array, theta: Array) -> None:
        dispersion, self.zeros = theta[:2]
        self.counts = NegativeBinomialResponse(np.exp(np.minimum(f, 700.0)), dispersion)

    def cdf(self, y: ArrayLike) -> Array:
        below = (1.0 - self.zeros) * self.counts.cdf(y)
        return np.asarray(below + self.zeros * (np.asarray(y) >= 0.0))

    def sf(self, y: ArrayLike) -> Array:
        above = (1.0 - self.zeros) * self.counts.sf(y)
        return np.asarray(above + self.zeros * (np.asarray(y) < 0.0))

    def mean(self) -> Array:
        return np.asarray((1.0 - self.zeros) * self.counts.mean())

    def var(self) -> Array:
        within = self.counts.var() + self.zeros * self.counts.mean() ** 2
        return np.asarray((1.0 - self.zeros) * within)

    def ppf(self, q: float) -> Array:
        quantile: Array = self.counts.ppf(max(0.0, q - self.zeros) / (1.0 - self.zeros))
        return np.maximum(quantile, 0.0)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> Array:
        sample = self.counts.rvs(size=size, random_state=random_state)
        return np.where(random_state.uniform(size=size) < self.zeros, 0.0, sample)


zero_inflated_likelihood = Likelihood(
    name="zero-inflated",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    powers=Powers.from_kernels(_raised_moments, _frame, whole=False),
    rule=adaptive_rule,
    log_concave=False,
    parameters={"dispersion": 1.0, "zeros": 0.2},
    limits={"dispersion": (1e-3, 1e9), "zeros": (1e-9, 0.999999)},
    derive=_constants,
    given=_Inflated,
    log_link=True,
)


# --- Hurdle counts
#
# They are 0 with probability `zeros`; else negative binomial, but never 0.
#
# The untruncated mean is e^f. A large dispersion makes the positive counts truncated Poisson. Zeros
# say nothing of f.

# theta has dispersion and zeros, then the logarithms of dispersion, zeros and 1 - zeros.
#: Below this log rate 1 - P(0) is the rate, to the last bit and below what a double holds.
_LOW = -600.0


@kernel
def log_positive(f: float, y: float, theta: Array) -> float:
    """Log probability of a positive count, given that it is one."""
    r, g = theta[0], f - theta[2]
    # P(0) = (1 + e^g)^-r, and 1 - P(0) is e^f where that is small.
    none = r * softplus(g)
    more = -math.log(-math.expm1(-none)) if f > _LOW else -f
    return bent(f, dispersed_shape(y, r, theta[2])) + more


def _hurdle_split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return (theta[4] + log_positive(f, y, theta) if y > 0.0 else theta[3]), 0.0


@kernel
def summit(y: float, theta: Array) -> tuple[float, float, float]:
    """Log rate at which a count above 1 is likeliest, log p there, and how narrow that peak is.

    The truncated mean, rate/(1 - P(0)), is y there. Newton's method between two bounds: a truncated
    count is at most 1 more than one of dispersion r + 1.
    """
    r, log_y = theta[0], math.log(y)
    low, high = math.log((y - 1.0) * r / (1.0 + r)), log_y
    f = high
    for _ in range(60):
        rate = math.exp(f)
        none = r * softplus(f - theta[2])
        positive = -math.expm1(-none)
        gap = f - math.log(positive) - log_y
        if gap > 0.0:
            high = f
        else:
            low = f
        step = -gap / (1.0 - math.exp(-none) * rate / (1.0 + rate / r) / positive)
        if not low < f + step < high:
            step = 0.5 * (low + high) - f
        f += step
        if abs(step) < 1e-9:
            break
    return f, log_positive(f, y, theta), 1.0 / math.sqrt(1.0 + y / (1.0 + y / r))


@kernel
def _hurdle_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    if y == 0.0:
        return power * theta[3], mu, sigma * sigma
    top, most, scale = summit(y, theta) if y > 1.0 else (-math.inf, 0.0, 1.0)
    log_z, mean, variance = one_peak_moments(
        log_positive, mu, sigma, y, theta, power, top, most, scale
    )
    return log_z + power * theta[4], mean, variance


@kernel
def _hurdle_frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    if y == 0.0:
        return mu, sigma, 0.0, 0.0
    top = summit(y, theta)[0] if y > 1.0 else -math.inf
    return one_peak_frame(log_positive, mu, sigma, y, theta, power, top, 1.0)


class _Hurdle:
    """Distribution of the count given f, with the methods of SciPy's that are asked for."""

    def __init__(self, f: Array, theta: Array) -> None:
        (dispersion, self.zeros), rate = theta[:2], np.exp(np.clip(f, -700.0, 700.0))
        self.counts = NegativeBinomialResponse(rate, dispersion)
        # P(0) of those not truncated, and the rest of it.
        none = dispersion * np.log1p(rate / dispersion)
        self.none, self.seen = np.exp(-none), -np.expm1(-none)
        self.rate, self.dispersion = rate, dispersion

    def sf(self, y: ArrayLike) -> Array:
        beyond = np.minimum(self.counts.sf(np.maximum(y, 0.0)) / self.seen, 1.0)
        return np.where(np.asarray(y) < 0.0, 1.0, (1.0 - self.zeros) * beyond)

    def cdf(self, y: ArrayLike) -> Array:
        return 1.0 - self.sf(y)

    def mean(self) -> Array:
        return np.asarray((1.0 - self.zeros) * (self.rate / self.seen))

    def var(self) -> Array:
        square = self.rate / self.seen * (1.0 + self.rate * (1.0 + 1.0 / self.dispersion))
        return np.asarray((1.0 - self.zeros) * square - self.mean() ** 2)

    def ppf(self, q: ArrayLike) -> Array:
        beyond = (1.0 - np.asarray(q)) / (1.0 - self.zeros)
        return np.where(beyond >= 1.0, 0.0, self._positive(beyond))

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> Array:
        beyond = random_state.uniform(size=size) / (1.0 - self.zeros)
        return np.where(beyond >= 1.0, 0.0, self._positive(beyond))

    def _positive(self, beyond: Array) -> Array:
        """Return the least positive count that at most this share of them exceeds."""
        quantile: Array = self.counts.isf(np.minimum(beyond, 1.0) * self.seen)
        return np.maximum(quantile, 1.0)


hurdle_likelihood = Likelihood(
    name="hurdle",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_hurdle_split, SPLIT),
    validate=counts,
    powers=Powers.from_kernels(_hurdle_moments, _hurdle_frame, whole=False),
    rule=adaptive_rule,
    log_concave=False,
    parameters={"dispersion": 1.0, "zeros": 0.5},
    limits={"dispersion": (1e-3, 1e9), "zeros": (1e-9, 0.999999)},
    derive=_constants,
    given=_Hurdle,
    log_link=True,
)
