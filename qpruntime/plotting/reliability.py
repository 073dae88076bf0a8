"""Predicted probabilities in bins, with the share of each that came true and its interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import choice, finite, whole

__all__ = ["Reliability", "reliability"]


class Reliability(NamedTuple):
    """Bins that have rows; attributes as of `CalibrationDisplay`."""

    predicted: Array
    observed: Array
    low: Array
    high: Array
    counts: np.ndarray
    edges: Array
    kept: np.ndarray


def reliability(
    y: ArrayLike, probability: ArrayLike, n_bins: int, strategy: str, level: float
) -> Reliability:
    """Sort predictions into bins and count.

    Intervals are quantiles of Beta(k + 1/2, n - k + 1/2), Jeffreys' posterior of k of n, extended
    to the share k/n, which lies outside where k is 0 or n.

    Raises
    ------
    InputError
        If an argument is not usable.
    """
    p = finite(probability, "probability")
    hit = finite(y, "y", p.shape)
    if p.ndim != 1 or not p.size:
        raise InputError(f"probability must have shape (N,), N at least 1, got {p.shape}")
    if not ((p >= 0.0) & (p <= 1.0)).all():
        worst = p[np.argmax(np.abs(p - 0.5))]
        raise InputError(f"probabilities must be from 0 to 1, got {worst:g}")
    if not np.isin(hit, (0.0, 1.0)).all():
        raise InputError("y must be 0 or 1, whether a row is of the class: y == label")
    edges = np.linspace(0.0, 1.0, whole(n_bins, "n_bins", 1) + 1)
    if choice(strategy, "strategy", ("uniform", "quantile")) == "quantile":
        inner = np.unique(np.quantile(p, edges[1:-1]))
        edges = np.array([0.0, *inner[(inner > 0.0) & (inner < 1.0)], 1.0])
    bins = edges.size - 1
    where = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, bins - 1)
    kept = np.unique(where)
    n, k, total = (np.bincount(where, w, bins)[kept] for w in (None, hit, p))
    tail = 0.5 - 0.5 * level
    low, high = (betaincinv(k + 0.5, n - k + 0.5, q) for q in (tail, 1.0 - tail))
    return Reliability(
        total / n, k / n, np.minimum(low, k / n), np.maximum(high, k / n), n, edges, kept
    )
