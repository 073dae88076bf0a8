"""Predictive distributions of observations whose latent value f is normal.

Of any likelihood: the normaliser Z(mean, std, y). Of a Poisson count, for the links of
`qpruntime.estimators.predictive.links`, also quantiles and the most probable one; ``"exact"`` is
the distribution itself, ``"gamma"`` replaces the rate by a gamma variable of its mean and variance,
which makes the count negative binomial (paper, Appendix H). With a finite `dispersion` r the count
is negative binomial given f: the rate is that of the link times a gamma variable of mean 1 and
variance 1/r. Exposure has been applied.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from qpruntime.arrays import Array
from qpruntime.blocks import PointError
from qpruntime.errors import NumericalError
from qpruntime.estimators.predictive import negative_binomial as gamma_poisson
from qpruntime.estimators.predictive.count_mixture import (
    GammaRate,
    Tail,
    count_tail,
    smallest_counts,
)
from qpruntime.estimators.predictive.dispersed import DispersedRate, dispersed_tail
from qpruntime.estimators.predictive.links import LINKS, counted
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.observations import LARGEST_COUNT, counts
from qpruntime.likelihoods.rates import Rate
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table
from qpruntime.validation import choice

__all__ = [
    "PREDICTIVES",
    "below",
    "log_density",
    "log_pmf",
    "mode",
    "quantiles",
    "rate_quantiles",
    "rate_std",
    "wide",
]

Counts = NDArray[np.int64]

PREDICTIVES = ("exact", "gamma")

# A latent variance of 0 comes from rounding; the formulas want a width.
_LEAST_VARIANCE = 1e-30
# Larger floats are not every whole number.
_LARGEST_MODE = 2.0**53
_REACH = 8.6  # ndtr(-8.6) = 4e-18


def log_density(
    likelihood: str | Likelihood | None,
    mean: Array,
    variance: Array,
    y: ArrayLike,
    table: Table | None = None,
) -> Array:
    """Log predictive density of observations `y` of latent values N(mean, variance).

    The normaliser of the likelihood; arguments broadcast. Where its code is not at hand the
    normalisers are those of a table of surfaces.
    """
    method = "wp" if table is not None and table.metadata.projection is not None else "ep"
    return project_arrays(likelihood, mean, np.sqrt(wide(variance)), y, method, table).log_z


def log_pmf(
    mean: Array,
    variance: Array,
    y: ArrayLike,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Array:
    """Log probability of the counts `y` for latent values N(mean, variance); they broadcast."""
    if _exact(predictive):
        return log_density(counted(link, dispersion), mean, variance, y)
    arrays = np.broadcast_arrays(*_gamma(mean, variance, link, dispersion), counts(y))
    out = np.empty(arrays[0].shape)
    gamma_poisson.log_pmf_many(
        *(np.array(a, dtype=float).reshape(-1) for a in arrays), out.reshape(-1)
    )
    return out


def _gamma(mean: Array, variance: Array, link: str, dispersion: float) -> tuple[Array, Array]:
    """Mean and scale, which is variance over mean, of the gamma variable in place of the rate."""
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    return rate, scale + (scale + rate) / dispersion


def mode(
    mean: Array, variance: Array, link: str = "square", dispersion: float = math.inf
) -> Counts:
    """Most probable counts, shape (T,).

    For the square link those of the negative binomial, floor(c (k - 1)) if k > 1 else 0 for shape k
    and scale c of the rate, the paper's point prediction (Appendix H). No gamma variable has the
    tails of e^f: for links like the exponential one they are those of the exact predictive.

    Raises
    ------
    NumericalError
        If a count is larger than a whole number can be, or the exact one than `LARGEST_COUNT`.
    """
    if not LINKS[link].like_gamma:
        return _exact_mode(mean, variance, link, dispersion)
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    found = np.floor(np.maximum(rate - scale, 0.0))
    if not (found <= _LARGEST_MODE).all():
        raise NumericalError(
            f"the most probable count is {found.max():g}, beyond what a whole number can hold; "
            "lower the exposure"
        )
    return found.astype(np.int64)


def _exact_mode(mean: Array, variance: Array, link: str, dispersion: float) -> Counts:
    """Where the pmf stops rising; for a rate with one peak it has one (Holgate 1970)."""
    first, last = np.full(mean.size, -1), np.full(mean.size, LARGEST_COUNT)
    while (last - first).max(initial=0) > 1:
        middle = np.maximum((first + last) // 2, 0)
        now, then = (
            log_pmf(mean, variance, middle + k, link=link, dispersion=dispersion) for k in (0, 1)
        )
        rising = then > now
        first, last = np.where(rising, middle, first), np.where(rising, last, middle)
    if (last == LARGEST_COUNT).any():
        raise _too_large(mean, variance, int(np.argmax(last)))
    return last.astype(np.int64)


def quantiles(
    mean: Array,
    variance: Array,
    q: Array,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Counts:
    """Smallest counts y with P(Y <= y) >= q, shape (T, len(q)) for T latent values.

    Raises
    ------
    NumericalError
        If one is beyond `LARGEST_COUNT`.
    """
    rate, tail = _rates(mean, variance, predictive, link, dispersion)
    pairs, level = np.repeat(np.arange(mean.size), q.size), np.tile(q, mean.size)
    found = smallest_counts(rate[pairs], level, LARGEST_COUNT, tail)
    if (found > LARGEST_COUNT).any():
        raise _too_large(mean, variance, int(pairs[np.argmax(found)]))
    return found.astype(np.int64).reshape(mean.size, q.size)


def below(
    mean: Array,
    variance: Array,
    y: Array,
    upper: bool,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Array:
    """P(Y <= y), or with `upper` P(Y > y), for T latent values and as many counts."""
    rate, tail = _rates(mean, variance, predictive, link, dispersion)
    return tail(rate, y, upper)


def _rates(
    mean: Array, variance: Array, predictive: str, link: str, dispersion: float
) -> tuple[Rate, Tail]:
    """Distributions of rates, and what has the tails of their counts."""
    if not _exact(predictive):
        average, scale = _gamma(mean, variance, link, dispersion)
        return GammaRate(average / scale, scale), count_tail
    if dispersion == math.inf:
        return LINKS[link].distribution(mean, wide(variance)), count_tail
    std = np.sqrt(wide(variance))
    return DispersedRate(mean, std, np.full(mean.size, dispersion)), dispersed_tail


def rate_std(mean: Array, variance: Array, link: str = "square") -> Array:
    """Standard deviation of the rate, shape (T,); that of its count adds a variance of its mean."""
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    return np.sqrt(rate) * np.sqrt(scale)


def rate_quantiles(mean: Array, variance: Array, q: Array) -> Array:
    """Quantiles of the rate f^2 itself, shape (T, len(q)), by bisection."""
    m, std = np.abs(mean)[:, None], np.sqrt(wide(variance))[:, None]
    low = np.zeros((mean.size, q.size))
    high = low + m + _REACH * std
    for _ in range(60):
        root = 0.5 * (low + high)
        short = ndtr((root - m) / std) - ndtr((-root - m) / std) < q
        low, high = np.where(short, root, low), np.where(short, high, root)
    return (0.5 * (low + high)) ** 2


def wide(variance: Array) -> Array:
    """Return the variance, or the least one that the formulas take."""
    return np.maximum(variance, _LEAST_VARIANCE)


def _exact(predictive: str) -> bool:
    return choice(predictive, "predictive", PREDICTIVES) == "exact"


def _too_large(mean: Array, variance: Array, i: int) -> PointError:
    return PointError(
        i,
        f"has latent mean {mean[i]:.3g} and standard deviation "
        f"{math.sqrt(variance[i]):.3g}: its counts reach beyond {LARGEST_COUNT}; predict further "
        "inside the data or for a smaller exposure",
    )
