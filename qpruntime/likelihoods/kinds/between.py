"""A standard normal variable known to lie between two ends: mass, mean and variance.

What ordered levels and censored logarithms of times have in common: p(y|f) is the probability that
f and unit noise end up there.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import kernel
from qpruntime.special import log_ndtr

__all__ = ["between", "ends_top", "log_between", "noisy_between"]

_SQRT1_2 = math.sqrt(0.5)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Where the density has fallen by exp(-_DROP) nothing is left; panels of Gauss's rule.
_DROP, _PANELS = 42.0, 9
_X, _W = (np.ascontiguousarray(a) for a in np.polynomial.legendre.leggauss(12))


@kernel
def between(a, b):
    """Log mass, mean and variance of a standard normal variable between a < b.

    By Gauss's rule from its peak between them, relative to that: nothing cancels, however narrow or
    far out.
    """
    peak = min(max(a, 0.0), b)
    # Distance over which exp(-(2 p d + d^2)/2) falls so far.
    reach = math.sqrt(peak * peak + 2.0 * _DROP)
    left = max(a, -reach) if peak >= 0.0 else max(a, peak - 2.0 * _DROP / (reach - peak))
    right = min(b, reach) if peak <= 0.0 else min(b, peak + 2.0 * _DROP / (reach + peak))
    h = (right - left) / _PANELS
    mass, first, second = 0.0, 0.0, 0.0
    for j in range(_PANELS):
        start = left + h * j - peak
        for i in range(_X.size):
            d = start + 0.5 * h * (1.0 + _X[i])
            w = _W[i] * math.exp(-d * (peak + 0.5 * d))
            mass += w
            first += w * d
            second += w * d * d
    first /= mass
    log_mass = math.log(0.5 * h * mass) - 0.5 * peak * peak - _HALF_LOG_2PI
    return log_mass, peak + first, second / mass - first * first


@kernel
def log_between(a, b):
    """log(Phi(b) - Phi(a)) for a < b, either of which may be infinite."""
    if b == math.inf:
        return log_ndtr(-a)
    if a == -math.inf:
        return log_ndtr(b)
    if a > 0.0:
        a, b = -b, -a
    # The larger tail first: their difference keeps its digits where they differ by a third.
    gap = b - a
    if gap * (1.0 + abs(b)) > 1.0:
        upper = log_ndtr(b)
        return upper + math.log(-math.expm1(log_ndtr(a) - upper))
    mass, middle = 0.0, a + 0.5 * gap
    for i in range(_X.size):
        d = 0.5 * gap * _X[i]
        mass += _W[i] * math.exp(-d * (middle + 0.5 * d))
    return math.log(0.5 * gap * mass) - 0.5 * middle * middle - _HALF_LOG_2PI


@kernel
def ends_top(low, high):
    """Where f plus symmetric noise is likeliest to be between two ends."""
    if high == math.inf:
        return math.inf
    return -math.inf if low == -math.inf else low + 0.5 * (high - low)


@kernel
def noisy_between(mu, sigma, low, high, scale):
    """Moments of f ~ N(mu, sigma^2) given that f plus N(0, scale^2) is between low and high."""
    total = math.hypot(sigma, scale)
    log_z, mean, variance = between((low - mu) / total, (high - mu) / total)
    if high == math.inf:
        log_z = log_ndtr((mu - low) / total)
    elif low == -math.inf:
        log_z = log_ndtr((high - mu) / total)
    gain = sigma * (sigma / total)
    kept = sigma * (scale / total)
    return log_z, mu + gain * mean, kept * kept + gain * gain * variance
