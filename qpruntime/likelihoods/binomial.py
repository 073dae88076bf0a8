"""Binomial with the logistic link: k of n trials succeed, each with probability 1/(1 + e^-f).

An observation is a row of two columns, successes and trials: y of shape (N, 2).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._numba import kernel
from qpruntime._pointers import MOMENTS, SPLIT, Pointer
from qpruntime._typing import Array, Floats
from qpruntime._validation import floats
from qpruntime.errors import InputError
from qpruntime.likelihoods._series_kernels import (
    bent,
    bent_expected,
    bent_frame,
    bent_moments,
    log_peak,
)
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse

__all__ = ["MOST_TRIALS", "likelihood"]

#: Trials of one observation at most; successes have as many values and one more.
MOST_TRIALS = 2**26 - 1


@kernel
def shape(y: float, theta: Array) -> Floats:
    """(sign, a, 1/n, offset, top) of the shared form in u = sign f, and log p at its peak."""
    row = 2 * max(0, min(int(y), theta.size // 2 - 1))  # one of those there are
    k, n = theta[row], theta[row + 1]
    fail = n - k
    sign, a = (1.0, k) if k <= fail else (-1.0, fail)
    top = math.log(a / (n - a)) if a > 0.0 else 0.0
    peak = log_peak(k) + log_peak(fail) - log_peak(n) if a > 0.0 else 0.0
    return sign, a, 1.0 / n, math.log(n), top, peak


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return bent(f, shape(y, theta)), 0.0


@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    return bent_moments(mu, sigma, shape(y, theta), power)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    return bent_frame(mu, sigma, shape(y, theta), power)


def _pairs(y: ArrayLike) -> Array:
    """Pairs (successes, trials) along the last axis, as floats.

    Raises
    ------
    InputError
        If they are not whole numbers with 0 <= successes <= trials and 1 <= trials < 2^26.
    """
    pairs = y if isinstance(y, np.ma.MaskedArray) else np.asarray(y)
    if pairs.ndim == 0 or pairs.shape[-1] != 2:
        raise InputError(
            "binomial observations are pairs (successes, trials): y of shape (N, 2), "
            f"got shape {pairs.shape}"
        )
    pair = []
    for name, column in (("successes", pairs[..., 0]), ("trials", pairs[..., 1])):
        try:
            values = floats(column)
        except TypeError as error:
            raise InputError(f"{name} must be whole numbers, got {error}") from error
        wrong = ~((values >= 0.0) & (values <= MOST_TRIALS) & (values == np.floor(values)))
        if wrong.any():
            raise InputError(
                f"{name} must be whole numbers from 0 to {MOST_TRIALS}, got "
                f"{values[wrong].flat[0]:g}"
            )
        pair.append(values + 0.0)
    k, n = pair
    if (k > n).any() or (n < 1.0).any():
        i = np.flatnonzero((k > n) | (n < 1.0))[0]
        raise InputError(
            f"every observation needs a trial and no more successes than trials, got "
            f"{k.flat[i]:g} of {n.flat[i]:g}; the columns are successes and trials"
        )
    return np.stack(pair, axis=-1)


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    sign, a, inverse, _, _, peak = shape(y, theta)
    return bent_expected(sign * mean, std, sign, a, 1.0 / inverse, peak)


def _given(f: Array, theta: Array, trials: Array | float = 1.0) -> SciPyResponse:
    """SciPy's distribution of one trial, or of so many."""
    return SciPyResponse("binom", trials, 0.5 * (1.0 + np.tanh(0.5 * f)))


likelihood = Likelihood(
    name="binomial",
    outcomes="pairs (successes, trials)",
    split=Pointer(_split, SPLIT),
    validate=_pairs,
    columns=2,
    powers=Powers.from_kernels(_moments, _frame),
    expected=Pointer(_expected, MOMENTS),
    given=_given,
)
