"""Predictive distributions of counts: Poisson and negative-binomial mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammainc, gammaincc

from qpruntime import likelihoods
from qpruntime._numba import kernel
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array
from qpruntime._validation import real
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods._series_kernels import log1p_less, stirling_error
from qpruntime.likelihoods.base import CUT, STEP, Rate, RateLink
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.predictive.inversion import Component

__all__ = [
    "COUNTS",
    "DISPERSED",
    "LINKS",
    "MAX_EXPONENT",
    "DispersedRate",
    "GammaRate",
    "count_component",
    "count_tail",
    "counted",
    "dispersed_tail",
    "exposures",
    "log_pmf",
    "log_pmf_many",
]

# --- Log probabilities of the negative binomial
#
# They use the saddle-point form of Loader (2000), "Fast and accurate computation of binomial
# probabilities", which has no difference of large log Gammas.


@kernel
def log_pmf(rate: float, c: float, y: float) -> float:
    """Log probability of y for a gamma rate of this mean and of scale c, its variance over it."""
    k = rate / c
    if y == 0.0:
        return -rate * (math.log1p(c) / c)
    gap = (y - rate) / (1.0 + c)
    short = -gap / y
    remainder = log1p_less(short) if short > -0.9 else math.log((k + y) / y * c / (1.0 + c)) - short
    deviance = -k * log1p_less(gap / k) - y * remainder
    return (
        stirling_error(k + y)
        - stirling_error(k)
        - stirling_error(y)
        - deviance
        - 0.5 * (math.log(y) + math.log1p(y / k))
        - HALF_LOG_2PI
    )


@kernel
def log_pmf_many(rate: Array, c: Array, y: Array, out: Array) -> None:
    """Fill `out` with `log_pmf` of each row."""
    for i in range(y.size):
        out[i] = log_pmf(rate[i], c[i], y[i])


# --- Links and exposures

# Sums and squares of larger ones overflow; count in another unit.
_LARGEST_EXPOSURE = 1e100

#: Likelihoods of counts by the name of their link.
COUNTS: dict[str, Likelihood] = {
    known.rate.name: known for known in map(likelihoods.get, likelihoods.names()) if known.rate
}
#: The links, by name.
LINKS: dict[str, RateLink] = {name: known.rate for name, known in COUNTS.items() if known.rate}

#: Names of the likelihoods of counts that vary more than Poisson ones, by the name of their link.
DISPERSED = {"exp": "negative-binomial"}


def counted(link: str, dispersion: float = math.inf) -> Likelihood:
    """Return the likelihood of counts of a link: Poisson, but for a finite dispersion."""
    if dispersion == math.inf:
        return COUNTS[link]
    return likelihoods.get(DISPERSED[link], dispersion=dispersion)


def exposures(exposure: ArrayLike | None, n: int) -> Array:
    """Validate exposures and return one for each of `n` points."""
    if exposure is None:
        return np.ones(n)
    values = real(exposure, "exposure")
    if values.shape not in ((), (n,)):
        raise InputError(
            f"exposure must be a number or have shape ({n},), one per point; got {values.shape}"
        )
    wrong = ~((values > 0.0) & (values <= _LARGEST_EXPOSURE))
    if wrong.any():
        raise InputError(
            f"exposure must be positive and at most {_LARGEST_EXPOSURE:g}, got "
            f"{values[wrong].flat[0]:g}"
        )
    return np.full(n, values) if values.ndim == 0 else values.copy()


# --- Negative binomial with a log-normal mean
#
# Given f, P(Y <= y) is an incomplete beta function; it is integrated over f by the trapezoid rule.

# Steps in f where the incomplete beta function is wide, and in units of its width where it is not.
# It has singularities at pi i from the real axis: errors are exp(-2 pi^2/step).
_WIDE, _SHARP = 0.5, 0.35
#: Largest exponent of a rate.
MAX_EXPONENT = 700.0
# Rates and nodes that are looked at at a time, for the sake of memory.
_PRODUCTS = 1_000_000


@dataclass(frozen=True)
class DispersedRate(LogNormalRate):
    """e^f for f ~ N(mean, std^2); counts have a variance of e^f + e^2f/dispersion given f."""

    dispersion: Array

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of e^f times the gamma variable that makes a Poisson count negative binomial."""
        # Half of what is allowed goes to either of the two.
        low, high = low + np.log(2.0), high + np.log(2.0)
        first, last = super().roots(low, high)
        below = np.maximum(1.0 - np.sqrt(2.0 * low / self.dispersion), 0.0)
        above = 1.0 + np.sqrt(2.0 * high / self.dispersion) + high / self.dispersion
        return first * np.sqrt(below), last * np.sqrt(above)


