"""Observations of `kinds`, validated: positive numbers, shares, levels and spans of times."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, real

__all__ = ["LARGEST", "positive", "shares", "spans"]

#: Logarithms and ratios of numbers between this and its inverse stay in double precision.
LARGEST = 1e100


def positive(y: ArrayLike) -> Array:
    """Validate positive numbers and return them as floats.

    Raises
    ------
    InputError
        If one is not between 1e-100 and 1e100.
    """
    values = finite(y, "y")
    wrong = ~((values >= 1.0 / LARGEST) & (values <= LARGEST))
    if wrong.any():
        raise InputError(
            f"y must be positive, from {1.0 / LARGEST:g} to {LARGEST:g}, got "
            f"{values[wrong].flat[0]:g}: leave out what is 0, or rescale"
        )
    return values


def shares(y: ArrayLike) -> Array:
    """Validate numbers strictly between 0 and 1 and return them as floats."""
    values = finite(y, "y")
    wrong = ~((values > 0.0) & (values < 1.0))
    if wrong.any():
        raise InputError(
            f"y must be strictly between 0 and 1, got {values[wrong].flat[0]:g}: of percentages "
            "take a hundredth, and for successes of trials name the likelihood 'binomial'"
        )
    return values


def spans(y: ArrayLike) -> Array:
    """Validate times that are known to be from a first one to a last one, along the last axis.

    The same time twice is an event; a last time of infinity is censored on the right, a first one
    of 0 on the left.

    Raises
    ------
    InputError
        If they are no such pairs.
    """
    values = real(y, "y")
    if values.ndim == 0 or values.shape[-1] != 2:
        raise InputError(
            "times are pairs (first, last): y of shape (N, 2), with the same time twice for an "
            f"event and infinity as the last for one that was not seen; got shape {values.shape}"
        )
    first, last = values[..., 0], values[..., 1]
    wrong = ~((first >= 0.0) & (first <= last) & (last > 0.0) & (first <= LARGEST))
    wrong |= (first == 0.0) & (last == np.inf)
    for part in (first, last):
        wrong |= (part != 0.0) & (part < 1.0 / LARGEST)
        wrong |= (part > LARGEST) & (part < np.inf)
    if wrong.any():
        bad = values[wrong].reshape(-1, 2)[0]
        remedy = "an event at 0 has no logarithm: give it half the shortest time"
        if values.ndim == 2 and np.isin(last, (0.0, 1.0)).all():
            remedy = "of times and whether the event was seen: fit(X, times, event=seen)"
        raise InputError(
            f"times must be 0 <= first <= last with something known of them, got {bad[0]:g} to "
            f"{bad[1]:g}; {remedy}"
        )
    return values + 0.0
