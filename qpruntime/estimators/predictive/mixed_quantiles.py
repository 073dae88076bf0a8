"""Quantiles of observations averaged over nodes: roots of the mean of distribution functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qpruntime.arrays import Array

__all__ = ["Below", "mixed_quantiles"]

#: P(y <= at), or with True P(y > at), for places (T,).
Below = Callable[[Array, bool], Array]
# Bisections from the quantiles of nodes to rounding.
_HALVINGS = 100


def mixed_quantiles(
    each: Sequence[Array], below: Sequence[Below], weights: Array, q: Array, whole: bool
) -> Array:
    """Quantiles of a mean of distributions, shape (T, Q), by bisection.

    Parameters
    ----------
    each : sequence of ndarray, length J, shape (T, Q)
        Those of every node, between which the mixture's are.
    below : sequence of callable, length J
        Distribution functions of the nodes.
    weights : ndarray, shape (J,)
        They sum to 1.
    q : ndarray, shape (Q,)
    whole : bool
        Whether y is a whole number: the least is returned that suffices.
    """
    found = np.array(each)
    out = np.empty(found.shape[1:])
    for k, level in enumerate(q):
        low, high = found[:, :, k].min(axis=0), found[:, :, k].max(axis=0)
        low = low - 1.0 if whole else low
        upper = level > 0.5
        for _ in range(_HALVINGS):
            if whole and (high - low <= 1.0).all():
                break
            at = 0.5 * (low + high)
            at = np.where(high - low > 1.0, np.floor(at), high) if whole else at
            mass = sum(w * own(at, upper) for w, own in zip(weights, below, strict=True))
            # Of a high quantile the upper tail has the digits.
            short = mass > 1.0 - level if upper else mass < level
            moved = np.where(short, at, low), np.where(short, high, at)
            if not whole and (moved[0] == low).all() and (moved[1] == high).all():
                break
            low, high = moved
        out[:, k] = high
    return out