def dispersed_tail(rate: DispersedRate, y: Array, upper: bool) -> Array:
    """P(Y <= y), or P(Y > y), for T rates and as many counts y >= 0, shape (T,)."""
    shape, r = y + 1.0, rate.dispersion
    # Width of the distribution function in log(rate).
    width = np.sqrt(1.0 / shape + 1.0 / r)
    step = np.minimum(STEP, np.minimum(_WIDE, _SHARP * width) / rate.std)
    reach, out = np.sqrt(2.0 * CUT), np.empty(y.size)
    nodes = np.ceil(reach / step).astype(int)
    start = 0
    for end in _blocks(nodes):
        batch = slice(start, end)
        half = int(nodes[batch].max())
        z = np.linspace(-reach, reach, 2 * half + 1)
        weights = np.exp(-0.5 * z * z)
        f = rate.mean[batch, None] + rate.std[batch, None] * z
        # Share of e^f in e^f + r, without overflow.
        t = np.exp(np.clip(np.log(r[batch, None]) - f, -MAX_EXPONENT, MAX_EXPONENT))
        a, b = shape[batch, None], r[batch, None]
        p = betainc(a, b, 1.0 / (1.0 + t)) if upper else betainc(b, a, t / (1.0 + t))
        out[batch] = (p * weights).sum(axis=1) / weights.sum()
        start = end
    return out


def _blocks(nodes: Array) -> list[int]:
    """Return the ends of blocks of rows whose nodes fit into memory together."""
    ends, most, first = [], 0, 0
    for i, count in enumerate(nodes):
        most = max(most, int(count))
        if i > first and 2 * most * (i + 1 - first) > _PRODUCTS:
            ends.append(i)
            first, most = i, int(count)
    return [*ends, len(nodes)]


# --- Poisson counts with a random rate
#
# P(Y <= y) = P(g < G) with an independent gamma variable G of shape y + 1, the time of event y + 1.
# The integral runs over the narrower of g and G, against the distribution function of the other, so
# its cost does not depend on the size of the counts.

# Step of the trapezoid rule in standard deviations of gamma variables of large shape.
_LARGE_STEP = 0.35


@dataclass(frozen=True)
class GammaRate(Rate):
    """Gamma variables, which make the counts negative binomial."""

    shape: Array
    scale: Array

    def tail(self, g: Array, upper: bool) -> Array:
        """P(rate < g), or P(rate > g), for g of shape (T, n)."""
        of = gammaincc if upper else gammainc
        return of(self.shape[:, None], g / self.scale[:, None])

    def nodes(self) -> tuple[Array, Array]:
        """Rates, shape (T, n), and weights that sum to 1, for expectations."""
        relative, weights = _gamma_rule(self.shape)
        return (self.shape * self.scale)[:, None] * relative, weights

    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        """Return True for the rates that vary less than gamma variables of this shape."""
        return self.shape > shape

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of two rates beyond which there is less than exp(-low) and exp(-high)."""
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


def count_component(rate: Rate, tail: Tail, q: Array, most: int) -> Component:
    """Return the distributions of counts with T rates, and brackets of quantiles up to most + 1.

    Brackets are by Chernoff's bound: log P(Y <= a) and log P(Y >= a) are at most
    -(a log(a/g) - a + g) <= -(sqrt(a) - sqrt(g))^2 on their sides of the rate g.
    """
    # Half of what is allowed on either side goes to the rate, half to the count.
    under, over = -np.log(0.5 * q), -np.log(0.5 * (1.0 - q))
    with np.errstate(over="ignore"):
        roots = [rate.roots(*pair) for pair in zip(under, over, strict=True)]
        first, last = (np.column_stack(ends) for ends in zip(*roots, strict=True))
        low = np.floor(np.maximum(first - np.sqrt(under), 0.0) ** 2) - 1.0
        high = np.ceil((last + np.sqrt(over)) ** 2)
    low, high = np.minimum(low, most), np.minimum(high, most + 1.0)
    return Component(lambda rows, y, upper: tail(rate[rows], y, upper), low, high)


def _gamma_rule(shape: Array) -> tuple[Array, Array]:
    """Nodes G/shape and weights for gamma variables of shape >= 1, each of shape (T, n).

    The density of d = log(G/shape) is exp(-shape (e^d - 1 - d)), and e^d - 1 - d = t lies between
    the ends below.
    """
    t = CUT / shape
    lower = -0.5 * (t + np.sqrt(t * t + 8.0 * t))
    upper = np.log1p(t + np.sqrt(2.0 * t))
    step = np.minimum(STEP, _LARGE_STEP / np.sqrt(shape))
    n = int(np.ceil(((upper - lower) / step).max())) + 1
    d = lower[:, None] + (upper - lower)[:, None] * np.linspace(0.0, 1.0, n)
    weights = np.exp(-shape[:, None] * _expm1_less(d))
    return np.exp(d), weights / weights.sum(axis=1, keepdims=True)


def _expm1_less(d: Array) -> Array:
    """e^d - 1 - d, whose terms cancel near 0."""
    series = np.ones_like(d)
    for k in range(12, 2, -1):
        series = 1.0 + series * d / k
    return np.where(np.abs(d) < 0.1, 0.5 * d * d * series, np.expm1(d) - d)
