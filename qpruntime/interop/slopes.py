"""Expectations and slopes of log p(y|f) of the package's likelihoods, as kernels take them."""

from __future__ import annotations

import math

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime.interop.arguments import is_own
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods._series_kernels import bend_slopes
from qpruntime.likelihoods.binomial import shape as binomial_shape
from qpruntime.likelihoods.logistic import shape as logistic_shape
from qpruntime.likelihoods.negative_binomial import shape as negative_binomial_shape
from qpruntime.likelihoods.poisson_exp import shape as poisson_exp_shape
from qpruntime.likelihoods.probit import log_ndtr_slopes

__all__ = ["NO_SLOPE", "expected_of", "slope_of"]

# --- E log p(y|f) under f ~ N(mean, std^2), and its slope and curvature in the mean ---------------

#: Step of the trapezoid rule in log t, exp(-pi^2/_STEP) = 1e-17; terms below exp(-_CUT) are left
#: out.
_STEP, _CUT = 0.25, 40.0
#: Sizes of (f - y)/scale whose squares need care.
_VAST = 1e100


def _student_t(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    # For X = (f - y)/scale ~ N(d, s^2), E log(1 + X^2/nu) is the integral over log t of e^-t (1 -
    # M(t)), M(t) = E exp(-t X^2/nu) = a^-1/2 exp(-t d^2/(nu a)), a = 1 + 2 t s^2/nu.
    nu, scale = theta[0], theta[1]
    # Beyond _VAST scales only log X^2 remains, and its unit is factored out.
    vast, size = _VAST * scale, math.hypot(mean - y, std)
    if not size < math.inf:
        return math.nan, math.nan, math.nan
    excess = 0.0
    if size > vast:
        excess = math.log(size / _VAST) - math.log(scale)
        scale = size / _VAST
    d, s = (mean - y) / scale, std / scale
    d2, s2 = d * d / nu, 2.0 * s * s / nu
    u = -math.log1p(s2 + d2) - _CUT
    value, by_d, by_s = 0.0, 0.0, 0.0
    while True:
        t = math.exp(u)
        if t > _CUT:
            break
        a = 1.0 + t * s2
        pull = t * d2 / a
        e = -0.5 * math.log1p(t * s2) - pull
        weight = math.exp(-t)
        value -= weight * math.expm1(e)
        part = weight * math.exp(e) * t / a
        by_d += part
        by_s += part * (1.0 - 2.0 * pull)
        u += _STEP
    half = 0.5 * (nu + 1.0) * _STEP
    slope = -half * 2.0 * d / nu * by_d / scale
    value = theta[2] - half * value - (nu + 1.0) * excess
    return value, slope, half * 2.0 / nu * by_s / scale / scale


def _heaviside(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    return -math.inf, math.nan, math.nan


_EXPECTED = {
    "heaviside": Pointer(_heaviside, MOMENTS),
    "student-t": Pointer(_student_t, MOMENTS),
}


def expected_of(likelihood: Likelihood) -> Pointer | None:
    """Return `Likelihood.expected`, or what stands here for it; None for any other density."""
    return likelihood.expected or (
        _EXPECTED.get(likelihood.name) if likelihood.recipe is None else None
    )


# --- Slopes of log p(y|f) in f -------------------------------------------------------------------

# Each returns (g, c) with d log p/df = g - c f, as `Likelihood.split` does for log p itself.


def _probit(f: float, y: float, theta: Array) -> tuple[float, float]:
    return y * log_ndtr_slopes(y * f)[1], 0.0


@kernel
def bent_slope(f: float, shape: Floats) -> tuple[float, float]:
    """Slope of a likelihood of the form in `qpruntime.likelihoods._series_kernels`."""
    sign, a, inverse, offset, top, _ = shape
    u = sign * f
    if a > 0.0:
        # a - rate, from the distance to the peak, where it is 0.
        t = math.expm1(min(u - top, 700.0))
        return -sign * a * (1.0 - a * inverse) * t / (1.0 + a * inverse * t), 0.0
    return -sign * bend_slopes(u, inverse, offset)[0], 0.0


def _logistic(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent_slope(f, logistic_shape(y))


def _binomial(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent_slope(f, binomial_shape(y, theta))


def _negative_binomial(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent_slope(f, negative_binomial_shape(y, theta))


def _poisson_exp(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent_slope(f, poisson_exp_shape(y))


def _poisson(f: float, y: float, theta: Array) -> tuple[float, float]:
    if y == 0.0 or f == 0.0:
        return 0.0, 2.0
    return 2.0 * y / f, 2.0


def _student_t_slope(f: float, y: float, theta: Array) -> tuple[float, float]:
    nu, scale = theta[0], theta[1]
    z = (f - y) / scale
    if abs(z) > 1e100:
        return -(nu + 1.0) / z / scale, 0.0
    return -(nu + 1.0) * z / (nu + z * z) / scale, 0.0


def _laplace(f: float, y: float, theta: Array) -> tuple[float, float]:
    return (-1.0 if f > y else 1.0) / theta[0], 0.0


def _none(f: float, y: float, theta: Array) -> tuple[float, float]:
    return math.nan, math.nan


#: Placeholder that is never called.
NO_SLOPE = Pointer(_none, SPLIT)
_SLOPES = {
    "binomial": Pointer(_binomial, SPLIT),
    "laplace": Pointer(_laplace, SPLIT),
    "logistic": Pointer(_logistic, SPLIT),
    "negative-binomial": Pointer(_negative_binomial, SPLIT),
    "poisson": Pointer(_poisson, SPLIT),
    "poisson-exp": Pointer(_poisson_exp, SPLIT),
    "probit": Pointer(_probit, SPLIT),
    "student-t": Pointer(_student_t_slope, SPLIT),
}


def slope_of(likelihood: Likelihood) -> Pointer:
    """Return the slope of a likelihood of the package, or `NO_SLOPE`."""
    return _SLOPES.get(likelihood.name, NO_SLOPE) if is_own(likelihood) else NO_SLOPE
