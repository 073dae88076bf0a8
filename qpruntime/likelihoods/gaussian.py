"""Normal noise: y = f + scale e. The tilted density is normal, and EP is exact."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods.base import Likelihood, ParameterRange, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import reals

__all__ = ["likelihood"]


def _constants(scale: float) -> Floats:
    return (-math.log(scale) - HALF_LOG_2PI,)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    z = (y - f) / theta[0]
    return theta[1] - 0.5 * z * z, 0.0


@kernel
def tilted(mu: float, sigma: float, y: float, scale: float) -> tuple[float, float, float]:
    """Log normaliser of the exponent, mean and variance under exp(-(y - f)^2/(2 scale^2))."""
    total = math.hypot(sigma, scale)
    z, share = (y - mu) / total, (sigma / total) ** 2
    mean = mu + share * (y - mu) if share < 0.5 else y - (scale / total) ** 2 * (y - mu)
    return math.log(scale / total) - 0.5 * z * z, mean, (scale / total) ** 2 * sigma * sigma


# A power divides the scale by its square root.
@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    log_z, mean, variance = tilted(mu, sigma, y, theta[0] / math.sqrt(power))
    return log_z + power * theta[1], mean, variance


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    _, mean, variance = tilted(mu, sigma, y, theta[0] / math.sqrt(power))
    return mean, math.sqrt(variance), 0.0, 0.0


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    z, inverse = (y - mean) / theta[0], 1.0 / (theta[0] * theta[0])
    return theta[1] - 0.5 * (z * z + std * std * inverse), z / theta[0], inverse


def _reach(variance: Array, tail: Array, theta: Array) -> Array:
    from scipy.special import ndtri  # takes longer to import than all likelihoods

    return np.asarray(-np.sqrt(variance + theta[0] ** 2)[:, None] * ndtri(tail))


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("norm", f, theta[0])


likelihood = Likelihood(
    name="gaussian",
    outcomes="real numbers",
    split=Pointer(_split, SPLIT),
    validate=reals,
    location=True,
    powers=Powers.from_kernels(_moments, _frame),
    expected=Pointer(_expected, MOMENTS),
    parameters={"scale": 1.0},
    limits={"scale": (1e-50, 1e50)},
    # Sites are exact, however narrow the noise is.
    ranges={"scale": ParameterRange(0.3, bounds=(1e-5, 1e2), effects=(1e-4, 1e2), of_spread=True)},
    derive=_constants,
    reach=_reach,
    given=_given,
)
