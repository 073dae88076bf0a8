"""Log densities a h - n log(1 + e^h/n): what logistic, binomial and count likelihoods share.

With u = f or -f and h = u + offset, a in [0, n/2]. Left of h = 0 the log density is a line of
slope a, right of it, up to h = 2 log n, a double exponential, and then a line of slope a - n: one
peak, one bend of width one, and a second bend far out that nothing reaches. 1/n = 0 is the Poisson
limit, with e^h for the logarithm. Kernels only; likelihoods say what a, n and offset are. How it
is integrated against a cavity is in `qpruntime.likelihoods.bend`.
"""

from __future__ import annotations

import math

from qpruntime.jit import kernel
from qpruntime.likelihoods.series import expm1_less, log1p_less

__all__ = ["bend_slopes", "bend_value", "softplus", "softplus_expected"]

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
#: Of the trapezoid rule for expectations: exp(-_REACH^2/2) = 4e-17; steps in standard deviations,
#: singular at pi i, so that a step times std is what counts; where the normal is wide in u,
#: f = sinh u, and there in standard deviations at the mean.
_REACH, _STEP, _WIDE = 8.7, 0.55, 3.0
_STEP_U, _STEP_W = 0.11, 0.4


@kernel
def softplus(x):
    """log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@kernel
def bend_value(u, a, inverse, offset, top):
    """Log density at u, relative to its maximum at `top` if a > 0; inverse is 1/n."""
    if a == 0.0:
        h = u + offset
        if inverse == 0.0:
            return -math.exp(min(h, 700.0))
        far = h + math.log(inverse)
        if far > 36.0:
            return -far / inverse
        return -math.log1p(inverse * math.exp(min(h, 700.0))) / inverse
    # a d - n log(1 + (a/n) (e^d - 1)), written so that nothing cancels at d = 0.
    d = u - top
    value = -a * expm1_less(d)
    if inverse > 0.0:
        share = a * inverse
        far = math.log(max(share, 1e-300))
        if d > 36.0 - far:
            return a * d - (d + far) / inverse
        if d < -30.0 and share > 0.99:
            # Relative to a tangent far right of the bend, 1 + t has no digits left.
            return a * d - math.log(max(1.0 - share, 0.0) + share * math.exp(d)) / inverse
        t = share * math.expm1(min(d, 700.0))
        if d > 1.0:
            return a * d - math.log1p(t) / inverse
        value -= log1p_less(t) / inverse
    return value


@kernel
def bend_slopes(u, inverse, offset):
    """Rate and curvature at u: the slope of the log density is a - rate, its second -curvature."""
    e = math.exp(min(-u - offset, 700.0))
    rate = 1.0 / (e + inverse)
    return rate, rate * (rate * e)


@kernel
def softplus_expected(mean, std):
    """E log(1 + e^f), E s(f) and E s'(f), s the logistic function: a trapezoid rule.

    The first is singular at pi i, and behaves like f on the right.
    """
    value, slope, curvature = 0.0, 0.0, 0.0
    wide = std > _WIDE
    if wide:
        h = min(_STEP_U, _STEP_W * std / math.sqrt(1.0 + mean * mean))
        u, last = math.asinh(mean - _REACH * std), math.asinh(mean + _REACH * std)
    else:
        h = min(0.5, _STEP / std)
        u, last = -_REACH, _REACH
    while u <= last:
        x, w = mean + std * u, math.exp(-0.5 * u * u)
        if wide:
            up = math.exp(u)
            x = 0.5 * (up - 1.0 / up)
            t = (x - mean) / std
            w = 0.5 * (up + 1.0 / up) * math.exp(-0.5 * t * t)
        small = math.exp(-abs(x))
        value += w * (max(x, 0.0) + math.log1p(small))
        slope += w * (1.0 if x > 0.0 else small) / (1.0 + small)
        curvature += w * small / ((1.0 + small) * (1.0 + small))
        u += h
    h *= _INV_SQRT_2PI
    if wide:
        h /= std
    return h * value, h * slope, h * curvature
