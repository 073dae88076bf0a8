"""Logarithms and exponentials less the terms that would cancel, as kernels of likelihoods."""

from __future__ import annotations

import math

from qpruntime.jit import kernel

__all__ = ["expm1_less", "log1p_less", "log_peak", "stirling_error"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def log1p_less(t):
    """log(1 + t) - t."""
    if abs(t) > 0.1:
        return math.log1p(t) - t
    u = t / (2.0 + t)
    w = u * u
    p = 1.0 / 13.0
    for k in (11.0, 9.0, 7.0, 5.0, 3.0):
        p = p * w + 1.0 / k
    return 2.0 * u * w * p - t * u


@kernel
def expm1_less(d):
    """e^d - 1 - d."""
    if abs(d) > 0.5:
        return math.expm1(min(d, 700.0)) - d
    p = 1.0
    for k in range(15, 2, -1):
        p = 1.0 + p * d / k
    return 0.5 * d * d * p


@kernel
def stirling_error(x):
    """log Gamma(x) less (x - 1/2) log x - x + log(2 pi)/2."""
    if x < 16.0:
        return math.lgamma(x) - (x - 0.5) * math.log(x) + x - _HALF_LOG_2PI
    i = 1.0 / (x * x)
    return (
        1.0 / 12.0 - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0)))
    ) / x


@kernel
def log_peak(x):
    """x log x - x - log x! for x >= 0, cancelled by hand."""
    if x < 16.0:
        return x * math.log(x) - x - math.lgamma(x + 1.0) if x > 0.0 else 0.0
    return -0.5 * math.log(x) - _HALF_LOG_2PI - stirling_error(x)
