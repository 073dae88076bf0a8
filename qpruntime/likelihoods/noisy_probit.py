"""Probit with label noise: p(y|f) = flip + (1 - 2 flip) Phi(y f). Closed moments.

A label is wrong with probability `flip`, however sure f is.
"""

from __future__ import annotations

import math

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._special import log_ndtr
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods import probit
from qpruntime.likelihoods._unimodal_kernels import log_sum, mixed, one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.responses import signs
from qpruntime.quadrature.adaptive_kernels import adaptive_rule

__all__ = ["likelihood"]

# theta has flip, then the logarithms of flip and of 1 - 2 flip.

#: Moments of labels that are never wrong.
_sure = kernel(probit._moments)


def _constants(flip: float) -> Floats:
    return math.log(flip), math.log1p(-2.0 * flip)


@kernel
def log_label(f: float, y: float, theta: Array) -> float:
    """Log probability of a label."""
    return log_sum(theta[1], theta[2] + log_ndtr(y * f))


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return log_label(f, y, theta), 0.0


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return one_peak_moments(log_label, mu, sigma, y, theta, power, y * math.inf, 0.0, 1.0)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    return one_peak_frame(log_label, mu, sigma, y, theta, power, y * math.inf, 1.0)


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    log_z, mean, variance = _sure(mu, sigma, y, theta)
    return mixed(theta[1], mu, sigma, theta[2] + log_z, mean, variance)


likelihood = Likelihood(
    name="noisy-probit",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    moments=Pointer(_moments, MOMENTS),
    mirror=True,
    powers=Powers.from_kernels(_raised_moments, _frame, whole=False),
    rule=adaptive_rule,
    log_concave=False,
    parameters={"flip": 0.05},
    limits={"flip": (1e-9, 0.49)},
    derive=_constants,
)
