"""Observations given the last layer's normals: what is expected, and quantiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.density import quantiles, rate_std
from qpruntime.likelihoods import Likelihood

__all__ = ["expected", "quantiles_of", "quantiles_of_mixtures"]

#: Halvings of the interval that a quantile is known to be in.
_HALVINGS = 60


def expected(likelihood: Likelihood | None, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (T,) of the function, or of the rate where counts have one.

    Of equal shares of the normals (T, S).
    """
    rate = None if likelihood is None else likelihood.rate
    if rate is not None:
        spread = rate_std(means, variances, rate.name) ** 2
        means, variances = rate.mean_rate(means, variances), spread
    return means.mean(axis=1), np.sqrt(variances.mean(axis=1) + means.var(axis=1))


def quantiles_of(
    likelihood: Likelihood, mean: Array, variance: Array, q: Array
) -> Array | NDArray[np.int64]:
    """Quantiles (T, Q) of an observation whose latent values are N(mean, variance), both (T,)."""
    if likelihood.rate is not None:
        return quantiles(mean, variance, q, link=likelihood.rate.name)
    if likelihood.reach is not None:
        tail, side = np.minimum(q, 1.0 - q), np.sign(q - 0.5)
        reach = likelihood.reach(variance, tail, likelihood.theta)
        return np.asarray(mean[:, None] + side * reach)
    raise InputError(
        "quantiles of observations are known of Gaussian and Student-t noise and of Poisson "
        f"counts; with likelihood {likelihood.name!r} use latent, sample or predict_log_density"
    )


def quantiles_of_mixtures(means: Array, std: Array, q: Array) -> Array:
    """Quantiles (T, Q) of equal shares of normals (T, S), by bisection where S > 1."""
    each = means[:, None, :] + std[:, None, :] * ndtri(q)[:, None]
    low, high = each.min(axis=2), each.max(axis=2)
    for _ in range(_HALVINGS if means.shape[1] > 1 else 0):
        middle = 0.5 * (low + high)
        share = ndtr((middle[:, :, None] - means[:, None]) / std[:, None]).mean(axis=2)
        low, high = np.where(share < q, middle, low), np.where(share < q, high, middle)
    return np.asarray(0.5 * (low + high))
