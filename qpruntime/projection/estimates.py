"""Moments and sigma* of weighted samples, and their standard errors from influence functions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from qpruntime.arrays import Array
from qpruntime.errors import InputError

__all__ = ["Estimates", "estimate"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Estimates(NamedTuple):
    log_z: float
    mean: float
    std_ep: float
    std: float
    log_z_error: float
    mean_error: float
    std_ep_error: float
    std_error: float
    effective: float


def estimate(x: Array, weights: Array, correlated: bool = False) -> Estimates:
    """Project one weighted sample; log Z is left out."""
    # What weighs less than 1e-300 of the heaviest is nothing, and has no quantile.
    kept = np.flatnonzero(weights > 1e-300 * weights.max())
    order = kept[np.argsort(x[kept], kind="stable")]
    x, w = x[order], weights[order] / weights.max()
    if x.size == 0 or x[0] == x[-1]:
        raise InputError("a projection needs at least two different samples of positive weight")
    w /= w.sum()
    squares = w * w
    concentration = squares.sum()  # 1 over the effective sample size
    mean = x[0] + w @ (x - x[0])
    d = x - mean
    # Divided as unweighted variances are by n - 1.
    variance = (w @ (d * d)) / (1.0 - concentration)
    std_ep = math.sqrt(variance)

    # Between x_i and x_{i+1}: mass below and above, each summed from its own end.
    gap = np.diff(x)
    below, above = _ends(w)
    z = np.where(below < above, ndtri(below), -ndtri(above))
    density = np.exp(-0.5 * z * z - _HALF_LOG_2PI)
    square_below, square_above = _ends(squares)
    # Bias of I(F) with Var F and E F - F as estimated: I' = -z, I'' = -1/I. In tails that hold less
    # than one draw the expansion means nothing, but no more than I(F) itself can be missing.
    spread = above**2 * square_below + below**2 * square_above
    shift = below * square_above - above * square_below
    bias = -gap @ (z * shift + np.minimum(0.5 * spread / density, density))
    star = gap @ density - bias

    H = np.concatenate([[0.0], np.cumsum(z * gap)])
    influences = np.array([d, (d * d - variance) / (2.0 * std_ep), H - w @ H])
    scaled = np.zeros((3, weights.size))
    scaled[:, order] = w * influences
    errors = np.sqrt(np.sum(scaled**2, axis=1))
    effective = 1.0 / concentration
    if correlated:
        plain, errors = errors, _batch_errors(scaled)
        ratios = plain[errors > 0.0] / errors[errors > 0.0]
        effective *= min(1.0, float(ratios.min(initial=1.0)) ** 2)
    mean += squares @ d  # the ratio of two sums: bias -sum w^2 (x - mean)
    return Estimates(
        math.nan, mean, std_ep, star, math.nan, errors[0], errors[1], errors[2], effective
    )


def _ends(w: Array) -> tuple[Array, Array]:
    """Sums up to each entry but the last, and of the rest from the other end."""
    return np.cumsum(w)[:-1], np.cumsum(w[::-1])[-2::-1]


def _batch_errors(scaled: Array) -> Array:
    """Standard errors of row sums from sums over consecutive batches."""
    count = max(2, math.isqrt(scaled.shape[1]))
    sums = np.array([b.sum(axis=1) for b in np.array_split(scaled, count, axis=1)])
    return np.sqrt(np.sum((sums - sums.mean(axis=0)) ** 2, axis=0) * count / (count - 1.0))
