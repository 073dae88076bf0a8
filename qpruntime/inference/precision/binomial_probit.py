"""Likelihood of equal rows of labels as one site: k of n labels are +1."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.polynomial.legendre import leggauss

from qpruntime._numba import kernel
from qpruntime._pointers import FRAME, MOMENTS, SPLIT, LatePointer, Pointer
from qpruntime._restorable import restorable_call
from qpruntime._special import HALF_LOG_2PI, log_ndtr, probit_series
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods import Likelihood, probit

__all__ = ["held_trials", "probit_trials"]

# The density p(k, n|f) is Phi(f)^k Phi(-f)^(n - k), without a binomial coefficient. An observation
# is a row of two columns, like one of the binomial, whose link is the logistic.

_X, _W = leggauss(12)
#: Panels grow by this factor from the peak, and end where the log density has fallen by this depth.
_GROWTH, _NOTHING = 1.6, 40.0
_STEPS, _PANELS = 200, 80
#: The moments of one label are closed.
_one = kernel(probit._moments)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    k, n = theta[2 * int(y)], theta[2 * int(y) + 1]
    return level(k, n - k, f), 0.0


@kernel
def level(k: float, fail: float, f: float) -> float:
    """Return log p."""
    value = 0.0
    if k > 0.0:
        value += k * log_ndtr(f)
    if fail > 0.0:
        value += fail * log_ndtr(-f)
    return value


@kernel
def slopes(k: float, fail: float, f: float) -> tuple[float, float]:
    """Return slope and curvature of log p."""
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
def peak_of(k: float, fail: float, mu: float, inverse: float) -> float:
    """Return the peak of the tilted density by Newton's method, or bisection out of bounds."""
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
            # One bound is finite, because Newton's step came from it.
            f = 0.5 * (low + high) if high - low < math.inf else f
    return f


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
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
    log_z = top + math.log(mass / sigma) - HALF_LOG_2PI
    return log_z, peak + mean, second / mass - mean * mean


def _frame(mu: float, sigma: float, y: float, theta: Array) -> Floats:
    k, n = theta[2 * int(y)], theta[2 * int(y) + 1]
    inverse = 1.0 / (sigma * sigma)
    peak = peak_of(k, n - k, mu, inverse)
    _, curvature = slopes(k, n - k, peak)
    return peak, 1.0 / math.sqrt(curvature + inverse), 0.5, 0.0


class _Trials(Likelihood):
    """Likelihood that users cannot name; it pickles by its data."""

    def __reduce__(self) -> tuple[object, ...]:
        return held_trials, (self.rows,)


probit_trials = _Trials(
    name="probit-trials",
    outcomes="pairs (labels +1, labels)",
    split=Pointer(_split, SPLIT),
    validate=partial(np.asarray, dtype=float),  # the package makes the pairs
    columns=2,
    moments=Pointer(_moments, MOMENTS),
    frame=LatePointer(_frame, FRAME),
)


@restorable_call("held-trials/1")
def held_trials(rows: Array | None) -> Likelihood:
    """Return the likelihood that holds these observations, shape (R, 2), or none."""
    return probit_trials if rows is None else replace(probit_trials, rows=rows)
