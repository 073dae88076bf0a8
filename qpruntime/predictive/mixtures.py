"""Normal mixtures and the inversion of their quantiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from qpruntime._typing import Array

__all__ = [
    "Mixture",
    "NodeCdf",
    "mixed_quantiles",
    "normal_quantiles",
    "smallest_counts",
]

# --- `Mixture`

# Bisections of a quantile: from some standard deviations to rounding.
_HALVINGS = 60


class Mixture(NamedTuple):
    """R numbers, each a mixture of J normals.

    Attributes
    ----------
    mean, variance : ndarray, shape (J, R)
    weights : ndarray, shape (J,)
        They sum to 1.
    """

    mean: Array
    variance: Array
    weights: Array

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        centre = self.weights @ self.mean
        return centre, self.weights @ (self.variance + (self.mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,) or one number."""
        z = (limit - self.mean) / np.sqrt(np.maximum(self.variance, 1e-300))
        found: Array = self.weights @ ndtr(z)
        return found

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (R, Q), by bisection."""
        std = np.sqrt(np.maximum(self.variance, 0.0))
        found = np.empty((self.mean.shape[1], len(q)))
        for k, level in enumerate(q):
            each = self.mean + std * ndtri(level)
            low, high = each.min(axis=0), each.max(axis=0)
            for _ in range(_HALVINGS if len(self.weights) > 1 else 0):
                middle = 0.5 * (low + high)
                short = self.below(middle) < level
                low, high = np.where(short, middle, low), np.where(short, high, middle)
            found[:, k] = 0.5 * (low + high)
        return found


# --- Quantiles of mixtures

#: ``below(rows, y)``: P(Y <= y) of the distributions of these rows.
BlockCdf = Callable[[NDArray[np.intp], Array], Array]

_STEPS = 200
# Of a quantile, in standard deviations of the narrowest part.
_CLOSE = 1e-10


def smallest_counts(below: BlockCdf, low: Array, high: Array, q: Array) -> Array:
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


# --- Quantiles averaged over nodes

#: P(y <= at), or with True P(y > at), for places (T,).
NodeCdf = Callable[[Array, bool], Array]
# Steps at most, and the error of the normal quantile that ends them.
_SECANT_STEPS, _SETTLED = 80, 1e-10


def mixed_quantiles(
    each: Sequence[Array], below: Sequence[NodeCdf], weights: Array, q: Array, whole: bool
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
    for _ in range(_SECANT_STEPS):
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
