"""Quantiles of mixtures at many levels: of counts by bisection, of normals by Newton's method."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from qpruntime.arrays import Array

__all__ = ["normal_quantiles", "smallest_counts"]

#: ``below(rows, y)``: P(Y <= y) of the distributions of these rows.
Below = Callable[[NDArray[np.intp], Array], Array]

_STEPS = 200
# Of a quantile, in standard deviations of the narrowest part.
_CLOSE = 1e-10


def smallest_counts(below: Below, low: Array, high: Array, q: Array) -> Array:
    """Smallest y with P(Y <= y) >= q, shape (R, Q).

    Parameters
    ----------
    below : callable
        ``below(rows, y)`` for n rows and n counts, shape (n,).
    low, high : ndarray, shape (R, Q)
        Whole numbers from -1 on: the answer is above `low` and not above `high`.
    q : ndarray, shape (Q,)

    Notes
    -----
    Of the counts between two ends the one is asked that the most twos divide, so that levels
    of a row ask for the same ones; each is computed once.
    """
    least, most = low.astype(np.int64), high.astype(np.int64)
    width = int(most.max(initial=0)) + 2
    while (i := np.flatnonzero((most - least > 1).ravel())).size:
        row, level = np.divmod(i, q.size)
        first, last = least[row, level] + 1, most[row, level] - 1
        middle = _roundest(first, last)
        asked, back = np.unique(row * width + middle, return_inverse=True)
        rows, counts = np.divmod(asked, width)
        enough = below(rows, counts.astype(float))[back] >= q[level]
        most[row[enough], level[enough]] = middle[enough]
        least[row[~enough], level[~enough]] = middle[~enough]
    return most.astype(float)


def _roundest(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number from first to last, both at least 0, that the most twos divide, 0 aside."""
    differ = first ^ last
    # The highest bit in which the two differ.
    shift = np.frexp(differ.astype(float))[1].astype(np.int64) - 1
    shift = np.maximum(shift, 0)
    found: NDArray[np.int64] = (last >> shift) << shift
    return found


def normal_quantiles(mean: Array, variance: Array, weights: Array, q: Array) -> Array:
    """Quantiles of mixtures of normals, shape (R, Q).

    Parameters
    ----------
    mean, variance : ndarray, shape (J, R)
    weights : ndarray, shape (J,)
        They sum to 1.
    q : ndarray, shape (Q,)
        Between 0 and 1.
    """
    m, s = mean[..., None], np.sqrt(np.maximum(variance, 1e-300))[..., None]
    each = m + s * ndtri(q)
    low, high = each.min(axis=0), each.max(axis=0)
    narrow = s.min(axis=0)
    w = weights[:, None, None]
    x = (w * each).sum(axis=0)
    for _ in range(_STEPS):
        z = (x - m) / s
        gap = (w * ndtr(z)).sum(axis=0) - q
        low, high = np.where(gap < 0.0, x, low), np.where(gap < 0.0, high, x)
        slope = (w * np.exp(-0.5 * z * z) / s).sum(axis=0) / np.sqrt(2.0 * np.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = x - gap / slope
        inside = (step > low) & (step < high)
        new = np.where(inside, step, 0.5 * (low + high))
        done = np.abs(new - x) <= _CLOSE * narrow
        x = new
        if done.all():
            break
    return x
