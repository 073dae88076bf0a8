"""Moments of exp(a u - e^u) under a normal, where that has a peak no wider than 1."""

from __future__ import annotations

import math

from qpruntime.jit import kernel
from qpruntime.likelihoods.bend import bend_peak
from qpruntime.likelihoods.softplus import bend_value

__all__ = ["exp_moments"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Peaks no wider than this are summed in u itself, with steps of _EVEN/(1 + _SKEWING width) widths:
#: right to 1e-13 (tests/likelihoods/test_exp_link.py).
_WIDEST, _EVEN, _SKEWING = 1.0, 0.68, 1.5
#: Below this width e^x - 1 - x would cancel, and is summed; terms below exp(-_LOW) are left out.
_FINE, _LOW = 0.025, 38.0
_MOST_TERMS = 2000


@kernel
def exp_moments(m, sigma, a, top):
    """`bend_moments` of exp(a u - e^u), a tenth of the time; NaN where the peak is too wide.

    About the peak, in units u of its width s: -b u^2/2 - r (e^(s u) - 1 - s u) and a small slope,
    r = e^peak and b = s^2/sigma^2. One exponential a node: e^(s u) is a product.
    """
    centre, _ = bend_peak(m, sigma, a, 0.0, 0.0, top)
    inverse2 = 1.0 / (sigma * sigma)
    rate = math.exp(min(centre, 700.0))
    width = 1.0 / math.sqrt(rate + inverse2)
    if not width <= _WIDEST or rate > 1e12:
        return math.nan, 0.0, 0.0
    slope = (a - rate - (centre - m) * inverse2) * width
    flat = 0.5 * inverse2 * width * width
    step = _EVEN / (1.0 + _SKEWING * width)
    mass, first, second = 1.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        h = direction * step
        ratio, power, u = math.exp(h * width), 1.0, 0.0
        for _ in range(_MOST_TERMS):
            u += h
            x = u * width
            if width < _FINE:
                excess = 1.0 + x * 0.1
                excess = 1.0 + x * (1.0 / 9.0) * excess
                excess = 1.0 + x * 0.125 * excess
                excess = 1.0 + x * (1.0 / 7.0) * excess
                excess = 1.0 + x * (1.0 / 6.0) * excess
                excess = 1.0 + x * 0.2 * excess
                excess = 1.0 + x * 0.25 * excess
                excess = 0.5 * x * x * (1.0 + x * (1.0 / 3.0) * excess)
            else:
                power *= ratio
                excess = power - 1.0 - x
            e = u * (slope - flat * u) - rate * excess
            if e < -_LOW:
                break
            k = math.exp(e)
            mass += k
            first += k * u
            second += k * u * u
    first /= mass
    gap = (centre - m) / sigma
    log_z = bend_value(centre, a, 0.0, 0.0, top) - 0.5 * gap * gap
    log_z += math.log(mass * step * width / sigma) - _HALF_LOG_2PI
    return log_z, centre + width * first, width * width * (second / mass - first * first)
