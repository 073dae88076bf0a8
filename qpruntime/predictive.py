"""Predictive distribution of a count y ~ Poisson(f^2) whose latent value f is normal.

``"exact"``: the pmf is the normaliser Z(mean, std, y) of the likelihood. ``"gamma"``: g = f^2 is
replaced by a gamma variable of its mean and variance, which makes the count negative binomial
(paper, Appendix H). Exposure has been applied: f is sqrt(exposure) times the kernel's latent value.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from qpruntime.errors import NumericalError
from qpruntime.jit import kernel
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.base import LARGEST_COUNT
from qpruntime.likelihoods.softplus import log1p_less
from qpruntime.projection import project_arrays
from qpruntime.validation import choice

__all__ = [
    "PREDICTIVES",
    "gamma_match",
    "log_density",
    "log_pmf",
    "mode",
    "quantiles",
    "rate_quantiles",
]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

PREDICTIVES = ("exact", "gamma")

# A latent variance of 0 comes from rounding; the formulas want a width.
_LEAST_VARIANCE = 1e-30
# Each tail outside the window that is summed holds less than 2 exp(-_TAIL) = 1e-16.
_TAIL = 37.5
# Larger floats are not every whole number.
_LARGEST_MODE = 2.0**53
_REACH = 8.6  # ndtr(-8.6) = 4e-18
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def log_density(likelihood: str | Likelihood, mean: Array, variance: Array, y: ArrayLike) -> Array:
    """Log predictive density of observations `y` of latent values N(mean, variance).

    The normaliser Z of the likelihood; arguments broadcast.
    """
    std = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
    return project_arrays(likelihood, mean, std, y, method="ep").log_z


def log_pmf(mean: Array, variance: Array, y: ArrayLike, predictive: str = "exact") -> Array:
    """Log probability of the counts `y` for latent values N(mean, variance); they broadcast."""
    if _known(predictive) == "exact":
        return log_density("poisson", mean, variance, y)
    variance = np.maximum(variance, _LEAST_VARIANCE)
    arrays = np.broadcast_arrays(mean, variance, get("poisson").validate(y))
    out = np.empty(arrays[0].shape)
    _negative_binomial(*(np.array(a, dtype=float).reshape(-1) for a in arrays), out.reshape(-1))
    return out


def gamma_match(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Shape k and scale c of the gamma variable with the mean and the variance of f^2."""
    variance = np.maximum(variance, _LEAST_VARIANCE)
    rate = mean**2 + variance
    half = variance * (2.0 * mean**2 + variance)
    return 0.5 * rate**2 / half, 2.0 * half / rate


def mode(mean: Array, variance: Array) -> Counts:
    """Mode of the negative binomial, floor(c (k - 1)) if k > 1 else 0 (paper, Appendix H)."""
    shape, scale = gamma_match(mean, variance)
    found = np.floor(np.maximum(scale * (shape - 1.0), 0.0))
    if not (found <= _LARGEST_MODE).all():
        raise NumericalError(
            f"the most probable count is {found.max():g}, beyond what a whole number can hold; "
            "lower the exposure"
        )
    return found.astype(np.int64)


def quantiles(mean: Array, variance: Array, q: Array, predictive: str = "exact") -> Counts:
    """Smallest counts y with P(Y <= y) >= q, shape (T, len(q)) for T latent values.

    The pmf is summed over a window outside which there is less than 1e-15, from below for
    q <= 1/2 and from above otherwise.

    Raises
    ------
    NumericalError
        If the window reaches beyond `LARGEST_COUNT`.
    """
    low, high = _window(mean, np.maximum(variance, _LEAST_VARIANCE), _known(predictive))
    out = np.empty((mean.size, q.size), dtype=np.int64)
    for i in range(mean.size):
        if high[i] > LARGEST_COUNT:
            raise NumericalError(
                f"point {i} has latent mean {mean[i]:.3g} and standard deviation "
                f"{math.sqrt(variance[i]):.3g}: its counts reach beyond {LARGEST_COUNT}, up to "
                f"{high[i]:.3g}; predict further inside the data or for a smaller exposure"
            )
        counts = np.arange(low[i], high[i] + 1.0)
        pmf = np.exp(log_pmf(mean[i], variance[i], counts, predictive))
        below = np.cumsum(pmf)
        above = np.append(np.cumsum(pmf[:0:-1])[::-1], 0.0)  # P(Y > y)
        lower = np.searchsorted(below, q)
        upper = np.searchsorted(-above, q - 1.0)
        out[i] = low[i] + np.minimum(np.where(q <= 0.5, lower, upper), counts.size - 1)
    return out


