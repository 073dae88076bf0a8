"""Poisson with the square link: p(y|f) = f^(2y) exp(-f^2)/y!, y = 0, 1, 2, ...

Let s = sigma/sqrt(1 + 2 sigma^2) and b = |mu|/(sigma sqrt(1 + 2 sigma^2)). The tilted density of g
= f/s (turned so that b >= 0) is proportional to g^(2y) N(g | b, 1): sigma*/s depends on y and b
alone. It has two peaks if y >= 1, of equal mass at b = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import kernel
from qpruntime._pointers import COORDINATES, MOMENTS, SPLIT, Pointer
from qpruntime._special import HALF_LOG_2PI, power_peak_ratio
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import log1p_less, log_peak
from qpruntime.likelihoods.base import (
    CLOSED,
    INTEGRATE,
    Likelihood,
    Powers,
    Rate,
    RateLink,
    Reduction,
    normal_rule,
)
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts
from qpruntime.table_format.metadata import Axis

__all__ = ["LARGEST_COUNT", "likelihood"]

#: Up to here a recursion (6 ns a count), beyond a sum of 31 terms (0.4 to 0.7 us).
_RECURSION = 50
#: Up to this b^2/2 a series of at most so many terms for what is no count; then its kink at 0,
#: whose mass is less than 1e-20, is beyond the sum.
_SHORT, _MOST_TERMS = 60.0, 2000
_HALF_LOG_PI = 0.5 * math.log(math.pi)
_G0 = -0.57721566490153286061 - math.log(2.0)
#: m^2/(2 v) beyond which the asymptotic series of E log f^2 is good to 1e-16.
_FAR = 40.0
#: A second peak below exp(-_MINOR) of the first moves sigma* by less than 1e-13.
_MINOR = 46.0
#: Limit of b above which the asymptotic form is used.
_BEYOND = 1e70
#: Even steps of 0.12 times this (in s): thirds of it change sigma* by less than 1e-13.
_WIDTH = 1.3


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    if y == 0.0:
        return 0.0, 2.0
    if f == 0.0:
        return -math.inf, 2.0
    return 2.0 * y * math.log(abs(f) / math.sqrt(y)) + (log_peak(y) + y), 2.0


@kernel
def scales(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
    """Return s, b and the peak of g^(2y) exp(-(g - b)^2/2) right of 0."""
    root = math.sqrt(1.0 + 2.0 * sigma * sigma)
    b = abs(mu) / sigma / root
    return sigma / root, b, 0.5 * (b + math.sqrt(b * b + 8.0 * y))


@kernel
def by_recursion(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
    """Return moments by a recursion over t_j = M_(2j+1)/(b M_2j), M_n the moments of N(b, 1).

    t_0 = 1, M_(2j+2)/M_2j = p_j = b^2 t_j + 2j + 1 and t_(j+1) = 1 + (2j + 2) t_j/p_j. Nothing is
    subtracted, and b = 0 is not special.
    """
    a = 1.0 + 2.0 * sigma * sigma
    centre, s2 = mu / a, sigma * sigma / a
    x = (mu / sigma) ** 2 / a
    log_z = -0.5 * math.log1p(2.0 * sigma * sigma) - mu * centre
    t, before, p, product = 1.0, 1.0, 1.0, 1.0
    for j in range(int(y)):
        p = x * t + (2 * j + 1)
        # The factor s^2 p/(j + 1) of Z, without b, which may be large where s is small.
        product *= (centre * centre * t + (2 * j + 1) * s2) / (j + 1)
        if not 1e-100 < product < 1e100:
            log_z += math.log(product)
            product = 1.0
        before, t = t, 1.0 + (2 * j + 2) * t / p
    # E g^2 - (E g)^2 = 1 + 2y + b R - R^2 with R = b t, solved for what is left of 1.
    excess = 2.0 * y * ((2.0 * y - 1.0) * t - 2.0 * y * before) / p
    return log_z + math.log(product), centre * t, s2 * (1.0 + excess)


@kernel
def by_sum(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
    """Moments by the trapezoid rule for g^n exp(-(g - b)^2/2) (1 + exp(-2 b g)) on g > 0, n = 2y.

    This folds the left peak onto the right one. Let T = tanh(b g) be the mean of the sign. Then the
    tilted mean is that of gT, and the variance Var(gT) + E g^2 (1 - T^2).
    """
    s, b, g1 = scales(mu, sigma, y)
    n = 2.0 * y
    h = 0.6 / math.sqrt(1.0 + n / (g1 * g1))
    guess = g1 * math.tanh(b * g1)
    residual = g1 - guess
    mass, first, second, folded = 0.0, 0.0, 0.0, 0.0
    for j in range(-15, 16):
        d = h * j
        g = g1 + d
        k = math.exp(n * log1p_less(d / g1) - 0.5 * d * d)
        x = 2.0 * b * g
        # g tanh(b g) - guess, which is small next to guess if b is large, next to g if b is small.
        if x > 60.0:
            shift = d + residual
        else:
            e = math.exp(-x)
            if x > 1.0:
                shift = d + residual - 2.0 * g * e / (1.0 + e)
            else:
                shift = -g * math.expm1(-x) / (1.0 + e) - guess
            k *= 1.0 + e
            folded += k * g * g * 4.0 * e / ((1.0 + e) * (1.0 + e))
        mass += k
        first += k * shift
        second += k * shift * shift
    first /= mass
    variance = second / mass - first * first + folded / mass
    f1 = s * g1
    # log p(y|f1) relative to its maximum over f, and the exponent of the cavity at f1; for a
    # narrow cavity f1 - mu cancels and comes from the equation for the peak.
    e = (f1 * f1 - y) / y
    peak = y * (log1p_less(e) if e > -0.5 else math.log(f1 * f1 / y) - e)
    far = (f1 - abs(mu)) / sigma if sigma > 0.7 else 2.0 * sigma * y * e / f1
    log_z = (
        -0.5 * math.log1p(2.0 * sigma * sigma)
        - HALF_LOG_2PI
        + log_peak(y)
        + peak
        - 0.5 * far * far
        + math.log(h * mass)
    )
    return log_z, math.copysign(s * (guess + first), mu), s * s * variance


@kernel
def by_series(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
    """`by_recursion` for any y >= 0: M_2y is a mixture of moments of chi distributions.

    E |g|^2y = 2^y e^-x sum over k of x^k/k! Gamma(y + k + 1/2)/Gamma(k + 1/2), x = b^2/2, whose
    terms are positive; so are those of E g |g|^2y/b, with k + 3/2.
    """
    a = 1.0 + 2.0 * sigma * sigma
    s2 = sigma * sigma / a
    x = 0.5 * (mu / sigma) ** 2 / a
    even, odd, square = 1.0, (y + 0.5) / 0.5, y + 0.5
    total, first, second = 0.0, 0.0, 0.0
    for k in range(_MOST_TERMS):
        total += even
        first += odd
        second += square
        if k > x and even + odd + square < 1e-18 * (total + first + second):
            break
        share = x / (k + 1.0)
        even *= share * (y + k + 0.5) / (k + 0.5)
        odd *= share * (y + k + 1.5) / (k + 1.5)
        square *= share * (y + k + 1.5) / (k + 0.5)
    log_z = math.lgamma(y + 0.5) - _HALF_LOG_PI - math.lgamma(y + 1.0) - x + math.log(total)
    log_z += y * math.log(2.0 * s2) - 0.5 * math.log(a) - mu * mu / a
    r = first / total
    return log_z, mu / a * r, s2 * (2.0 * second / total - 2.0 * x * r * r)


@kernel
def far_moments(mu: float, sigma: float, y: float) -> tuple[float, float, float]:
    """Moments where squares would overflow: the likelihood is exp(-f^2) times a constant."""
    a = 1.0 + 2.0 * sigma * sigma
    centre = mu / a
    log_z = 2.0 * y * math.log(abs(centre)) - math.lgamma(y + 1.0) - 0.5 * math.log(a)
    return log_z - mu * centre, centre, sigma * sigma / a


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    if abs(mu) > _BEYOND * sigma * math.sqrt(1.0 + 2.0 * sigma * sigma):
        return far_moments(mu, sigma, y)
    if y <= _RECURSION:
        return by_recursion(mu, sigma, y)
    return by_sum(mu, sigma, y)


# A power w makes it a count of w y: log p is w y log g^2 - g^2 plus a constant, for g = sqrt(w) f.
@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    root, v = math.sqrt(power), power * y
    m, s = root * mu, root * sigma
    x = 0.5 * (m / s) ** 2 / (1.0 + 2.0 * s * s)
    if x > 0.5 * _BEYOND**2:
        log_z, mean, variance = far_moments(m, s, v)
    elif v <= _RECURSION and v == math.floor(v):
        log_z, mean, variance = by_recursion(m, s, v)
    elif v <= _RECURSION and x < _SHORT:
        log_z, mean, variance = by_series(m, s, v)
    else:
        log_z, mean, variance = by_sum(m, s, v)
    return log_z + power * log_peak(y) - log_peak(v), mean / root, variance / power


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    root = math.sqrt(power)
    centre, width, refine, side = frame(root * mu, root * sigma, power * y)
    if side != 0.0 and (power * y) % 1.0 != 0.0:
        return centre, math.nan, refine, side  # |f|^(2wy) has a kink at 0
    return centre / root, width / root, refine, side


@kernel
def frame(mu: float, sigma: float, y: float) -> Floats:
    """`Likelihood.frame` for any y >= 0; meaningless between 0 and 1 where there are two peaks."""
    s, b, g1 = scales(mu, sigma, y)
    if y == 0.0:
        return math.copysign(s * b, mu), s, 1.0, 0.0
    n = 2.0 * y
    # log of the right peak over the left one, which lies at g = -n/g1.
    drop = 0.5 * b * math.sqrt(b * b + 4.0 * n) + 2.0 * n * math.asinh(0.5 * b / math.sqrt(n))
    if drop > _MINOR:
        return math.copysign(s * g1, mu), s / math.sqrt(1.0 + n / (g1 * g1)), 1.0, 0.0
    # F is nearly level where the density g^n vanishes, and takes the values 1 or 0 nearby in the
    # complex plane. The nodes have to be dense there if n is small; large n needs nothing. The leap
    # is over before the left peak comes within nine of its deviations, 1/sqrt(2).
    gap = (n / g1 - 6.2) / _WIDTH
    leap = gap - 0.25 * math.log(16.0 * max(gap, 1.0))
    side = leap if leap >= 2.0 else -2.0 - 7.0 / max(n - 1.0, 1.0)
    return 0.0, _WIDTH * s, 1.0, side


@kernel
def log_square(mean: float, variance: float) -> tuple[float, float, float]:
    """E log f^2, its derivative by the mean, and by the variance.

    f^2/v is noncentral chi-square with one degree of freedom, a Poisson mixture of central ones:
    E log f^2 = log 2v + sum_j w_j digamma(1/2 + j), w_j the Poisson weights of x = m^2/(2v).
    """
    x = 0.5 * mean * mean / variance
    if x > _FAR:
        q = 0.5 / x
        # The sum of (2k - 1)!! q^(k - 1), which is 1 where the variance is lost beside the mean.
        power, total, slopes = 1.0, 0.0, 0.0
        for k in range(1, 40):
            term = (2 * k - 1) * power
            power = term * q
            total += power / k
            slopes += term
            if power < 1e-17:
                break
        return (
            2.0 * math.log(abs(mean)) - total,
            2.0 / mean * (1.0 + q * slopes),
            -slopes / (mean * mean),
        )
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


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    """E log p(y|f) for p = f^(2y) exp(-f^2)/y!, closed."""
    square = mean * mean + std * std
    if y == 0.0:
        return -square, -2.0 * mean, 2.0
    # The unit is chosen so that squares neither vanish nor overflow.
    unit = math.hypot(mean, std)
    value, by_mean, by_variance = log_square(mean / unit, (std / unit) ** 2)
    value += 2.0 * math.log(unit)
    return (
        y * value - square - math.lgamma(y + 1.0),
        y * by_mean / unit - 2.0 * mean,
        2.0 - 2.0 * y * by_variance / unit / unit,
    )


# R = sigma*/sigma_EP is, for each count, an analytic function of W^2 = b^2 (b^2 + 8y), and of
# x = log(1 + W^2/16). The log of the two peaks' ratio lies between W/2 and W: beyond W = 80 the
# lower peak is gone (e^-47 at y = 1), and a series holds for every count.
_W2_STOP = 6400.0
_X_STOP = math.log1p(_W2_STOP / 16.0)
#: Counts with a row in the shipped table; beyond, two peaks are integrated.
TABULATED = range(1, 501)
_LAST_ROW = float(TABULATED[-1])


def _coordinates(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    if y == 0.0:
        return CLOSED, 1.0, 0.0
    s2 = sigma * sigma
    b2 = mu * mu / (s2 * (1.0 + 2.0 * s2))
    w2 = b2 * (b2 + 8.0 * y)
    if w2 > _W2_STOP:
        return CLOSED, power_peak_ratio(2.0 * y, math.sqrt(b2)), 0.0
    if y > _LAST_ROW:
        return INTEGRATE, 0.0, 0.0
    return y - 1.0, 0.0, math.log(1.0 + w2 * 0.0625)


def _scale(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    root = math.sqrt(1.0 + 2.0 * sigma * sigma)
    b2 = (mu / (sigma * root)) ** 2
    return sigma / root, math.log1p(b2 * (b2 + 8.0 * y) / 16.0), 0.0


def _cavity(row: float, u: float, v: float) -> tuple[float, float, float]:
    # W^2 solved for b^2 without cancellation; sigma = 1.
    y = row + 1.0
    w2, half = 16.0 * math.expm1(max(v, 0.0)), 4.0 * y
    if w2 == 0.0:
        return 0.0, 1.0, y
    return math.sqrt(3.0 * w2 / (half + math.sqrt(half * half + w2))), 1.0, y


@dataclass(frozen=True)
class SquareRate(Rate):
    """f^2 for f ~ N(mean, std^2)."""

    mean: Array
    std: Array

    def tail(self, g: Array, upper: bool) -> Array:
        from scipy.special import ndtr  # takes longer to import than all likelihoods

        root, mean, std = np.sqrt(g), np.abs(self.mean)[:, None], self.std[:, None]
        beyond = ndtr(-(root + mean) / std)  # on the other side of zero
        near = (root - mean) / std
        return ndtr(-near) + beyond if upper else ndtr(near) - beyond

    def nodes(self) -> tuple[Array, Array]:
        f, weights = normal_rule(self.mean, self.std)
        return f * f, weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        return self.std < 0.5

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        mean = np.abs(self.mean)
        below = np.maximum(mean - self.std * np.sqrt(2.0 * low), 0.0)
        return below, mean + self.std * np.sqrt(2.0 * high)


class Square(RateLink):
    """Rate f^2."""

    name, two_signs, like_gamma = "square", True, True

    def latent(self, rate: float) -> float:
        return math.sqrt(rate)

    def spread(self, mean: float) -> float:
        return 0.5 * abs(mean) or 1.0

    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        return np.sqrt(exposure), np.zeros_like(exposure)

    def mean_rate(self, mean: Array, variance: Array) -> Array:
        return mean**2 + variance

    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        rate = self.mean_rate(mean, variance)
        return rate, 2.0 * variance * (2.0 * mean**2 + variance) / rate

    def distribution(self, mean: Array, variance: Array) -> Rate:
        return SquareRate(mean, np.sqrt(variance))


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("poisson", f * f)


likelihood = Likelihood(
    name="poisson",
    outcomes=f"counts 0, 1, 2, ... {LARGEST_COUNT}",
    split=Pointer(_split, SPLIT),
    validate=counts,
    moments=Pointer(_moments, MOMENTS),
    log_concave=False,
    even=True,
    powers=Powers.from_kernels(_raised_moments, _frame, whole=False),
    expected=Pointer(_expected, MOMENTS),
    reduction=Reduction(
        coordinates=Pointer(_coordinates, COORDINATES),
        cavity=_cavity,
        v=Axis(
            "log(1 + b^2 (b^2 + 8y)/16), b^2 = mu^2/(sigma^2 (1 + 2 sigma^2))", 0.0, _X_STOP, 241
        ),
        outcomes=TABULATED,
        largest=LARGEST_COUNT,
        scale=Pointer(_scale, COORDINATES),
    ),
    rate=Square(),
    given=_given,
)
