"""Two classes, -1 and +1, of a latent value that is normal: log probabilities, and a score.

The score is the normal quantile of p(+1). Probabilities near 1/2 are rounded to it, and the score
of a latent mean of 1e-17 would be lost with them: there it is followed from where it can be seen
down to the mean, along a straight line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError, TableError
from qpruntime.estimators.predictive.density import log_density, wide
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.table import Table

__all__ = ["log_probabilities", "quantile", "scores"]

# Below this score the digits that probabilities have lost count; they are right to about 1e-12.
_NEAR = 1e-4
# Where the line is drawn through: its bend is below 1e-6 of it, and so are the lost digits.
_LEAST, _AIM, _MOST = 1e-4, 1e-3, 1e-2
# A score at mean 0 that is smaller than this is 0 but for the errors of an integral, or of a table.
_NOISE, _NOISE_OF_TABLES = 1e-10, 1e-6
# Steps of at most 1e8 from 1e-18 to _FAR, and a few to end between _LEAST and _MOST.
_STEPS, _FAR = 20, 1e30


def log_probabilities(
    likelihood: Likelihood | None, mean: Array, variance: Array, table: Table | None = None
) -> tuple[Array, Array]:
    """Log p(-1) and log p(+1) for latent values N(mean, variance), in their shape.

    Where the likelihood is None they are looked up in a table of surfaces.
    """
    known = _closed(likelihood, mean, variance)
    if known is not None:
        return log_ndtr(-known), log_ndtr(known)
    minus, plus = (log_density(likelihood, mean, variance, y, table) for y in (-1.0, 1.0))
    return minus, plus


def scores(
    likelihood: Likelihood | None, mean: Array, variance: Array, table: Table | None = None
) -> Array:
    """Normal quantile of p(+1) for latent values N(mean, variance), in their shape.

    Of the sign that p(+1) - p(-1) has, and in the order of p(+1), also where both round to 1/2.
    """
    known = _closed(likelihood, mean, variance)
    if known is not None:
        return known
    found = quantile(*log_probabilities(likelihood, mean, variance, table))
    near = np.flatnonzero(np.abs(found) < _NEAR)
    if near.size:
        m, v, seen = (a.reshape(-1)[near] for a in (mean, variance, found))
        found.reshape(-1)[near] = _along_a_line(likelihood, m, v, seen, table)
    return found


def _closed(likelihood: Likelihood | None, mean: Array, variance: Array) -> Array | None:
    """Return the score where it has a closed form, else None."""
    if likelihood is None or likelihood.score is None:
        return None
    return likelihood.score(mean, wide(variance))


def quantile(minus: Array, plus: Array) -> Array:
    """Normal quantile of p(+1) from log probabilities, of which the smaller one has all digits."""
    whole = np.logaddexp(minus, plus)
    smaller = ndtri_exp(np.minimum(minus, plus) - whole)
    return np.where(plus < minus, smaller, np.where(plus > minus, -smaller, 0.0))


def _along_a_line(
    likelihood: Likelihood | None, mean: Array, variance: Array, seen: Array, table: Table | None
) -> Array:
    """Scores of small means: the score at 0, and a slope from a mean where it is about 1e-3.

    That mean depends on the variance alone, so that scores of one variance keep their order.
    A mean further out than it keeps the score that was `seen`.
    """

    def at(mean: Array, some: NDArray[np.intp]) -> Array:
        return quantile(*log_probabilities(likelihood, mean, variance[some], table))

    everywhere = np.arange(mean.size)
    noise = _NOISE if likelihood is not None else _NOISE_OF_TABLES
    try:
        origin = at(np.zeros(mean.size), everywhere)
        origin[np.abs(origin) <= noise] = 0.0
        out = seen.copy()
        reach = 1e-3 * np.sqrt(wide(variance))
        left = everywhere
        for _ in range(_STEPS):
            rise = at(reach[left], left) - origin[left]
            size = np.abs(rise)
            good = (size >= _LEAST) & (size <= _MOST)
            done, slope = left[good], rise[good] / reach[left[good]]
            inside = np.abs(mean[done]) <= reach[done]
            line = origin[done] + slope * mean[done]
            out[done] = np.where(inside, line, out[done])
            left, size = left[~good], size[~good]
            if not left.size:
                break
            reach[left] *= np.clip(_AIM / np.maximum(size, 1e-300), 1e-3, 1e8)
            left = left[reach[left] < _FAR]
    except (NumericalError, TableError):  # what ends before the score can be seen
        return seen
    return out
