"""Validation of observations y."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime._validation import finite, floats, real
from qpruntime.errors import InputError

__all__ = [
    "LARGEST",
    "LARGEST_COUNT",
    "counts",
    "log_ratios",
    "positive",
    "reals",
    "shares",
    "signs",
    "spans",
]

# --- Positive numbers, shares, levels and spans of times

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
        if np.isnan(bad).any():
            remedy = "leave out rows without a time"
        raise InputError(
            f"times must be 0 <= first <= last with something known of them, got {bad[0]:g} to "
            f"{bad[1]:g}; {remedy}"
        )
    return values + 0.0


# --- Labels, counts and real numbers

#: Counts are tested against references up to here; beyond, rounding of y log y costs digits.
LARGEST_COUNT = 1_000_000

#: Real observations larger than this are refused: their squares leave double precision.
LARGEST_REAL = 1e100


def signs(y: ArrayLike) -> Array:
    """Validate labels -1 and +1 and return them as floats; of booleans True is +1, False -1.

    Numbers 0 and 1 are refused: counts and labels of another rule look the same.
    """
    try:
        values = floats(y)
    except TypeError as error:
        raise InputError(f"labels must be -1 or +1, or booleans, got {error}") from error
    if _are_booleans(y):
        return 2.0 * values - 1.0
    wrong = ~np.isin(values, (-1.0, 1.0))
    if wrong.any():
        bad = values[wrong].flat[0]
        raise InputError(f"labels must be -1 or +1, got {bad:g}: {_instead(values)}")
    return values


def _are_booleans(y: ArrayLike) -> bool:
    values = np.asarray(y)
    if values.dtype.kind == "O" and values.size:
        return all(isinstance(label, (bool, np.bool_)) for label in values.flat)
    return values.dtype.kind == "b"


def _instead(values: Array) -> str:
    """Return what to do with observations that are no labels."""
    if np.isin(values, (0.0, 1.0)).all():
        return "of 0 and 1 make labels by 2 * y - 1, or booleans by y == 1"
    if ((values >= 0.0) & (values == np.floor(values)) & np.isfinite(values)).all():
        return (
            "for counts name a likelihood of counts, 'poisson', 'poisson-exp' or "
            "'negative-binomial'; of two kinds of labels make booleans, y == one of them"
        )
    return (
        "for real numbers name a likelihood of real numbers, 'student-t' or 'laplace'; of two "
        "kinds of labels make booleans, y == one of them"
    )


def counts(y: ArrayLike) -> Array:
    """Validate counts and return them as floats; whole floats and booleans are counts."""
    try:
        values = floats(y) + 0.0
    except TypeError as error:
        raise InputError(f"counts must be numbers 0, 1, 2, ..., got {error}") from error
    wrong = ~((values >= 0.0) & (values == np.floor(values)) & np.isfinite(values))
    if wrong.any():
        bad = values[wrong].flat[0]
        remedy = ": leave out rows without one" if np.isnan(bad) else ""
        raise InputError(f"counts must be 0, 1, 2, ..., got {bad:g}{remedy}")
    if (values > LARGEST_COUNT).any():
        raise InputError(
            f"counts up to {LARGEST_COUNT} are supported, got {values.max():.0f}; counts that "
            "large are nearly Gaussian: model their square root or logarithm as real numbers"
        )
    return values


def reals(y: ArrayLike) -> Array:
    """Validate real observations and return them as floats."""
    try:
        values = floats(y) + 0.0
    except TypeError as error:
        raise InputError(f"observations must be real numbers, got {error}") from error
    wrong = ~(np.abs(values) <= LARGEST_REAL)
    if wrong.any():
        bad = values[wrong].flat[0]
        remedy = "leave out rows without one" if np.isnan(bad) else "rescale them"
        raise InputError(
            f"observations must be finite and within {LARGEST_REAL:g}, got {bad:g}; {remedy}"
        )
    return values


def log_ratios(y: ArrayLike) -> Array:
    """Validate logarithms of ratios, which may be infinite, and return them as floats."""
    try:
        values = floats(y) + 0.0
    except TypeError as error:
        raise InputError(f"logarithms of ratios must be real numbers, got {error}") from error
    if np.isnan(values).any():
        raise InputError(
            "logarithms of ratios must be numbers or infinite, got nan; 0 says nothing"
        )
    return values
