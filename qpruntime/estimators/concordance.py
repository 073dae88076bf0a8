"""Concordance of predicted times with observed ones: Harrell's C, for any censoring."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError

__all__ = ["concordance"]

# Pairs at a time.
_BLOCK = 4_000_000


def concordance(spans: Array, predicted: Array, weights: Array | None = None) -> float:
    """Share of pairs, of those whose order is known, that predictions put in this order.

    One is known to be earlier than another where its last time is before the other's first one, or
    at it if the other is censored there. Equal predictions count half.

    Parameters
    ----------
    spans : ndarray, shape (T, 2)
        First and last time of each.
    predicted : ndarray, shape (T,)
        Larger for later ones.
    weights : ndarray, shape (T,), optional
        A pair has the product of theirs.

    Raises
    ------
    InputError
        If no order of any pair is known.
    """
    first, last = spans.T
    own = np.ones(len(first)) if weights is None else weights
    right, total = 0.0, 0.0
    size = max(1, _BLOCK // max(1, len(first)))
    for start in range(0, len(first), size):
        some = slice(start, start + size)
        earlier = last[some, None] < first
        earlier |= (last[some, None] == first) & (last > first)
        pairs = earlier * (own[some, None] * own)
        agree = predicted[some, None] < predicted
        right += float((pairs * agree).sum())
        right += 0.5 * float((pairs * (predicted[some, None] == predicted)).sum())
        total += float(pairs.sum())
    if total == 0.0:
        raise InputError("no two times have a known order: concordance takes events")
    return right / total
