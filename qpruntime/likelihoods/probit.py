"""Probit: p(y|f) = Phi(y f), y in {-1, +1}. Closed moments, one table for both labels."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import COORDINATES, FRAME, MOMENTS, SPLIT, LatePointer, Pointer
from qpruntime._special import erfcx, log_ndtr, probit_series
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods.base import Likelihood, Powers, Reduction
from qpruntime.likelihoods.responses import signs
from qpruntime.table_format.metadata import Axis

__all__ = ["likelihood"]

_SQRT1_2 = math.sqrt(0.5)
_SQRT_2_PI, _INV_SQRT_2PI = math.sqrt(2.0 / math.pi), 1.0 / math.sqrt(2.0 * math.pi)
#: Steps of Newton's method at most, and shorter steps of quadrature where powers make the edge
#: a double exponential.
_STEPS, _DENSER = 200, 0.7
#: Expectations: exp(-_REACH^2/2) = 4e-17; log Phi(_LAST) = -1e-21.
_REACH, _LAST = 8.7, 9.5
#: Steps of their trapezoid rule: in standard deviations; in f, near the zeros of Phi at
#: 1.9 +- 2.8i; in u where f = sinh u, and there in standard deviations at the mean; to 1e-11.
_STEP, _STEP_F, _STEP_U, _STEP_W = 0.7, 0.42, 0.11, 0.4
#: Standard deviation beyond which the edge of Phi is narrow beside the normal, and where sinh
#: leaves double precision.
_WIDE, _LARGEST = 1.3, 1e307


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    # Left of -1 the Gaussian factor exp(-f^2/2) is taken out, so that what is left varies slowly
    # and two values of it can be compared at f = -1e8 as well as at f = -2.
    x = y * f
    if x < -1.0:
        return math.log(0.5 * erfcx(-x * _SQRT1_2)), 1.0
    return log_ndtr(x), 0.0


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    # Rasmussen & Williams (3.58), (3.82), (3.85), rewritten so that nothing cancels for z << 0:
    # sigma_EP^2 = sigma^2 (1 + sigma^2 V)/(1 + sigma^2), V = 1 - r (r + z).
    s2 = sigma * sigma
    root = math.sqrt(1.0 + s2)
    z = y * mu / root
    r, r_plus_z, v = probit_series(z)
    mean = y * (z + s2 * r_plus_z) / root if z < 0.0 else mu + y * s2 * r / root
    return log_ndtr(z), mean, s2 / (1.0 + s2) * (1.0 + s2 * v)


def _frame(mu: float, sigma: float, y: float, theta: Array) -> Floats:
    # A wide cavity sees the likelihood as an edge of width 1 at f = 0, which is where the nodes
    # have to be dense; the edge no longer matters once it is 8 standard deviations out, or where
    # the mass sits so far left of it that log Phi is smooth on the scale of the tilted density.
    s2 = sigma * sigma
    root = math.sqrt(1.0 + s2)
    z = y * mu / root
    r, r_plus_z, v = probit_series(z)
    mean = (z + s2 * r_plus_z) / root if z < 0.0 else y * mu + s2 * r / root
    std = math.sqrt(s2 / (1.0 + s2) * (1.0 + s2 * v))
    if sigma >= 1.3 and -4.0 * std < mean < 8.0 * std:
        reach = abs(mean)
        return 0.0, min(std, 1.0), 1.0 if reach <= 2.0 * std else 2.0 * std / reach, 0.0
    return y * mean, std, 1.0, 0.0


@kernel
def raised_peak(m: float, sigma: float, power: float) -> float:
    """Peak of Phi(x)^power N(x | m, sigma^2) by Newton's method, which comes to it from the left.

    The slope is convex and falls. Up to x^2/2 steps for a wide cavity.
    """
    x, inverse = m, 1.0 / (sigma * sigma)
    for _ in range(_STEPS):
        r, r_plus_x, _ = probit_series(x)
        step = (power * r - (x - m) * inverse) / (power * r * r_plus_x + inverse)
        x += step
        if abs(step) < 1e-6 * sigma or abs(step) <= 1e-15 * abs(x):
            break
    return x


@kernel
def _raised_frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    # Phi^w rises about where it is 1/2, the more steeply the larger w is.
    m = y * mu
    edge, length = 0.0, 1.0
    if power > 1.0:
        edge = math.sqrt(2.0 * math.log1p(power)) - 1.0
        length = 1.0 / (1.0 + edge)
    peak = raised_peak(m, sigma, power)
    r, r_plus_x, _ = probit_series(peak)
    width = 1.0 / math.sqrt(power * r * r_plus_x + 1.0 / (sigma * sigma))
    # Treat it as a normal cut off at the edge, if that is wider.
    z = (m - edge) / sigma
    _, r_plus_z, v = probit_series(min(z, 1e8))
    step = 1.0 if power <= 1.0 else _DENSER
    if sigma * math.sqrt(v) > width:
        mean, std = sigma * (r_plus_z if z < 1e8 else z), sigma * math.sqrt(v)
    else:
        mean, std = peak - edge, width
    if sigma >= 1.3 * length and -4.0 * std < mean < 8.0 * std:
        reach = abs(mean)
        refine = step if reach <= 2.0 * std else 2.0 * step * std / reach
        return y * edge, min(std, length), refine, 0.0
    return y * peak, width, step, 0.0


@kernel
def log_ndtr_slopes(x: float) -> tuple[float, float, float]:
    """Return log Phi(x), its first derivative, and minus its second."""
    if x > 0.0:
        upper = 0.5 * math.erfc(x * _SQRT1_2)
        r = _INV_SQRT_2PI * math.exp(-0.5 * x * x) / (1.0 - upper)
        return math.log1p(-upper), r, r * (r + x)
    e = erfcx(-x * _SQRT1_2)
    value = math.log(0.5 * e) - 0.5 * x * x
    if x > -5.0:
        r = _SQRT_2_PI / e
        return value, r, r * (r + x)
    r, _, v = probit_series(x)
    return value, r, 1.0 - v


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    """E log Phi(y f): the trapezoid rule, in f = sinh u where the normal is wide."""
    a = y * mean
    value, slope, curvature = 0.0, 0.0, 0.0
    if std <= _WIDE or a < -_REACH * std:
        h = _STEP if a < -_REACH * std else min(_STEP, _STEP_F / std)
        count = math.ceil(_REACH / h)
        for j in range(-count, count + 1):
            t = h * j
            x = a + std * t
            if x > _LAST:
                break
            w = math.exp(-0.5 * t * t)
            log_p, r, c = log_ndtr_slopes(x)
            value += w * log_p
            slope += w * r
            curvature += w * c
        h *= _INV_SQRT_2PI
        return h * value, y * h * slope, h * curvature
    if not abs(a) + _REACH * std < _LARGEST:
        return math.nan, math.nan, math.nan
    h = min(_STEP_U, _STEP_W * std / math.hypot(1.0, a))
    u = math.asinh(a - _REACH * std)
    last = math.asinh(min(a + _REACH * std, _LAST))
    while u <= last:
        up = math.exp(u)
        x, jacobian = 0.5 * (up - 1.0 / up), 0.5 * (up + 1.0 / up)
        t = (x - a) / std
        w = jacobian / std * math.exp(-0.5 * t * t)
        log_p, r, c = log_ndtr_slopes(x)
        value += w * log_p
        slope += w * r
        curvature += w * c
        u += h
    h *= _INV_SQRT_2PI
    return h * value, y * h * slope, h * curvature


# R = sigma*/sigma_EP is analytic in x = k/sqrt(16 + k^2), k = y mu/sqrt(1 + sigma^2), and
# l = log10(sigma/sqrt(1 + p^2)), p = (sqrt(16 + k^2) - k)/2, up to and including k = -inf, because
# sqrt(1 + p^2) is |k| times a series in 1/k^2 there. (p stands in for phi(k)/Phi(k): the same
# behaviour, without an exponential.) R = 1 to 1e-15 for k >= 8 and to 5e-11 for l <= -1.6, and is
# R(x, 5) to 3e-10 for l >= 5.
_X_STOP = 8.0 / math.sqrt(80.0)
_HALF_LOG10_E = 0.5 / math.log(10.0)


def _coordinates(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    s2 = sigma * sigma
    k = y * mu / math.sqrt(1.0 + s2)
    if k < -1e8:
        # p = -k to the last digit, and its square may overflow.
        return 0.0, -1.0, 2.0 * _HALF_LOG10_E * math.log(max(sigma / -k, 1e-300))
    root = math.sqrt(16.0 + k * k)
    p = 0.5 * (root - k)
    return 0.0, k / root, _HALF_LOG10_E * math.log(s2 / (1.0 + p * p))


def _cavity(row: float, u: float, v: float) -> tuple[float, float, float]:
    k = -1e8 if u <= -1.0 + 1e-13 else 4.0 * u / math.sqrt(1.0 - u * u)
    p = 0.5 * (math.sqrt(16.0 + k * k) - k)
    sigma = 10.0**v * math.sqrt(1.0 + p * p)
    return k * math.sqrt(1.0 + sigma * sigma), sigma, 1.0


def _link(f: Array) -> Array:
    from scipy.special import ndtr  # takes longer to import than all likelihoods

    return np.asarray(ndtr(f))


def _score(mean: Array, variance: Array) -> Array:
    return mean / np.sqrt(1.0 + variance)


likelihood = Likelihood(
    name="probit",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    moments=Pointer(_moments, MOMENTS),
    frame=LatePointer(_frame, FRAME),
    mirror=True,
    powers=Powers.from_kernels(frame=_raised_frame),
    expected=Pointer(_expected, MOMENTS),
    reduction=Reduction(
        coordinates=Pointer(_coordinates, COORDINATES),
        cavity=_cavity,
        u=Axis("x = k/sqrt(16 + k^2), k = y mu/sqrt(1 + sigma^2)", -1.0, _X_STOP, 113),
        v=Axis("log10(sigma/sqrt(1 + p^2)), p = (sqrt(16 + k^2) - k)/2", -1.6, 5.0, 241),
    ),
    link=_link,
    score=_score,
)
