"""Negative binomial counts of mean m = e^f and variance m + m^2/dispersion.

p(y|f) = Gamma(y + r)/(y! Gamma(r)) (m/(m + r))^y (r/(m + r))^r, r = dispersion: in g = f - log r
the density y g - (y + r) log(1 + e^g), that of y successes in y + r trials.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import (
    bent,
    bent_expected,
    bent_frame,
    bent_moments,
    log_peak,
)
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import NegativeBinomialResponse
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts

__all__ = ["likelihood"]


@kernel
def dispersed_shape(y: float, r: float, log_r: float) -> Floats:
    """`shape` of this dispersion, and of its logarithm."""
    n = y + r
    if y <= r:
        offset = math.log(n) - log_r
        top = math.log(y) if y > 0.0 else 0.0
        sign, a = 1.0, y
    else:
        offset = math.log(n) + log_r
        top = -math.log(y)
        sign, a = -1.0, r
    # Gamma(y + r)/(y! Gamma(r)) is the binomial coefficient times r/n.
    peak = log_peak(y) + log_peak(r) - log_peak(n) + log_r - math.log(n) if y > 0.0 else 0.0
    return sign, a, 1.0 / n, offset, top, peak


@kernel
def shape(y: float, theta: Array) -> Floats:
    """(sign, a, 1/n, offset, top) of the shared form in u = sign f, and log p at its peak."""
    return dispersed_shape(y, theta[0], theta[1])


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent(f, shape(y, theta)), 0.0


@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y, theta), power)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    return bent_frame(mu, sigma, shape(y, theta), power)


def _constants(dispersion: float) -> Floats:
    return (math.log(dispersion),)


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    sign, a, inverse, _, _, peak = shape(y, theta)
    return bent_expected(sign * (mean - theta[1]), std, sign, a, 1.0 / inverse, peak)


def _given(f: Array, theta: Array) -> NegativeBinomialResponse:
    return NegativeBinomialResponse(np.exp(np.minimum(f, 700.0)), theta[0])


likelihood = Likelihood(
    name="negative-binomial",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    powers=Powers.from_kernels(_moments, _frame),
    expected=Pointer(_expected, MOMENTS),
    parameters={"dispersion": 1.0},
    limits={"dispersion": (1e-3, 1e9)},
    derive=_constants,
    given=_given,
    log_link=True,
)
