"""Poisson with the exponential link: counts of rate e^f, log p = y f - e^f - log y!."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime._memory import PointError
from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import (
    bent,
    bent_frame,
    bent_moments,
    exp_moments,
    log_peak,
)
from qpruntime.likelihoods.base import (
    Likelihood,
    Powers,
    Rate,
    RateLink,
    normal_rule,
)
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts

__all__ = ["likelihood"]

#: Products of numbers up to exp(_LARGEST) = 7e149 stay in double precision.
_LARGEST = 345.0


@kernel
def shape(y: float) -> Floats:
    """Return the limit of the shared form for n without bound, with a = y."""
    return 1.0, y, 0.0, 0.0, (math.log(y) if y > 0.0 else 0.0), log_peak(y)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent(f, shape(y)), 0.0


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    _, _, _, _, top, peak = shape(y)
    log_z, mean, variance = exp_moments(mu, sigma, y, top)
    if math.isnan(log_z):
        return bent_moments(mu, sigma, shape(y), 1.0)
    return log_z + peak, mean, variance


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    return bent_frame(mu, sigma, shape(y), power)


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y), power)


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    # Closed: E e^f = exp(mean + variance/2).
    rate = math.exp(min(mean + 0.5 * std * std, 700.0))
    return y * mean - rate - math.lgamma(y + 1.0), y - rate, rate


@dataclass(frozen=True)
class LogNormalRate(Rate):
    """e^f for f ~ N(mean, std^2)."""

    mean: Array
    std: Array

    def tail(self, g: Array, upper: bool) -> Array:
        from scipy.special import ndtr  # takes longer to import than all likelihoods

        z = (np.log(g) - self.mean[:, None]) / self.std[:, None]
        return np.asarray(ndtr(-z if upper else z))

    def nodes(self) -> tuple[Array, Array]:
        f, weights = normal_rule(self.mean, self.std)
        return np.exp(f), weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        return self.std * np.sqrt(shape) < 1.0

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        below, above = -self.std * np.sqrt(2.0 * low), self.std * np.sqrt(2.0 * high)
        return np.exp(0.5 * (self.mean + below)), np.exp(0.5 * (self.mean + above))


class Exponential(RateLink):
    """Rate e^f."""

    name = "exp"

    def latent(self, rate: float) -> float:
        return math.log(rate)

    def spread(self, mean: float) -> float:
        return 1.0

    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        return np.ones_like(exposure), np.log(exposure)

    def mean_rate(self, mean: Array, variance: Array) -> Array:
        log_rate = mean + 0.5 * variance
        if log_rate.max(initial=0.0) > 2.0 * _LARGEST:
            raise _beyond(mean, variance, int(np.argmax(log_rate)))
        return np.exp(log_rate)

    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        extreme = np.maximum(np.abs(mean + 0.5 * variance), variance)
        if extreme.max(initial=0.0) > _LARGEST:
            raise _beyond(mean, variance, int(np.argmax(extreme)))
        rate = self.mean_rate(mean, variance)
        return rate, rate * np.expm1(variance)

    def distribution(self, mean: Array, variance: Array) -> Rate:
        return LogNormalRate(mean, np.sqrt(variance))


def _beyond(mean: Array, variance: Array, i: int) -> PointError:
    m, v = (float(np.ravel(a)[i]) for a in np.broadcast_arrays(mean, variance))
    return PointError(
        i,
        f"has log rate {m:.3g} of standard deviation {math.sqrt(v):.3g}: the mean of its "
        "rate is beyond double precision; predict further inside the data or bound the kernel's "
        "variance",
    )


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("poisson", np.exp(np.minimum(f, 700.0)))


likelihood = Likelihood(
    name="poisson-exp",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    powers=Powers.from_kernels(_raised_moments, _frame),
    expected=Pointer(_expected, MOMENTS),
    rate=Exponential(),
    given=_given,
    log_link=True,
)
