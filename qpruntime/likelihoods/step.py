"""Step: a likelihood of two heights, one left of f = 0 and one right of it.

y = log(height right of 0 / height left of 0) is any number, infinities included, and the higher
side has height 1: +-inf is the heaviside, 0 says nothing. The factors of constrained Bayesian
optimisation are such steps (`qpruntime.bayesopt`). A tilted density is the cavity cut at 0 into two
pieces, so moments are closed, and sigma* is two one-sided integrals.
"""

from __future__ import annotations

import math

from qpruntime._numba import kernel
from qpruntime._pointers import LANDMARK, MOMENTS, RULE, SPLIT, LatePointer, Pointer
from qpruntime._special import erfcx, log_ndtr, ndtri_density, probit_series
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.responses import log_ratios

__all__ = ["likelihood"]

_SQRT1_2 = math.sqrt(0.5)
_SQRT_2PI = math.sqrt(2.0 * math.pi)
#: |mu|/sigma beyond which squares would overflow; nothing changes there.
_FAR = 1e150
#: 1 - Phi(9.5) = 1e-21: no mass beyond; trapezoid step, halved without effect in the test.
_REACH, _STEP = 9.5, 0.09
#: Tail masses below this add nothing, whatever the other side has.
_NO_MASS = 1e-290


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return (-abs(y) if y * f < 0.0 else 0.0), 0.0


@kernel
def pieces(alpha: float, y: float) -> tuple[float, float, float]:
    """Return log Z, and the parts of the mass right and left of 0, for y >= 0 and a unit cavity."""
    log_right, log_left = log_ndtr(alpha), log_ndtr(-alpha)
    lost = -math.expm1(-y) * math.exp(log_left)
    low = log_left - y
    if lost < 0.5:
        log_z = math.log1p(-lost)
    elif log_right > low:
        log_z = log_right + math.log1p(math.exp(low - log_right))
    else:
        log_z = low + math.log1p(math.exp(log_right - low))
    odds = y + log_right - log_left
    small = math.exp(-abs(odds))
    larger, smaller = 1.0 / (1.0 + small), small / (1.0 + small)
    return (log_z, larger, smaller) if odds >= 0.0 else (log_z, smaller, larger)


@kernel
def two_sided(mu: float, sigma: float, y: float) -> Floats:
    """Return log Z, mean, variance, alpha and the parts of the mass, mirrored so that y >= 0."""
    sign = -1.0 if y < 0.0 else 1.0
    y = abs(y)
    alpha = min(max(sign * mu / sigma, -_FAR), _FAR)
    log_z, right_share, left_share = pieces(alpha, y)
    # A unit normal cut off at 0 has the mean t + r(t) and the variance V(t), t = +-alpha.
    _, up, v_right = probit_series(alpha)
    _, down, v_left = probit_series(-alpha)
    variance = (
        right_share * v_right + left_share * v_left + right_share * left_share * (up + down) ** 2
    )
    rho = -math.expm1(-y) * math.exp(-0.5 * alpha * alpha - log_z) / _SQRT_2PI
    mean = (
        mu + sign * sigma * rho
        if rho < 0.5
        else sign * sigma * (right_share * up - left_share * down)
    )
    return log_z, mean, sigma * sigma * variance, alpha, right_share, left_share


# Heights to a power: the logarithm of their ratio is multiplied.
@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    log_z, mean, variance, _, _, _ = two_sided(mu, sigma, y * power)
    return log_z, mean, variance


@kernel
def tail(t: float, x: float) -> float:
    """log(Phi(t - x)/Phi(t)), x >= 0, without the squares that cancel for t < 0."""
    if t < -1.0:
        ratio = erfcx((x - t) * _SQRT1_2) / erfcx(-t * _SQRT1_2)
        return math.log(ratio) - x * (0.5 * x - t)
    return log_ndtr(t - x) - log_ndtr(t)


@kernel
def height(q: float, rest: float, log_ratio: float) -> float:
    """phi(Phi^-1(p)), p = q e^log_ratio, 1 - q = rest: by whichever of p and 1 - p is small."""
    p = q * math.exp(log_ratio)
    if p > 0.5:
        p = rest - q * math.expm1(log_ratio)
    return ndtri_density(p)[0] if p > _NO_MASS else 0.0


@kernel
def one_side(t: float, q: float, rest: float) -> float:
    """int_0^inf phi(Phi^-1(q Phi(t - x)/Phi(t))) dx, 1 - q = rest: sigma*/sigma of one side.

    The variable beyond the edge at x = 0 is x = c log(1 + e^(u - e^-u)), dense at the edge. A far
    edge does not matter, because the integrand is constant up to x = t - 9.5.
    """
    if q < _NO_MASS:
        return 0.0
    total = 0.0
    if t > _REACH + 1.0:
        level = height(q, rest, 0.0)
        total = 0.5 * _STEP * level
        s = -_REACH + _STEP
        while s < 2.0 * _REACH:
            h = height(q, rest, log_ndtr(-s))
            total += _STEP * h
            if s > 0.0 and h < 1e-18 * total:
                break
            s += _STEP
        return total + (t - _REACH) * level
    c = min(1.0, 2.0 * math.sqrt(probit_series(t)[2]))
    # e^(u - e^-u) is 1e-16 at u = -3.5, where the integrand is bounded.
    u = -3.7
    best = 0.0
    while u < 60.0:
        down = math.exp(-u)
        part = math.exp(u - down)
        h = height(q, rest, tail(t, c * math.log1p(part))) * part / (1.0 + part) * (1.0 + down)
        total += h
        best = max(best, h)
        if u > 0.0 and h < 1e-18 * best:
            break
        u += _STEP
    return c * _STEP * total


def _rule(
    split: int, landmark: int, power: float, mu: float, sigma: float, y: float, theta: Array
) -> Floats:
    log_z, mean, variance, alpha, right_share, left_share = two_sided(mu, sigma, y * power)
    if alpha > 8.5:
        # The mass beyond the edge is below 1e-17, so the density is a normal.
        return 0.0, log_z, mean, variance, math.sqrt(variance)
    star = one_side(alpha, right_share, left_share) + one_side(-alpha, left_share, right_share)
    return 0.0, log_z, mean, variance, sigma * star


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    # -|y| times the mass on the lower side; no expectation where that has height 0.
    if math.isinf(y):
        return -math.inf, math.nan, math.nan
    sign = math.copysign(1.0, y)
    alpha = min(max(sign * mean / std, -_FAR), _FAR)
    mass = 0.5 * math.erfc(alpha * _SQRT1_2)
    slope = y * math.exp(-0.5 * alpha * alpha) / (_SQRT_2PI * std)
    return -abs(y) * mass, slope, sign * slope * alpha / std


def _edge(y: float, theta: Array, k: int) -> float:
    return 0.0 if k == 0 else math.nan


likelihood = Likelihood(
    name="step",
    outcomes="the logarithm of the height right of 0 over that left of it, infinite for a wall",
    split=Pointer(_split, SPLIT),
    validate=log_ratios,
    rule=LatePointer(_rule, RULE),
    landmarks=Pointer(_edge, LANDMARK),
    powers=Powers.from_kernels(_moments),
    expected=Pointer(_expected, MOMENTS),
    log_concave=False,
)
