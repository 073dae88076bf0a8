"""Expected log likelihoods E log p(y|f) under f ~ N(mean, std^2), and their derivatives.

Each function returns (E, dE/dmean, -2 dE/dvariance); likelihoods hand them to kernels.
By Price's theorem the derivatives are E d log p/df and -E d^2 log p/df^2, the site of the
variational approximation; they also hold for log f^2, whose second derivative has no expectation.
"""

from __future__ import annotations

import math

from qpruntime.jit import call_moments, kernel
from qpruntime.special import erfcx, probit_series

__all__ = [
    "expect_all",
    "laplace_expected",
    "poisson_exp_expected",
    "poisson_expected",
    "probit_expected",
    "softplus_expected",
]

_SQRT1_2 = math.sqrt(0.5)
_SQRT_2_PI = math.sqrt(2.0 / math.pi)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_G0 = -0.57721566490153286061 - math.log(2.0)
# exp(-_REACH^2/2) = 4e-17; log Phi(_LAST) = -1e-21.
_REACH = 8.7
_LAST = 9.5
#: Steps of the trapezoid rule: in standard deviations; in f, near the zeros of Phi at 1.9 +- 2.8i;
#: in u where f = sinh u, and there in standard deviations at the mean. Good to 1e-11.
_STEP, _STEP_F, _STEP_U, _STEP_W = 0.7, 0.42, 0.11, 0.4
#: Of the rule for the logistic function: singular at pi i, so that a step times std is what counts.
_STEP_LOGISTIC, _WIDE_LOGISTIC = 0.55, 3.0
#: Standard deviation beyond which the edge of Phi is narrow beside the normal.
_WIDE = 1.3
#: m^2/(2 v) beyond which the asymptotic series of E log f^2 is good to 1e-16.
_FAR = 40.0


@kernel
def log_ndtr_slopes(x):
    """log Phi(x), its first derivative, and minus its second."""
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


def probit_expected(mean, std, y, theta):
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
    h = min(_STEP_U, _STEP_W * std / math.sqrt(1.0 + a * a))
    u = math.asinh(a - _REACH * std)
    last = math.asinh(min(a + _REACH * std, _LAST))
    while u <= last:
        up = math.exp(u)
        x, jacobian = 0.5 * (up - 1.0 / up), 0.5 * (up + 1.0 / up)
        t = (x - a) / std
        w = jacobian * math.exp(-0.5 * t * t)
        log_p, r, c = log_ndtr_slopes(x)
        value += w * log_p
        slope += w * r
        curvature += w * c
        u += h
    h *= _INV_SQRT_2PI / std
    return h * value, y * h * slope, h * curvature


@kernel
def log_square(mean, variance):
    """E log f^2, its derivative by the mean, and by the variance.

    f^2/v is noncentral chi-square with one degree of freedom, a Poisson mixture of central ones:
    E log f^2 = log 2v + sum_j w_j digamma(1/2 + j), w_j the Poisson weights of x = m^2/(2v).
    """
    x = 0.5 * mean * mean / variance
    if x > _FAR:
        q = 0.5 / x
        term, total, slopes = 1.0, 0.0, 0.0
        for k in range(1, 40):
            term *= (2 * k - 1) * q
            total += term / k
            slopes += term
            if term < 1e-17:
                break
        return 2.0 * math.log(abs(mean)) - total, 2.0 / mean * (1.0 + slopes), -slopes / variance
    weight = math.exp(-x)
    level, total, slope = 0.0, 0.0, 0.0
    for j in range(int(x + 12.0 * math.sqrt(x) + 20.0)):
        total += weight * level
        slope += weight / (j + 0.5)
        level += 1.0 / (j + 0.5)
        weight *= x / (j + 1.0)
    return (
        math.log(variance) + _G0 + total,
        mean / variance * slope,
        (1.0 - x * slope) / variance,
    )


def poisson_expected(mean, std, y, theta):
    """E log p(y|f) for p = f^(2y) exp(-f^2)/y!, closed."""
    variance = std * std
    if y == 0.0:
        return -(mean * mean + variance), -2.0 * mean, 2.0
    value, by_mean, by_variance = log_square(mean, variance)
    return (
        y * value - (mean * mean + variance) - math.lgamma(y + 1.0),
        y * by_mean - 2.0 * mean,
        2.0 - 2.0 * y * by_variance,
    )


@kernel
def softplus_expected(mean, std):
    """E log(1 + e^f), E s(f) and E s'(f), s the logistic function: a trapezoid rule as above.

    The first is singular at pi i, and behaves like f on the right.
    """
    value, slope, curvature = 0.0, 0.0, 0.0
    wide = std > _WIDE_LOGISTIC
    if wide:
        h = min(_STEP_U, _STEP_W * std / math.sqrt(1.0 + mean * mean))
        u, last = math.asinh(mean - _REACH * std), math.asinh(mean + _REACH * std)
    else:
        h = min(0.5, _STEP_LOGISTIC / std)
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


def poisson_exp_expected(mean, std, y, theta):
    """E log p(y|f) for counts of rate e^f, closed: E e^f = exp(mean + variance/2)."""
    rate = math.exp(min(mean + 0.5 * std * std, 700.0))
    return y * mean - rate - math.lgamma(y + 1.0), y - rate, rate


def laplace_expected(mean, std, y, theta):
    """E log p(y|f) for p = exp(-|y - f|/scale)/(2 scale), closed: theta = (scale, -log 2 scale)."""
    d = (mean - y) / std
    density = _SQRT_2_PI * math.exp(-0.5 * d * d)
    side = math.erf(d * _SQRT1_2)
    return (
        theta[1] - std * (density + d * side) / theta[0],
        -side / theta[0],
        density / (std * theta[0]),
    )


@kernel
def expect_all(expected, theta, mean, variance, y, value, slope, curvature):
    """Fill the three results of a likelihood's `expected` for N observations."""
    for i in range(mean.size):
        value[i], slope[i], curvature[i] = call_moments(
            expected, mean[i], math.sqrt(variance[i]), y[i], theta
        )
