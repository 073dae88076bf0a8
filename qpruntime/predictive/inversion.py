"""Quantiles from distribution functions: the one search among integers, the one among numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from qpruntime._typing import Array

__all__ = [
    "Component",
    "Transform",
    "first_integers",
    "integer_quantiles",
    "mixture_quantiles",
    "real_quantiles",
]

#: ``cdf(rows, y, upper)``: P(Y <= y), or with `upper` P(Y > y), for these rows and as many y.
RowCdf = Callable[[NDArray[np.intp], Array, bool], Array]
#: A coordinate from minus to plus infinity, and its inverse.
Transform = tuple[Callable[[Array], Array], Callable[[Array], Array]]

# Secant steps at most, and the error of the normal quantile that ends them.
_STEPS, _CLOSE = 80, 1e-10
# Pairs of a row and an integer evaluated at a time, for the sake of memory.
_BLOCK = 1000


def first_integers(
    enough: Callable[[NDArray[np.intp], NDArray[np.int64]], NDArray[np.bool_]],
    low: Array,
    high: Array,
) -> NDArray[np.int64]:
    """Return the smallest integers for which a monotone predicate holds, shape (n,).

    Parameters
    ----------
    enough : callable
        ``enough(indices, y)`` for some of the n searches and as many integers.
    low, high : ndarray, shape (n,)
        Integers from -1 on. The result is above `low` and not above `high`.

    Notes
    -----
    The search tries the integer between two ends that has the most factors of two, so that
    searches of one row for several levels try the same integers.
    """
    least, most = low.astype(np.int64), high.astype(np.int64)
    while (open_ := np.flatnonzero(most - least > 1)).size:
        middle = _roundest(least[open_] + 1, most[open_] - 1)
        reached = enough(open_, middle)
        most[open_[reached]] = middle[reached]
        least[open_[~reached]] = middle[~reached]
    return most


def _roundest(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integer from first >= 0 to last with the most factors of two, other than 0."""
    # The highest bit in which the two differ.
    shift = np.frexp((first ^ last).astype(float))[1].astype(np.int64) - 1
    shift = np.maximum(shift, 0)
    return np.asarray((last >> shift) << shift)


