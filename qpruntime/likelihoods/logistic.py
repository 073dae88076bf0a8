"""Logistic: p(y|f) = 1/(1 + exp(-y f)), y in {-1, +1}. Moments by a rule of some fifty nodes."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import (
    FRAME,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    SPLIT,
    LatePointer,
    Pointer,
)
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


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y), 1.0)


def _frame(mu: float, sigma: float, y: float, theta: Array) -> Floats:
    return bent_frame(mu, sigma, shape(y), 1.0)


def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y), power)


def _raised_frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
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
    moments=Pointer(_moments, MOMENTS),
    frame=LatePointer(_frame, FRAME),
    mirror=True,
    powers=Powers(Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)),
    expected=Pointer(_expected, MOMENTS),
    link=_link,
)
