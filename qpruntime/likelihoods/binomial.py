"""Binomial with the logistic link: k of n trials succeed, each with probability 1/(1 + e^-f).

Kernels take one number for an observation: y = k + 2^26 n, exact in a double. `pack` makes it, and
so does `validate` of an array of shape (N, 2), whose columns are successes and trials.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.jit import FRAME, MOMENTS, RAISED_FRAME, RAISED_MOMENTS, SPLIT, Pointer, kernel
from qpruntime.likelihoods.bend import bent, bent_expected, bent_frame, bent_moments
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.series import log_peak
from qpruntime.validation import floats

__all__ = ["MOST_TRIALS", "likelihood", "pack", "unpack"]

#: Trials of one observation at most; successes have as many values and one more.
MOST_TRIALS = 2**26 - 1
_RADIX = float(2**26)


@kernel
def shape(y):
    """(sign, a, 1/n, offset, top) of the shared form in u = sign f, and log p at its peak."""
    n = math.floor(y / _RADIX)
    k = y - _RADIX * n
    fail = n - k
    sign, a = (1.0, k) if k <= fail else (-1.0, fail)
    top = math.log(a / (n - a)) if a > 0.0 else 0.0
    peak = log_peak(k) + log_peak(fail) - log_peak(n) if a > 0.0 else 0.0
    return sign, a, 1.0 / n, math.log(n), top, peak


def _split(f, y, theta):
    return bent(f, shape(y)), 0.0


def _moments(mu, sigma, y, theta):
    return bent_moments(mu, sigma, shape(y), 1.0)


def _frame(mu, sigma, y, theta):
    return bent_frame(mu, sigma, shape(y), 1.0)


def _raised_moments(mu, sigma, y, theta, power):
    return bent_moments(mu, sigma, shape(y), power)


def _raised_frame(mu, sigma, y, theta, power):
    return bent_frame(mu, sigma, shape(y), power)


def pack(successes: ArrayLike, trials: ArrayLike) -> Array:
    """Successes and trials, which broadcast, as one number each: successes + 2^26 trials.

    Raises
    ------
    InputError
        If they are not whole numbers with 0 <= successes <= trials and 1 <= trials < 2^26.
    """
    pair = []
    for name, given in (("successes", successes), ("trials", trials)):
        try:
            values = floats(given)
        except TypeError as error:
            raise InputError(f"{name} must be whole numbers, got {error}") from error
        wrong = ~((values >= 0.0) & (values <= MOST_TRIALS) & (values == np.floor(values)))
        if wrong.any():
            raise InputError(
                f"{name} must be whole numbers from 0 to {MOST_TRIALS}, got "
                f"{values[wrong].flat[0]:g}"
            )
        pair.append(values)
    k, n = np.broadcast_arrays(*pair)
    if (k > n).any() or (n < 1.0).any():
        i = np.flatnonzero((k > n) | (n < 1.0))[0]
        raise InputError(
            f"every observation needs a trial and no more successes than trials, got "
            f"{k.flat[i]:g} of {n.flat[i]:g}; the columns are successes and trials"
        )
    return np.asarray(k + _RADIX * n)


def unpack(y: ArrayLike) -> tuple[Array, Array]:
    """Successes and trials of packed observations."""
    n, k = np.divmod(np.asarray(y, dtype=float), _RADIX)
    return k, n


def _pairs(y: ArrayLike) -> Array:
    """Pairs (successes, trials) along the last axis, or what `pack` has made of them."""
    given = np.asarray(y)
    if given.dtype.kind in "iuf" and given.size:
        packed = given.astype(float)
        if ((packed >= _RADIX) & (packed < _RADIX * _RADIX)).all():
            return pack(*unpack(packed))
    if given.ndim == 0 or given.shape[-1] != 2:
        raise InputError(
            "binomial observations are pairs (successes, trials): y of shape (N, 2), "
            f"got shape {given.shape}"
        )
    return pack(given[..., 0], given[..., 1])


def _expected(mean, std, y, theta):
    sign, a, inverse, _, _, peak = shape(y)
    return bent_expected(sign * mean, std, sign, a, 1.0 / inverse, peak)


likelihood = Likelihood(
    name="binomial",
    outcomes="pairs (successes, trials)",
    split=Pointer(_split, SPLIT),
    validate=_pairs,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)),
    expected=Pointer(_expected, MOMENTS),
)
