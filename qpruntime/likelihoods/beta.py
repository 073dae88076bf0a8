"""Beta: shares y strictly between 0 and 1, of mean m = 1/(1 + e^-f), variance m(1-m)/(1+precision).

Let a = precision m and b = precision (1 - m). Then log p is -precision times the divergence of m
from y plus slowly varying terms, so that nothing cancels however large the precision.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import LANDMARK, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import log1p_less, log_peak
from qpruntime.likelihoods._unimodal_kernels import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import shares
from qpruntime.quadrature.adaptive_kernels import adaptive_rule

__all__ = ["likelihood"]

#: Shapes below this are this.
_LEAST = 1e-290
#: Below this precision nothing cancels.
_FEW = 4.0
#: Relative distance of shares up to which a logarithm is taken of their ratio less 1.
_NEAR = 0.1


def _constants(precision: float) -> Floats:
    return (math.lgamma(precision),)


@kernel
def parts(f: float, precision: float) -> tuple[float, float]:
    """Parameters a and b of the beta distribution."""
    small = math.exp(-abs(f))
    less = max(precision * small / (1.0 + small), _LEAST)
    more = max(precision / (1.0 + small), _LEAST)
    return (more, less) if f > 0.0 else (less, more)


@kernel
def log_share(f: float, y: float, theta: Array) -> float:
    """Log density of a share."""
    a, b = parts(f, theta[0])
    if theta[0] < _FEW:
        log_p: float = theta[1] - math.lgamma(a) - math.lgamma(b)
        return log_p + (a - 1.0) * math.log(y) + (b - 1.0) * math.log1p(-y)
    # a log(y/m) + b log((1 - y)/(1 - m)), of which the terms of first order cancel.
    m, complement = a / theta[0], b / theta[0]
    t, u = (y - m) / m, (m - y) / complement
    apart = a * (log1p_less(t) if abs(t) < _NEAR else math.log(y / m) - t)
    apart += b * (log1p_less(u) if abs(u) < _NEAR else math.log1p(-y) - math.log(complement) - u)
    flat = log_peak(a) + log_peak(b) - log_peak(theta[0]) + math.log(a * complement)
    return apart + flat - math.log(y) - math.log1p(-y)


@kernel
def digamma_like(x: float) -> float:
    """Return the derivative of log Gamma: by recurrence up to 6, and Stirling's series."""
    value = 0.0
    while x < 6.0:
        value -= 1.0 / x
        x += 1.0
    i = 1.0 / (x * x)
    return value + math.log(x) - 0.5 / x - i * (1.0 / 12.0 - i * (1.0 / 120.0 - i / 252.0))


@kernel
def summit(y: float, theta: Array) -> float:
    """Return where log p is highest, within a fraction of its width.

    There digamma(a) - digamma(b) is logit y. The root lies between f = logit y and 0, and the
    Illinois rule finds it.
    """
    logit = math.log(y) - math.log1p(-y)
    if logit == 0.0:
        return 0.0
    low, high = logit, 0.0
    a, b = parts(low, theta[0])
    at_low = digamma_like(a) - digamma_like(b) - logit
    at_high = -logit
    for _ in range(60):
        f = (low * at_high - high * at_low) / (at_high - at_low)
        a, b = parts(f, theta[0])
        slope = digamma_like(a) - digamma_like(b) - logit
        # A step of this length changes log p by a b/precision slope^2/2 at most.
        if slope * slope * a * b < 0.1 * theta[0] or abs(high - low) < 1e-9:
            return f
        if (slope > 0.0) == (at_low > 0.0):
            low, at_low, at_high = f, slope, 0.5 * at_high
        else:
            high, at_high, at_low = f, slope, 0.5 * at_low
    return f


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return log_share(f, y, theta), 0.0


@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    top = summit(y, theta)
    most = log_share(top, y, theta) + 1.0
    a, b = parts(top, theta[0])
    scale = min(1.0, math.sqrt(theta[0] / (a * b)))
    return one_peak_moments(log_share, mu, sigma, y, theta, power, top, most, scale)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    top = summit(y, theta)
    a, b = parts(top, theta[0])
    scale = min(1.0, math.sqrt(theta[0] / (a * b)))
    return one_peak_frame(log_share, mu, sigma, y, theta, power, top, scale)


def _middle(y: float, theta: Array, k: int) -> float:
    return math.log(y) - math.log1p(-y) if k == 0 else math.nan


def _given(f: Array, theta: Array) -> SciPyResponse:
    small = np.exp(-np.abs(f))
    less, more = np.maximum(theta[0] * small / (1.0 + small), _LEAST), theta[0] / (1.0 + small)
    return SciPyResponse("beta", np.where(f > 0.0, more, less), np.where(f > 0.0, less, more))


likelihood = Likelihood(
    name="beta",
    outcomes="numbers strictly between 0 and 1",
    split=Pointer(_split, SPLIT),
    validate=shares,
    powers=Powers.from_kernels(_moments, _frame, whole=False),
    rule=adaptive_rule,
    log_concave=False,
    parameters={"precision": 10.0},
    limits={"precision": (1e-3, 1e8)},
    landmarks=Pointer(_middle, LANDMARK),
    derive=_constants,
    given=_given,
)
