"""Levels 0, 1, 2, ... in an order: y is how many thresholds f plus normal noise is above.

The first threshold is 0, for f has a mean of its own, and the noise has variance 1. The others
follow in gaps, which are positive and learnt. Levels that there are none of lie behind a gap that
nothing reaches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.jit import (
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    SPLIT,
    Pointer,
    kernel,
)
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.kinds.between import ends_top, log_between, noisy_between
from qpruntime.likelihoods.kinds.one_peak import one_peak_frame, one_peak_moments
from qpruntime.quadrature.adaptive import adaptive_rule
from qpruntime.validation import finite

__all__ = ["BEYOND", "MOST_LEVELS", "gap_names", "likelihood", "probabilities", "thresholds"]

#: Levels at most.
MOST_LEVELS = 12
#: A gap that nothing reaches.
BEYOND = 1e8
_GAPS = MOST_LEVELS - 2


def gap_names(count: int) -> tuple[str, ...]:
    """Names of the gaps that `count` levels have."""
    return tuple(f"gap_{k}" for k in range(2, count))


def _thresholds(*gaps: float) -> tuple[float, ...]:
    # Behind the gaps, in theta: the thresholds, with those that are infinitely far off.
    found = [0.0]
    for gap in gaps:
        found.append(found[-1] + gap)
    return (-math.inf, *found, math.inf)


@kernel
def log_level(f, y, theta):
    """Log probability of a level."""
    k = _GAPS + int(y)
    return log_between(theta[k] - f, theta[k + 1] - f)


def _split(f, y, theta):
    return log_level(f, y, theta), 0.0


def _raised_moments(mu, sigma, y, theta, power):
    k = _GAPS + int(y)
    top = ends_top(theta[k], theta[k + 1])
    return one_peak_moments(log_level, mu, sigma, y, theta, power, top, 0.0, 1.0)


@kernel
def raised_frame(mu, sigma, y, theta, power):
    """Where a power of the likelihood is integrated."""
    k = _GAPS + int(y)
    top = ends_top(theta[k], theta[k + 1])
    return one_peak_frame(log_level, mu, sigma, y, theta, power, top, 1.0)


def _frame(mu, sigma, y, theta):
    return raised_frame(mu, sigma, y, theta, 1.0)


def _raised_frame(mu, sigma, y, theta, power):
    return raised_frame(mu, sigma, y, theta, power)


def _moments(mu, sigma, y, theta):
    k = _GAPS + int(y)
    return noisy_between(mu, sigma, theta[k], theta[k + 1], 1.0)


def _edge(y, theta, k):
    edge = theta[_GAPS + int(y) + k] if k < 2 else math.nan
    if k == 0 and math.isinf(edge):
        edge = theta[_GAPS + int(y) + 1]
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
    found: Array = likelihood.theta[_GAPS + 1 : _GAPS + count]
    return found


def probabilities(likelihood: Likelihood, count: int, f: Array) -> Array:
    """Probabilities of `count` levels given f, with a last axis for them."""
    from scipy.special import ndtr  # takes longer to import than all likelihoods

    edges = np.concatenate([[-np.inf], thresholds(likelihood, count), [np.inf]])
    gap = edges - np.asarray(f)[..., None]
    # Differences of whichever tails are small.
    below, above = np.diff(ndtr(gap)), -np.diff(ndtr(-gap))
    return np.where(gap[..., :-1] > 0.0, above, below)


class _Level:
    """Distribution of the level given f, with the methods of SciPy's that are asked for."""

    def __init__(self, f: Array, edges: Array) -> None:
        self.f, self.edges = np.asarray(f, dtype=float), edges

    def _tails(self) -> tuple[Array, Array]:
        from scipy.special import ndtr  # takes longer to import than all likelihoods

        gap = self.edges - self.f[..., None]
        return ndtr(gap), ndtr(-gap)

    def cdf(self, y: ArrayLike) -> Array:
        return self._at(y, 0)

    def sf(self, y: ArrayLike) -> Array:
        return self._at(y, 1)

    def _at(self, y: ArrayLike, side: int) -> Array:
        tails = self._tails()[side]
        shape = np.broadcast_shapes(np.shape(y), self.f.shape)
        whole = np.clip(np.floor(np.asarray(y, dtype=float)), -1.0, MOST_LEVELS - 1).astype(int)
        both = np.broadcast_to(tails, (*shape, tails.shape[-1]))
        index = np.broadcast_to(whole + 1, shape)[..., None]
        return np.take_along_axis(both, index, -1)[..., 0]

    def mean(self) -> Array:
        found: Array = self._tails()[1][..., 1:-1].sum(axis=-1)
        return found

    def var(self) -> Array:
        upper = self._tails()[1][..., 1:-1]
        k = np.arange(upper.shape[-1])
        found: Array = ((2.0 * k + 1.0) * upper).sum(axis=-1) - upper.sum(axis=-1) ** 2
        return found

    def ppf(self, q: float) -> Array:
        found: Array = (self._tails()[0][..., 1:-1] < q).sum(axis=-1).astype(float)
        return found

    def rvs(self, size: Any, random_state: np.random.Generator) -> Array:
        noisy = self.f + random_state.standard_normal(size)
        return np.searchsorted(self.edges[1:-1], noisy, side="left").astype(float)


def _given(f: Array, theta: Array) -> Any:
    return _Level(f, theta[_GAPS : _GAPS + MOST_LEVELS + 1])


likelihood = Likelihood(
    name="ordinal",
    outcomes=f"levels 0, 1, 2, ... {MOST_LEVELS - 1}",
    split=Pointer(_split, SPLIT),
    validate=levels,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(
        Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME), whole=False
    ),
    rule=adaptive_rule,
    landmarks=Pointer(_edge, LANDMARK),
    parameters=dict.fromkeys(gap_names(MOST_LEVELS), 1.0),
    limits=dict.fromkeys(gap_names(MOST_LEVELS), (1e-6, 2.0 * BEYOND)),
    derive=_thresholds,
    given=_given,
)
