"""Distribution function of a count Y ~ Poisson(g) whose rate g is random, and its inverse.

P(Y <= y) = P(g < G) with an independent gamma variable G of shape y + 1, the time of event y + 1.
Of g and G the narrower one is integrated over, against the distribution function of the other:
what that takes does not depend on the size of the counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc

from qpruntime.arrays import Array
from qpruntime.likelihoods.rates import CUT, STEP, Rate

__all__ = ["GammaRate", "count_tail", "smallest_counts"]

# Step of the trapezoid rule in standard deviations of gamma variables of large shape.
_LARGE_STEP = 0.35
# Pairs of a rate and a level that are searched at a time, for the sake of memory.
_BLOCK = 1000


@dataclass(frozen=True)
class GammaRate(Rate):
    """Gamma variables, which make the counts negative binomial."""

    shape: Array
    scale: Array

    def tail(self, g: Array, upper: bool) -> Array:
        of = gammaincc if upper else gammainc
        return of(self.shape[:, None], g / self.scale[:, None])

    def nodes(self) -> tuple[Array, Array]:
        relative, weights = _gamma_rule(self.shape)
        return (self.shape * self.scale)[:, None] * relative, weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        return self.shape > shape

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        below = self.shape - np.sqrt(2.0 * self.shape * low)
        above = self.shape + np.sqrt(2.0 * self.shape * high) + high
        return np.sqrt(self.scale * np.maximum(below, 0.0)), np.sqrt(self.scale * above)


def count_tail(rate: Rate, y: Array, upper: bool) -> Array:
    """P(Y <= y), or P(Y > y), for T rates and as many counts y >= 0, shape (T,)."""
    shape, out = y + 1.0, np.empty(y.size)
    narrower = rate.narrower(shape)
    inner, outer = np.flatnonzero(narrower), np.flatnonzero(~narrower)
    if inner.size:
        of = gammainc if upper else gammaincc
        g, weights = rate[inner].nodes()
        out[inner] = (of(shape[inner, None], g) * weights).sum(axis=1)
    if outer.size:
        relative, weights = _gamma_rule(shape[outer])
        g = shape[outer, None] * relative
        out[outer] = (rate[outer].tail(g, upper) * weights).sum(axis=1)
    return out


#: ``tail(rate, y, upper)``, as `count_tail`.
Tail = Callable[[Any, Array, bool], Array]


def smallest_counts(rate: Rate, q: Array, most: int, tail: Tail = count_tail) -> Array:
    """Smallest y with P(Y <= y) >= q for T rates and as many q, shape (T,); most + 1 beyond most.

    By bisection between the counts that Chernoff's bound leaves: log P(Y <= a) and log P(Y >= a)
    are at most -(a log(a/g) - a + g) <= -(sqrt(a) - sqrt(g))^2 on their sides of the rate g.
    """
    out = np.empty(q.size)
    for upper in (False, True):
        chosen = np.flatnonzero((q > 0.5) == upper)
        for start in range(0, chosen.size, _BLOCK):
            part = chosen[start : start + _BLOCK]
            out[part] = _search(rate[part], q[part], most, upper, tail)
    return out


def _search(rate: Rate, q: Array, most: int, upper: bool, tail: Tail) -> Array:
    # Half of what is allowed on either side goes to the rate, half to the count.
    low, high = -np.log(0.5 * q), -np.log(0.5 * (1.0 - q))
    with np.errstate(over="ignore"):
        first, last = rate.roots(low, high)
        first = np.floor(np.maximum(first - np.sqrt(low), 0.0) ** 2) - 1.0
        last = np.ceil((last + np.sqrt(high)) ** 2)
        first, last = np.minimum(first, most), np.minimum(last, most + 1.0)
        # The answer is above `first` and not above `last`; at most 21 bisections.
        while (wide := np.flatnonzero(last - first > 1.0)).size:
            middle, level = np.floor(0.5 * (first[wide] + last[wide])), q[wide]
            p = tail(rate[wide], middle, upper)
            enough = p <= 1.0 - level if upper else p >= level
            last[wide[enough]] = middle[enough]
            first[wide[~enough]] = middle[~enough]
    return last


def _gamma_rule(shape: Array) -> tuple[Array, Array]:
    """Nodes G/shape and weights for gamma variables of shape >= 1, each of shape (T, n).

    In d = log(G/shape) the density is exp(-shape (e^d - 1 - d)), and e^d - 1 - d = t lies between
    the ends below.
    """
    t = CUT / shape
    left = -0.5 * (t + np.sqrt(t * t + 8.0 * t))
    right = np.log1p(t + np.sqrt(2.0 * t))
    step = np.minimum(STEP, _LARGE_STEP / np.sqrt(shape))
    n = int(np.ceil(((right - left) / step).max())) + 1
    d = left[:, None] + (right - left)[:, None] * np.linspace(0.0, 1.0, n)
    weights = np.exp(-shape[:, None] * _expm1_less(d))
    return np.exp(d), weights / weights.sum(axis=1, keepdims=True)


def _expm1_less(d: Array) -> Array:
    """e^d - 1 - d, whose terms cancel near 0."""
    series = np.ones_like(d)
    for k in range(12, 2, -1):
        series = 1.0 + series * d / k
    return np.where(np.abs(d) < 0.1, 0.5 * d * d * series, np.expm1(d) - d)