def rate_quantiles(mean: Array, variance: Array, q: Array) -> Array:
    """Quantiles of the rate f^2 itself, shape (T, len(q)), by bisection."""
    m, std = np.abs(mean)[:, None], np.sqrt(np.maximum(variance, _LEAST_VARIANCE))[:, None]
    low, high = (
        np.zeros((mean.size, q.size)),
        np.broadcast_to(m + _REACH * std, (mean.size, q.size)),
    )
    for _ in range(60):
        root = 0.5 * (low + high)
        short = ndtr((root - m) / std) - ndtr((-root - m) / std) < q
        low, high = np.where(short, root, low), np.where(short, high, root)
    return (0.5 * (low + high)) ** 2


def _known(predictive: str) -> str:
    return choice(predictive, "predictive", PREDICTIVES)


def _window(mean: Array, variance: Array, predictive: str) -> tuple[Array, Array]:
    """Counts between which all but 1e-15 of the probability lies.

    Chernoff: log P(Y <= a) and log P(Y >= a) <= -(a log(a/g) - a + g) <= -(sqrt(a) - sqrt(g))^2
    on their sides of the rate g. The rate's own tails are the normal's, or for a gamma variable
    of shape k and scale c below exp(-t) at c (k - sqrt(2 k t)) and c (k + sqrt(2 k t) + t).
    """
    if predictive == "exact":
        reach = _REACH * np.sqrt(variance)
        low, high = np.maximum(np.abs(mean) - reach, 0.0), np.abs(mean) + reach
    else:
        shape, scale = gamma_match(mean, variance)
        spread = np.sqrt(2.0 * shape * _TAIL)
        low = np.sqrt(scale * np.maximum(shape - spread, 0.0))
        high = np.sqrt(scale * (shape + spread + _TAIL))
    more = math.sqrt(_TAIL)
    return np.floor(np.maximum(low - more, 0.0) ** 2), np.ceil((high + more) ** 2)


@kernel
def stirling_error(x):
    """log Gamma(x) less (x - 1/2) log x - x + log(2 pi)/2."""
    if x < 16.0:
        return math.lgamma(x) - (x - 0.5) * math.log(x) + x - _HALF_LOG_2PI
    i = 1.0 / (x * x)
    return (
        1.0 / 12.0 - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0)))
    ) / x


@kernel
def negative_binomial(mean, variance, y):
    """Log NB(y | k, c/(1 + c)) in saddle-point form: no difference of large log Gammas.

    Loader (2000), "Fast and accurate computation of binomial probabilities".
    """
    rate = mean * mean + variance
    half = variance * (2.0 * mean * mean + variance)
    k, c = 0.5 * rate * rate / half, 2.0 * half / rate
    if y == 0.0:
        return -rate * (math.log1p(c) / c)
    gap = (y - rate) / (1.0 + c)
    short = -gap / y
    rest = log1p_less(short) if short > -0.9 else math.log((k + y) / y * c / (1.0 + c)) - short
    deviance = -k * log1p_less(gap / k) - y * rest
    return (
        stirling_error(k + y)
        - stirling_error(k)
        - stirling_error(y)
        - deviance
        - 0.5 * (math.log(y) + math.log1p(y / k))
        - _HALF_LOG_2PI
    )


@kernel
def _negative_binomial(mean, variance, y, out):
    for i in range(y.size):
        out[i] = negative_binomial(mean[i], variance[i], y[i])
