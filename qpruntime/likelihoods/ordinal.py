"""Levels 0, 1, 2, ... in an order: y is how many thresholds f plus normal noise is above.

The first threshold is 0, for f has a mean of its own, and the noise has variance 1. The others
follow in gaps, which are positive and learnt. If `middle` is above 0, it lies halfway between the
first threshold and the last instead, so that gaps move both ends: the model is then the same for
levels in the opposite order. Unused levels lie behind a gap too large to reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._numba import kernel
from qpruntime._pointers import LANDMARK, MOMENTS, SPLIT, Pointer
from qpruntime._special import HALF_LOG_2PI, log_ndtr
from qpruntime._typing import Array, Floats
from qpruntime._validation import finite
from qpruntime.errors import InputError
from qpruntime.likelihoods._unimodal_kernels import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.quadrature.adaptive_kernels import adaptive_rule

__all__ = [
    "BEYOND",
    "MOST_LEVELS",
    "LevelDistribution",
    "between",
    "edges_of",
    "ends_top",
    "gap_names",
    "likelihood",
    "log_between",
    "noisy_between",
    "thresholds",
]

# --- Truncated standard normal
#
# Ordered levels and censored logarithms of times share this: p(y|f) is the probability that f plus
# unit noise lies in an interval.

_SQRT1_2 = math.sqrt(0.5)
#: The density is cut off after a fall by exp(-_DROP); number of panels of Gauss's rule.
_DROP, _PANELS = 42.0, 9
_X, _W = (np.ascontiguousarray(a) for a in np.polynomial.legendre.leggauss(12))


@kernel
def between(a: float, b: float) -> tuple[float, float, float]:
    """Log mass, mean and variance of a standard normal variable between a < b.

    Gauss's rule integrates from the peak between them, relative to its height, so that nothing
    cancels, however narrow or far out the interval is.
    """
    peak = min(max(a, 0.0), b)
    # Distance over which exp(-(2 p d + d^2)/2) falls so far.
    reach = math.sqrt(peak * peak + 2.0 * _DROP)
    lower = max(a, -reach) if peak >= 0.0 else max(a, peak - 2.0 * _DROP / (reach - peak))
    upper = min(b, reach) if peak <= 0.0 else min(b, peak + 2.0 * _DROP / (reach + peak))
    h = (upper - lower) / _PANELS
    mass, first, second = 0.0, 0.0, 0.0
    for j in range(_PANELS):
        start = lower + h * j - peak
        for i in range(_X.size):
            d = start + 0.5 * h * (1.0 + _X[i])
            w = _W[i] * math.exp(-d * (peak + 0.5 * d))
            mass += w
            first += w * d
            second += w * d * d
    first /= mass
    log_mass = math.log(0.5 * h * mass) - 0.5 * peak * peak - HALF_LOG_2PI
    return log_mass, peak + first, second / mass - first * first


@kernel
def log_between(a: float, b: float) -> float:
    """log(Phi(b) - Phi(a)) for a < b, either of which may be infinite."""
    if b == math.inf:
        return log_ndtr(-a)
    if a == -math.inf:
        return log_ndtr(b)
    if a > 0.0:
        a, b = -b, -a
    # The larger tail first: their difference keeps its digits where they differ by a third.
    gap = b - a
    if gap * (1.0 + abs(b)) > 1.0:
        upper = log_ndtr(b)
        return upper + math.log(-math.expm1(log_ndtr(a) - upper))
    mass, middle = 0.0, a + 0.5 * gap
    for i in range(_X.size):
        d = 0.5 * gap * _X[i]
        mass += _W[i] * math.exp(-d * (middle + 0.5 * d))
    return math.log(0.5 * gap * mass) - 0.5 * middle * middle - HALF_LOG_2PI


@kernel
def ends_top(low: float, high: float) -> float:
    """Return where f plus symmetric noise is likeliest to be between two ends."""
    if high == math.inf:
        return math.inf
    return -math.inf if low == -math.inf else low + 0.5 * (high - low)


@kernel
def noisy_between(
    mu: float, sigma: float, low: float, high: float, scale: float
) -> tuple[float, float, float]:
    """Moments of f ~ N(mu, sigma^2) given that f plus N(0, scale^2) is between low and high."""
    total = math.hypot(sigma, scale)
    log_z, mean, variance = between((low - mu) / total, (high - mu) / total)
    if high == math.inf:
        log_z = log_ndtr((mu - low) / total)
    elif low == -math.inf:
        log_z = log_ndtr((high - mu) / total)
    gain = sigma * (sigma / total)
    kept = sigma * (scale / total)
    return log_z, mu + gain * mean, kept * kept + gain * gain * variance


# --- Ordered levels
#
# y is the number of thresholds that f plus normal noise is above.

#: Levels at most.
MOST_LEVELS = 12
#: A gap that nothing reaches.
BEYOND = 1e8
_GAPS = MOST_LEVELS - 2
# Index of the first threshold in theta, behind the gaps and the middle.
_EDGES = _GAPS + 1


def gap_names(count: int) -> tuple[str, ...]:
    """Names of the gaps that `count` levels have."""
    return tuple(f"gap_{k}" for k in range(2, count))


def _thresholds(*theta: float) -> tuple[float, ...]:
    # Behind the parameters, in theta: the thresholds, with those that are infinitely far off.
    *gaps, middle = theta
    reached = sum(takewhile(lambda gap: gap < BEYOND, gaps))
    edges = [middle - 0.5 * reached if middle > 0.0 else 0.0]
    for gap in gaps:
        edges.append(edges[-1] + gap)
    return (-math.inf, *edges, math.inf)


@kernel
def edges_of(y: float, theta: Array) -> tuple[float, float]:
    """Return the thresholds below and above a level."""
    k = _EDGES + int(y)
    return theta[k], theta[k + 1]


@kernel
def log_level(f: float, y: float, theta: Array) -> float:
    """Log probability of a level."""
    low, high = edges_of(y, theta)
    return log_between(low - f, high - f)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return log_level(f, y, theta), 0.0


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    low, high = edges_of(y, theta)
    top = ends_top(low, high)
    return one_peak_moments(log_level, mu, sigma, y, theta, power, top, 0.0, 1.0)


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    low, high = edges_of(y, theta)
    return one_peak_frame(log_level, mu, sigma, y, theta, power, ends_top(low, high), 1.0)


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    low, high = edges_of(y, theta)
    return noisy_between(mu, sigma, low, high, 1.0)


def _edge(y: float, theta: Array, k: int) -> float:
    edge = theta[_EDGES + int(y) + k] if k < 2 else math.nan
    if k == 0 and math.isinf(edge):
        edge = theta[_EDGES + int(y) + 1]
    return edge if math.isfinite(edge) else math.nan


def levels(y: ArrayLike) -> Array:
    """Validate numbers of levels and return them as floats."""
    values = finite(y, "y")
    wrong = ~((values >= 0.0) & (values < MOST_LEVELS) & (values == np.floor(values)))
    if wrong.any():
        raise InputError(
            f"levels must be whole numbers from 0 to {MOST_LEVELS - 1}, got "
            f"{values[wrong].flat[0]:g}: GPOrdinal numbers levels of any kind"
        )
    return values + 0.0


def thresholds(likelihood: Likelihood, count: int) -> Array:
    """Return the thresholds between `count` levels, shape (count - 1,)."""
    return likelihood.theta[_EDGES + 1 : _EDGES + count]


class LevelDistribution:
    """Distribution of the level given f, with the methods of SciPy's that are asked for.

    Parameters
    ----------
    f : ndarray
    theta : ndarray
        Of the likelihood.
    below : callable
        Distribution function of the noise, which is symmetric about 0.
    noise : callable
        ``noise(generator, size=size)``, draws of it.
    """

    def __init__(
        self,
        f: Array,
        theta: Array,
        below: Callable[[Array], Array],
        noise: Callable[..., Array],
    ) -> None:
        self.f, self.edges = f, theta[_EDGES : _EDGES + MOST_LEVELS + 1]
        self._below, self._noise = below, noise

    def _tails(self) -> tuple[Array, Array]:
        gap = self.edges - self.f[..., None]
        return self._below(gap), self._below(-gap)

    def cdf(self, y: ArrayLike) -> Array:
        """Return P(Y <= y)."""
        return self._at(y, 0)

    def sf(self, y: ArrayLike) -> Array:
        """Return P(Y > y)."""
        return self._at(y, 1)

    def _at(self, y: ArrayLike, side: int) -> Array:
        tails = self._tails()[side]
        shape = np.broadcast_shapes(np.shape(y), self.f.shape)
        whole = np.clip(np.floor(np.asarray(y, dtype=float)), -1.0, MOST_LEVELS - 1).astype(int)
        table = np.broadcast_to(tails, (*shape, tails.shape[-1]))
        index = np.broadcast_to(whole + 1, shape)[..., None]
        return np.take_along_axis(table, index, -1)[..., 0]

    def mean(self) -> Array:
        """Return the means."""
        return np.asarray(self._tails()[1][..., 1:-1].sum(axis=-1))

    def var(self) -> Array:
        """Return the variances."""
        upper = self._tails()[1][..., 1:-1]
        k = np.arange(upper.shape[-1])
        return np.asarray(((2.0 * k + 1.0) * upper).sum(axis=-1) - upper.sum(axis=-1) ** 2)

    def ppf(self, q: float) -> Array:
        """Return the least level with P(Y <= level) >= q."""
        return np.asarray((self._tails()[0][..., 1:-1] < q).sum(axis=-1, dtype=float))

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> Array:
        """Draw levels."""
        noisy = self.f + self._noise(random_state, size=size)
        return np.searchsorted(self.edges[1:-1], noisy, side="left").astype(float)


def _given(f: Array, theta: Array) -> LevelDistribution:
    from scipy.special import ndtr  # takes longer to import than all likelihoods

    return LevelDistribution(f, theta, ndtr, np.random.Generator.standard_normal)


likelihood = Likelihood(
    name="ordinal",
    outcomes=f"levels 0, 1, 2, ... {MOST_LEVELS - 1}",
    split=Pointer(_split, SPLIT),
    validate=levels,
    moments=Pointer(_moments, MOMENTS),
    powers=Powers.from_kernels(_raised_moments, _frame, whole=False),
    rule=adaptive_rule,
    landmarks=Pointer(_edge, LANDMARK),
    parameters=dict.fromkeys(gap_names(MOST_LEVELS), 1.0) | {"middle": 0.0},
    limits=dict.fromkeys(gap_names(MOST_LEVELS), (1e-6, 2.0 * BEYOND)) | {"middle": (0.0, BEYOND)},
    derive=_thresholds,
    given=_given,
)
