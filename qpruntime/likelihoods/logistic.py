"""Logistic: p(y|f) = 1/(1 + exp(-y f)), y in {-1, +1}. Moments by a rule of some fifty nodes."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import bent_expected, bent_frame, bent_moments, softplus
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.responses import signs

__all__ = ["likelihood"]


@kernel
def shape(y: float) -> Floats:
    """Log p = -log(1 + e^u), u = -y f: the shared form with a = 0 and n = 1."""
    return -y, 0.0, 1.0, 0.0, 0.0, 0.0


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return -softplus(-y * f), 0.0


@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y), power)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    return bent_frame(mu, sigma, shape(y), power)


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    return bent_expected(-y * mean, std, -y, 0.0, 1.0, 0.0)


def _link(f: Array) -> Array:
    from scipy.special import expit  # takes longer to import than all likelihoods

    return np.asarray(expit(f))


likelihood = Likelihood(
    name="logistic",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    mirror=True,
    powers=Powers.from_kernels(_moments, _frame),
    expected=Pointer(_expected, MOMENTS),
    link=_link,
)
