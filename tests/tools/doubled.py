"""Poisson counts of rate e^(2f): a likelihood as somebody might add it, for a test that does."""

import math

import numpy as np

from qpruntime._pointers import SPLIT, Pointer
from qpruntime._typing import Array
from qpruntime.likelihoods.base import Likelihood, Rate, RateLink
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts


def _split(f, y, theta):
    return 2.0 * y * f - math.exp(min(2.0 * f, 700.0)) - math.lgamma(y + 1.0), 0.0


class Doubled(RateLink):
    """Rate e^(2f)."""

    name = "exp2"

    def latent(self, rate: float) -> float:
        return 0.5 * math.log(rate)

    def spread(self, mean: float) -> float:
        return 0.5

    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        return np.ones_like(exposure), 0.5 * np.log(exposure)

    def mean_rate(self, mean: Array, variance: Array) -> Array:
        return np.exp(2.0 * (mean + variance))

    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        rate = self.mean_rate(mean, variance)
        return rate, rate * np.expm1(4.0 * variance)

    def distribution(self, mean: Array, variance: Array) -> Rate:
        return LogNormalRate(2.0 * mean, 2.0 * np.sqrt(variance))


likelihood = Likelihood(
    name="poisson-exp2",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    rate=Doubled(),
)