def integer_quantiles(cdf: RowCdf, low: Array, high: Array, q: Array) -> Array:
    """Return the smallest integers y with P(Y <= y) >= q, shape (R, Q), as floats.

    Parameters
    ----------
    cdf : callable
        See `RowCdf`. Levels above 1/2 use the upper tail, which has more digits there.
    low, high : ndarray, shape (R, Q)
        Integers from -1 on. The result is above `low` and not above `high`.
    q : ndarray, shape (Q,)
    """
    upper = q > 0.5

    def enough(pairs: NDArray[np.intp], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for pairs of a row and a level whose quantile is at most y."""
        row, level = np.divmod(pairs, q.size)
        out = np.empty(pairs.size, dtype=bool)
        for tail in (False, True):
            chosen = np.flatnonzero(upper[level] == tail)
            # Levels of one row share evaluations.
            pairs_asked, back = np.unique(
                np.column_stack([row[chosen], y[chosen]]), axis=0, return_inverse=True
            )
            p = np.empty(len(pairs_asked))
            for start in range(0, len(pairs_asked), _BLOCK):
                rows, values = pairs_asked[start : start + _BLOCK].T
                p[start : start + _BLOCK] = cdf(rows, values.astype(float), tail)
            p, aim = p[back.reshape(-1)], q[level[chosen]]
            out[chosen] = p <= 1.0 - aim if tail else p >= aim
        return out

    shape = low.shape
    return first_integers(enough, low.reshape(-1), high.reshape(-1)).astype(float).reshape(shape)


def real_quantiles(
    cdf: RowCdf, low: Array, high: Array, q: Array, transform: Transform | None = None
) -> Array:
    """Return the numbers y with P(Y <= y) = q, shape (R, Q).

    Uses the secant rule of Illinois on normal quantiles of the probabilities, which are nearly
    linear in y.

    Parameters
    ----------
    cdf : callable
        See `RowCdf`.
    low, high : ndarray, shape (R, Q)
        Ends of the searches; they may coincide.
    q : ndarray, shape (Q,)
    transform : pair of callables, optional
        A coordinate in which y reaches from minus to plus infinity, and its inverse.
    """
    into, back = transform or (np.asarray, np.asarray)
    row, level = np.divmod(np.arange(low.size), q.size)
    # The upper tail has the digits of a high quantile.
    upper, aim = q[level] > 0.5, ndtri(q[level])

    def miss(x: Array, pairs: NDArray[np.intp]) -> Array:
        out, y = np.empty(pairs.size), back(x)
        for tail in (False, True):
            if (chosen := np.flatnonzero(upper[pairs] == tail)).size:
                normal = ndtri(cdf(row[pairs[chosen]], y[chosen], tail))
                out[chosen] = np.clip(-normal if tail else normal, -60.0, 60.0)
        return out - aim[pairs]

    pairs = np.arange(low.size)
    a, b = into(low.reshape(-1)), into(high.reshape(-1))
    # The two ends coincide if the latent value is known.
    gap = 1e-9 * (1.0 + np.abs(a))
    a, b = a - gap, b + gap
    fa, fb = miss(a, pairs), miss(b, pairs)
    out = np.where(np.abs(fa) < np.abs(fb), a, b)
    last = np.zeros(low.size)
    for _ in range(_STEPS):
        with np.errstate(all="ignore"):
            x = ((a * fb - b * fa) / (fb - fa))[pairs]
        ends = a[pairs], b[pairs]
        x = np.where((x > ends[0]) & (x < ends[1]), x, 0.5 * (ends[0] + ends[1]))
        fx = miss(x, pairs)
        out[pairs] = x
        short = fx < 0.0
        up, down = pairs[short], pairs[~short]
        # An end that stays twice counts half.
        fb[up] *= np.where(last[up] < 0.0, 0.5, 1.0)
        fa[down] *= np.where(last[down] > 0.0, 0.5, 1.0)
        a[up], fa[up], last[up] = x[short], fx[short], -1.0
        b[down], fb[down], last[down] = x[~short], fx[~short], 1.0
        narrow = np.abs(b - a)[pairs] <= 4.0 * np.spacing(np.abs(x) + 1e-300)
        pairs = pairs[~((np.abs(fx) <= _CLOSE) | narrow)]
        if not pairs.size:
            break
    return np.asarray(back(out)).reshape(low.shape)


class Component(NamedTuple):
    """One distribution of a mixture, for R rows, and brackets (R, Q) of its quantiles."""

    cdf: RowCdf
    low: Array
    high: Array


def mixture_quantiles(
    components: Sequence[Component],
    weights: Array,
    q: Array,
    integers: bool,
    transform: Transform | None = None,
) -> Array:
    """Return quantiles of mixtures, shape (R, Q): between the least and largest of their parts.

    Parameters
    ----------
    components : sequence of Component, length J
    weights : ndarray, shape (J,)
        They sum to 1.
    q : ndarray, shape (Q,)
    integers : bool
        Search for the smallest integer y with P(Y <= y) >= q.
    transform : pair of callables, optional
        See `real_quantiles`.
    """

    def cdf(rows: NDArray[np.intp], y: Array, upper: bool) -> Array:
        pairs = zip(weights, components, strict=True)
        return np.asarray(sum(w * component.cdf(rows, y, upper) for w, component in pairs))

    low = np.min([component.low for component in components], axis=0)
    high = np.max([component.high for component in components], axis=0)
    if integers:
        return integer_quantiles(cdf, low, high, q)
    return real_quantiles(cdf, low, high, q, transform)
