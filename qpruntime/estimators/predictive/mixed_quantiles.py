"""Quantiles of observations averaged over nodes: roots of the mean of distribution functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import ndtri

from qpruntime.arrays import Array

__all__ = ["Below", "mixed_quantiles"]

#: P(y <= at), or with True P(y > at), for places (T,).
Below = Callable[[Array, bool], Array]
# Steps at most, and the error of the normal quantile that ends them.
_STEPS, _SETTLED = 80, 1e-10


def mixed_quantiles(
    each: Sequence[Array], below: Sequence[Below], weights: Array, q: Array, whole: bool
) -> Array:
    """Quantiles of a mean of distributions, shape (T, Q).

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
        ends = found[:, :, k].min(axis=0), found[:, :, k].max(axis=0)
        # Of a high quantile the upper tail has the digits.
        upper, aim = bool(level > 0.5), float(ndtri(level))

        def miss(y: Array, upper: bool = upper, aim: float = aim) -> Array:
            mass = sum(w * own(y, upper) for w, own in zip(weights, below, strict=True))
            normal: Array = np.clip((-1.0 if upper else 1.0) * ndtri(mass), -60.0, 60.0)
            return normal - aim

        out[:, k] = _least(miss, *ends) if whole else _root(miss, *ends)
    return out


def _least(miss: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Least whole numbers above `low` - 1, and up to `high`, at which nothing is missing."""
    low = low - 1.0
    while (high - low > 1.0).any():
        # Rows that are found stay where they are.
        at = np.where(high - low > 1.0, np.floor(0.5 * (low + high)), high)
        short = miss(at) < 0.0
        low, high = np.where(short & (at < high), at, low), np.where(short, high, at)
    return high


def _root(miss: Callable[[Array], Array], a: Array, b: Array) -> Array:
    """By the secant rule of Illinois, whose end that stays twice counts half."""
    gap = 1e-9 * (1.0 + np.abs(a))
    a, b = a - gap, b + gap
    fa, fb = miss(a), miss(b)
    out = np.where(np.abs(fa) < np.abs(fb), a, b)
    best = np.minimum(np.abs(fa), np.abs(fb))
    last = np.zeros(a.size)
    for _ in range(_STEPS):
        with np.errstate(all="ignore"):
            x = (a * fb - b * fa) / (fb - fa)
        x = np.where((x > a) & (x < b), x, 0.5 * (a + b))
        fx = miss(x)
        nearer = np.abs(fx) < best
        out, best = np.where(nearer, x, out), np.where(nearer, np.abs(fx), best)
        if ((best <= _SETTLED) | (b - a <= 4.0 * np.spacing(np.abs(out) + 1e-300))).all():
            break
        short = fx < 0.0
        fb = np.where(short & (last < 0.0), 0.5 * fb, fb)
        fa = np.where(~short & (last > 0.0), 0.5 * fa, fa)
        a, fa = np.where(short, x, a), np.where(short, fx, fa)
        b, fb = np.where(short, b, x), np.where(short, fb, fx)
        last = np.where(short, -1.0, 1.0)
    return out
