"""Gamma: positive y of mean e^f and variance mean^2/shape.

Up to a constant, log p is shape u - (shape y) e^u in u = -f, as for Poisson counts.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import bent, bent_frame, bent_moments, log_peak
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import positive

__all__ = ["likelihood"]


@kernel
def shape(y: float, theta: Array) -> Floats:
    """Return the shared form of `bent` in `_series_kernels`, with its peak at f = log y."""
    k, log_y = theta[0], math.log(y)
    return -1.0, k, 0.0, theta[1] + log_y, -log_y, log_peak(k) + theta[1] - log_y


def _constants(shape: float) -> Floats:
    return (math.log(shape),)


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


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("gamma", theta[0], scale=np.exp(np.minimum(f, 700.0)) / theta[0])


likelihood = Likelihood(
    name="gamma",
    outcomes="positive numbers",
    split=Pointer(_split, SPLIT),
    validate=positive,
    powers=Powers.from_kernels(_moments, _frame),
    parameters={"shape": 2.0},
    limits={"shape": (1e-3, 1e6)},
    derive=_constants,
    given=_given,
    log_link=True,
    scale_family=True,
)
