"""Cauchit: p(y|f) = 1/2 + arctan(y f)/pi, y in {-1, +1}. Forgives labels that are plainly wrong."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array
from qpruntime.likelihoods.base import Likelihood
from qpruntime.likelihoods.responses import signs

__all__ = ["likelihood"]

#: exp(-_REACH^2/2) = 4e-17; log p is singular at f = +-i, so that step times std is what counts.
_REACH, _STEP = 8.7, 0.17


@kernel
def log_p(x):
    """Log p(+1|x), without cancellation where it is small."""
    return math.log(math.atan2(1.0, -x) / math.pi)


def _split(f, y, theta):
    return log_p(y * f), 0.0


def _expected(mean, std, y, theta):
    # E log p, its slope by the mean and minus its curvature: r = p'/p and r^2 + 2 x r/(1 + x^2).
    value, slope, curvature, weight = 0.0, 0.0, 0.0, 0.0
    h = min(0.3, _STEP / std)
    count = math.ceil(_REACH / h)
    for j in range(-count, count + 1):
        x = y * mean + std * h * j
        w = math.exp(-0.5 * (h * j) ** 2)
        log_here, square = log_p(x), 1.0 + x * x
        r = math.exp(-log_here) / (math.pi * square)
        weight += w
        value += w * log_here
        slope += w * r
        curvature += w * (r * r + 2.0 * x * r / square)
    return value / weight, y * slope / weight, curvature / weight


def _link(f: Array) -> Array:
    return 0.5 + np.arctan(f) / np.pi


likelihood = Likelihood(
    name="cauchit",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    mirror=True,
    log_concave=False,
    expected=Pointer(_expected, MOMENTS),
    link=_link,
)
