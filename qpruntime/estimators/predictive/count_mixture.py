"""Distribution function of a count Y ~ Poisson(g) whose rate g is random, and its inverse.

P(Y <= y) = P(g < G) with an independent gamma variable G of shape y + 1, the time of event y + 1.
Of g and G the narrower one is integrated over, against the distribution function of the other:
what that takes does not depend on the size of the counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, ndtr

from qpruntime.arrays import Array

__all__ = ["GammaRate", "LogNormalRate", "Rate", "SquareRate", "count_tail", "smallest_counts"]

# Densities are left out where they are below exp(-_CUT) = 4e-18 of their largest value.
_CUT = 40.0
# Steps of the trapezoid rule: for a normal variable, in standard deviations, and for the logarithm
# of a gamma variable of shape 1; in standard deviations of gamma variables of large shape. Errors
# are exp(-pi^2/step) for the densities with the heaviest spectrum, that of log G at shape 1.
_STEP, _LARGE_STEP = 0.25, 0.35
# Pairs of a rate and a level that are searched at a time, for the sake of memory.
_BLOCK = 1000


@dataclass(frozen=True)
class Rate(ABC):
    """Distributions of T rates; the fields of subclasses are arrays of shape (T,)."""

    def __getitem__(self, index: Any) -> Rate:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @abstractmethod
    def tail(self, g: Array, upper: bool) -> Array:
        """P(rate < g), or P(rate > g), for g of shape (T, n)."""

    @abstractmethod
    def nodes(self) -> tuple[Array, Array]:
        """Rates, shape (T, n), and weights that sum to 1, for expectations."""

    @abstractmethod
    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        """Whether the rates vary less than gamma variables of this shape, where these are."""

    @abstractmethod
    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of two rates beyond which there is less than exp(-low) and exp(-high)."""


@dataclass(frozen=True)
class SquareRate(Rate):
    """f^2 for f ~ N(mean, std^2)."""

    mean: Array
    std: Array

    def tail(self, g: Array, upper: bool) -> Array:
        root, mean, std = np.sqrt(g), np.abs(self.mean)[:, None], self.std[:, None]
        beyond = ndtr(-(root + mean) / std)  # on the other side of zero
        near = (root - mean) / std
        return ndtr(-near) + beyond if upper else ndtr(near) - beyond

    def nodes(self) -> tuple[Array, Array]:
        f, weights = _normal_rule(self.mean, self.std)
        return f * f, weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        return self.std < 0.5

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        mean = np.abs(self.mean)
        below = np.maximum(mean - self.std * np.sqrt(2.0 * low), 0.0)
        return below, mean + self.std * np.sqrt(2.0 * high)


@dataclass(frozen=True)
class LogNormalRate(Rate):
    """e^f for f ~ N(mean, std^2)."""

    mean: Array
    std: Array

    def tail(self, g: Array, upper: bool) -> Array:
        z = (np.log(g) - self.mean[:, None]) / self.std[:, None]
        return ndtr(-z if upper else z)

    def nodes(self) -> tuple[Array, Array]:
        f, weights = _normal_rule(self.mean, self.std)
        return np.exp(f), weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        return self.std * np.sqrt(shape) < 1.0

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        below, above = -self.std * np.sqrt(2.0 * low), self.std * np.sqrt(2.0 * high)
        return np.exp(0.5 * (self.mean + below)), np.exp(0.5 * (self.mean + above))


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


def smallest_counts(rate: Rate, q: Array, most: int) -> Array:
    """Smallest y with P(Y <= y) >= q for T rates and as many q, shape (T,); most + 1 beyond most.

    By bisection between the counts that Chernoff's bound leaves: log P(Y <= a) and log P(Y >= a)
    are at most -(a log(a/g) - a + g) <= -(sqrt(a) - sqrt(g))^2 on their sides of the rate g.
    """
    out = np.empty(q.size)
    for upper in (False, True):
        chosen = np.flatnonzero((q > 0.5) == upper)
        for start in range(0, chosen.size, _BLOCK):
            part = chosen[start : start + _BLOCK]
            out[part] = _search(rate[part], q[part], most, upper)
    return out


def _search(rate: Rate, q: Array, most: int, upper: bool) -> Array:
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
            p = count_tail(rate[wide], middle, upper)
            enough = p <= 1.0 - level if upper else p >= level
            last[wide[enough]] = middle[enough]
            first[wide[~enough]] = middle[~enough]
    return last


def _normal_rule(mean: Array, std: Array) -> tuple[Array, Array]:
    """Nodes, shape (T, n), and weights of the trapezoid rule for normal variables."""
    reach = np.sqrt(2.0 * _CUT)
    z = np.linspace(-reach, reach, 2 * int(np.ceil(reach / _STEP)) + 1)
    weights = np.exp(-0.5 * z * z)
    return mean[:, None] + std[:, None] * z, weights / weights.sum()


def _gamma_rule(shape: Array) -> tuple[Array, Array]:
    """Nodes G/shape and weights for gamma variables of shape >= 1, each of shape (T, n).

    In d = log(G/shape) the density is exp(-shape (e^d - 1 - d)), and e^d - 1 - d = t lies between
    the ends below.
    """
    t = _CUT / shape
    left = -0.5 * (t + np.sqrt(t * t + 8.0 * t))
    right = np.log1p(t + np.sqrt(2.0 * t))
    step = np.minimum(_STEP, _LARGE_STEP / np.sqrt(shape))
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
