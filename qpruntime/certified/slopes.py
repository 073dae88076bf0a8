"""Slopes of log p(y|f) in f, of likelihoods that come with the package and are continuous.

With them derivatives of log Z are means of the slope under the tilted density, which cancel nothing
where a narrow cavity hardly moves. A likelihood without one has its derivatives from moments alone.
"""

from __future__ import annotations

import math

from qpruntime.certified.arguments import is_own
from qpruntime.jit import SPLIT, Pointer, kernel
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.binomial import shape as binomial_shape
from qpruntime.likelihoods.logistic import shape as logistic_shape
from qpruntime.likelihoods.negative_binomial import shape as negative_binomial_shape
from qpruntime.likelihoods.poisson_exp import shape as poisson_exp_shape
from qpruntime.likelihoods.probit import log_ndtr_slopes
from qpruntime.likelihoods.softplus import bend_slopes

__all__ = ["NO_SLOPE", "slope_of"]

# Each returns (g, c) with d log p/df = g - c f, as `Likelihood.split` does for log p itself.


def _probit(f, y, theta):
    return y * log_ndtr_slopes(y * f)[1], 0.0


@kernel
def bent_slope(f, shape):
    """Slope of a likelihood of the form in `qpruntime.likelihoods.softplus`."""
    sign, a, inverse, offset, top, _ = shape
    u = sign * f
    if a > 0.0:
        # a - rate, from the distance to the peak, where it is 0.
        t = math.expm1(min(u - top, 700.0))
        return -sign * a * (1.0 - a * inverse) * t / (1.0 + a * inverse * t), 0.0
    return -sign * bend_slopes(u, inverse, offset)[0], 0.0


def _logistic(f, y, theta):
    return bent_slope(f, logistic_shape(y))


def _binomial(f, y, theta):
    return bent_slope(f, binomial_shape(y, theta))


def _negative_binomial(f, y, theta):
    return bent_slope(f, negative_binomial_shape(y, theta))


def _poisson_exp(f, y, theta):
    return bent_slope(f, poisson_exp_shape(y))


def _poisson(f, y, theta):
    if y == 0.0 or f == 0.0:
        return 0.0, 2.0
    return 2.0 * y / f, 2.0


def _student_t(f, y, theta):
    nu, scale = theta[0], theta[1]
    z = (f - y) / scale
    if abs(z) > 1e100:
        return -(nu + 1.0) / z / scale, 0.0
    return -(nu + 1.0) * z / (nu + z * z) / scale, 0.0


def _laplace(f, y, theta):
    return (-1.0 if f > y else 1.0) / theta[0], 0.0


def _none(f, y, theta):
    return math.nan, math.nan


#: What is never called.
NO_SLOPE = Pointer(_none, SPLIT)
_SLOPES = {
    "binomial": Pointer(_binomial, SPLIT),
    "laplace": Pointer(_laplace, SPLIT),
    "logistic": Pointer(_logistic, SPLIT),
    "negative-binomial": Pointer(_negative_binomial, SPLIT),
    "poisson": Pointer(_poisson, SPLIT),
    "poisson-exp": Pointer(_poisson_exp, SPLIT),
    "probit": Pointer(_probit, SPLIT),
    "student-t": Pointer(_student_t, SPLIT),
}


def slope_of(likelihood: Likelihood) -> Pointer:
    """Return the slope of a likelihood of the package, or `NO_SLOPE`."""
    return _SLOPES.get(likelihood.name, NO_SLOPE) if is_own(likelihood) else NO_SLOPE
