"""Several labels of one latent value under the probit: k of n are +1.

p(k, n|f) is Phi(f)^k Phi(-f)^(n - k), without a binomial coefficient. An observation is a row of
two columns, as for the binomial, whose link is the logistic.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.jit import FRAME, MOMENTS, SPLIT, Pointer, kernel
from qpruntime.likelihoods import Likelihood, probit
from qpruntime.special import log_ndtr, probit_series

__all__ = ["held_trials", "probit_trials"]

_X, _W = leggauss(12)
#: Panels grow by this from the peak, and end where the density has fallen by so much.
_GROWTH, _NOTHING = 1.6, 40.0
_STEPS, _PANELS = 200, 80
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: The moments of one label are closed.
_one = kernel(probit._moments)


def _split(f, y, theta):
    k, n = theta[2 * int(y)], theta[2 * int(y) + 1]
    value = 0.0
    if k > 0.0:
        value += k * log_ndtr(f)
    if n > k:
        value += (n - k) * log_ndtr(-f)
    return value, 0.0


@kernel
def level(k, fail, f):
    """log p."""
    value = 0.0
    if k > 0.0:
        value += k * log_ndtr(f)
    if fail > 0.0:
        value += fail * log_ndtr(-f)
    return value


@kernel
def slopes(k, fail, f):
    """Slope and curvature of log p."""
    slope, curvature = 0.0, 0.0
    if k > 0.0:
        r, sum_, _ = probit_series(f)
        slope += k * r
        curvature += k * r * sum_
    if fail > 0.0:
        r, sum_, _ = probit_series(-f)
        slope -= fail * r
        curvature += fail * r * sum_
    return slope, curvature


@kernel
def peak_of(k, fail, mu, inverse):
    """Peak of the tilted density: Newton's method, between bounds where it leaves them."""
    f, low, high = mu, -math.inf, math.inf
    for _ in range(_STEPS):
        slope, curvature = slopes(k, fail, f)
        slope -= (f - mu) * inverse
        if slope > 0.0:
            low = f
        else:
            high = f
        step = slope / (curvature + inverse)
        if step * step * (curvature + inverse) < 1e-12 or not low < high:
            break
        f += step
        if not low < f < high:
            # One bound is finite, for that is where Newton's step has come from.
            f = 0.5 * (low + high) if high - low < math.inf else f
    return f


def _moments(mu, sigma, y, theta):
    k, n = theta[2 * int(y)], theta[2 * int(y) + 1]
    if n == 1.0:
        return _one(mu, sigma, 2.0 * k - 1.0, theta)
    fail = n - k
    inverse = 1.0 / (sigma * sigma)
    peak = peak_of(k, fail, mu, inverse)
    _, curvature = slopes(k, fail, peak)
    width = 1.0 / math.sqrt(curvature + inverse)
    top = level(k, fail, peak) - 0.5 * (peak - mu) ** 2 * inverse
    mass, first, second = 0.0, 0.0, 0.0
    for sign in (-1.0, 1.0):
        begin, length = 0.0, width
        for _ in range(_PANELS):
            largest = -math.inf
            for i in range(_X.size):
                d = sign * (begin + 0.5 * length * (1.0 + _X[i]))
                f = peak + d
                e = level(k, fail, f) - 0.5 * (f - mu) ** 2 * inverse - top
                largest = max(largest, e)
                p = 0.5 * length * _W[i] * math.exp(e)
                mass += p
                first += p * d
                second += p * d * d
            if largest < -_NOTHING:
                break
            begin += length
            length *= _GROWTH
    mean = first / mass
    log_z = top + math.log(mass / sigma) - _HALF_LOG_2PI
    return log_z, peak + mean, second / mass - mean * mean


def _frame(mu, sigma, y, theta):
    k, n = theta[2 * int(y)], theta[2 * int(y) + 1]
    inverse = 1.0 / (sigma * sigma)
    peak = peak_of(k, n - k, mu, inverse)
    _, curvature = slopes(k, n - k, peak)
    return peak, 1.0 / math.sqrt(curvature + inverse), 0.5, 0.0


def _pairs(y: ArrayLike) -> Array:
    """Pairs as they are: they are made here, not by users."""
    return np.asarray(y, dtype=float)


class _Trials(Likelihood):
    """A likelihood of no name that users can give: it pickles by what it holds."""

    def __reduce__(self) -> Any:
        return held_trials, (self.rows,)


probit_trials = _Trials(
    name="probit-trials",
    outcomes="pairs (labels +1, labels)",
    split=Pointer(_split, SPLIT),
    validate=_pairs,
    columns=2,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
)


def held_trials(rows: Array | None) -> Likelihood:
    """The likelihood that holds these observations, shape (R, 2), or none."""
    return probit_trials if rows is None else replace(probit_trials, rows=rows)
