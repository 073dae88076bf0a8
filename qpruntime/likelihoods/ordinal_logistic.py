"""Levels 0, 1, 2, ... in an order: y is how many thresholds f plus logistic noise is above.

This is the model of proportional odds: the log odds that y is above a level are f less a threshold.
Thresholds are those of `ordinal`, whose noise is normal, and so are the parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import logistic, softplus
from qpruntime.likelihoods._unimodal_kernels import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Powers
from qpruntime.likelihoods.ordinal import (
    LevelDistribution,
    edges_of,
    ends_top,
    likelihood as normal_noise,
)

__all__ = ["likelihood"]

#: Cavities up to this standard deviation take even steps: poles of p are at a threshold +- pi i, so
#: that steps of at most `_STEP` leave exp(-2 pi^2/_STEP), and those of `_NORMAL` widths of the
#: cavity exp(-2 pi^2/_NORMAL^2).
_WIDEST, _STEP, _NORMAL = 16.0, 0.43, 0.66
#: Newton steps towards the mode, and the share of a width that may be left; nodes on one side.
_NEWTON, _NEAR, _MOST = 40, 0.1, 400
#: Nodes of less than this share of the sum end it.
_LOW = 1e-19


@kernel
def log_level(f: float, y: float, theta: Array) -> float:
    """Log probability of a level; nothing cancels.

    p = s(b - f) s(f - a) (1 - e^(a - b)) between thresholds a < b, with s(x) = 1/(1 + e^-x).
    """
    low, high = edges_of(y, theta)
    log_p = 0.0
    if high < math.inf:
        log_p -= softplus(f - high)
    if low > -math.inf:
        log_p -= softplus(low - f)
        if high < math.inf:
            log_p += math.log(-math.expm1(low - high))
    return log_p


@kernel
def near_mode(mu: float, sigma: float, low: float, high: float) -> float:
    """Return the mode of the tilted density, within a fraction of its width."""
    flat = 1.0 / (sigma * sigma)
    # The slope of log p is between -1 and 1.
    first, last, f = mu - sigma * sigma, mu + sigma * sigma, mu
    for _ in range(_NEWTON):
        falls, rises = logistic(f - high), logistic(low - f)
        slope = rises - falls - (f - mu) * flat
        bend = flat + falls * (1.0 - falls) + rises * (1.0 - rises)
        if slope * slope < _NEAR * _NEAR * bend:
            break
        if slope > 0.0:
            first = f
        else:
            last = f
        f += slope / bend
        if not first < f < last:
            f = first + 0.5 * (last - first)
    return f


@kernel
def even_steps(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    """Log normaliser, mean and variance of the tilted density, by the trapezoid rule.

    There is no exponential a node: e^f is a product, and so is the normal's ratio of neighbours.
    """
    low, high = edges_of(y, theta)
    mode = near_mode(mu, sigma, low, high)
    # 1 + e^(f - high) is a0 + a1 r at f = mode + log r, but for a factor; 1 + e^(low - f) is
    # b0 + b1/r.
    over, under = math.exp(-abs(mode - high)), math.exp(-abs(low - mode))
    a0, a1 = (1.0, over) if mode < high else (over, 1.0)
    b0, b1 = (1.0, under) if mode > low else (under, 1.0)
    at_mode = (a0 + a1) * (b0 + b1)
    step = min(_NORMAL * sigma, _STEP)
    tilt, scaled = (mode - mu) / sigma, step / sigma
    mass, first, second = 1.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        grow, r, d = math.exp(direction * step), 1.0, 0.0
        ratio = math.exp(-scaled * (direction * tilt + 0.5 * scaled))
        normal, fall = 1.0, math.exp(-scaled * scaled)
        for _ in range(_MOST):
            d += direction * step
            r *= grow
            normal *= ratio
            ratio *= fall
            k = at_mode * normal * r / ((a0 + a1 * r) * (b0 * r + b1))
            mass += k
            first += k * d
            second += k * d * d
            if k < _LOW * mass:
                break
    first /= mass
    log_z = log_level(mode, y, theta) - 0.5 * tilt * tilt + math.log(mass * scaled) - HALF_LOG_2PI
    return log_z, mode + first, second / mass - first * first


@kernel
def raised(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    """Moments of a power of the likelihood."""
    low, high = edges_of(y, theta)
    top = ends_top(low, high)
    return one_peak_moments(log_level, mu, sigma, y, theta, power, top, 0.0, 1.0)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    low, high = edges_of(y, theta)
    return one_peak_frame(log_level, mu, sigma, y, theta, power, ends_top(low, high), 1.0)


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    if not sigma <= _WIDEST:
        return raised(mu, sigma, y, theta, 1.0)
    return even_steps(mu, sigma, y, theta)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return log_level(f, y, theta), 0.0


def _given(f: Array, theta: Array) -> LevelDistribution:
    from scipy.special import expit  # takes longer to import than all likelihoods

    return LevelDistribution(f, theta, expit, np.random.Generator.logistic)


likelihood = replace(
    normal_noise,
    name="ordinal-logistic",
    split=Pointer(_split, SPLIT),
    moments=Pointer(_moments, MOMENTS),
    frame=None,
    powers=Powers.from_kernels(raised, _frame, whole=False),
    given=_given,
)
