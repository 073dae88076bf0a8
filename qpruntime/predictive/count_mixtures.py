"""Quantiles of counts whose log rate is a mixture of normals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qpruntime._typing import Array
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.predictive.counts import DispersedRate, count_tail, dispersed_tail
from qpruntime.predictive.density import quantiles, wide
from qpruntime.predictive.mixtures import Mixture

__all__ = ["count_quantiles"]


def count_quantiles(mixture: Mixture, parameters: Sequence[Mapping[str, float]], q: Array) -> Array:
    """Smallest counts y with P(Y <= y) >= q, shape (R, Q).

    Parameters
    ----------
    mixture : Mixture
        Of log rates.
    parameters : sequence of mapping, length J
        Of the likelihood at each node; a "dispersion" makes counts negative binomial.
    q : ndarray, shape (Q,)
    """
    shapes = [one.get("dispersion", np.inf) for one in parameters]
    triples = list(zip(mixture.mean, mixture.variance, shapes, strict=True))
    # A mixture's quantile is between those of its parts.
    each = np.array([quantiles(m, v, q, "exact", "exp", r) for m, v, r in triples], dtype=float)
    low, high = each.min(axis=0) - 1.0, each.max(axis=0)
    while (wide_ones := np.argwhere(high - low > 1.0)).size:
        i, k = wide_ones.T
        middle = np.floor(0.5 * (low[i, k] + high[i, k]))
        below = np.zeros(len(i))
        for (m, v, r), weight in zip(triples, mixture.weights, strict=True):
            below += weight * _below(m[i], np.sqrt(wide(v[i])), r, middle)
        enough = below >= q[k]
        high[i[enough], k[enough]] = middle[enough]
        low[i[~enough], k[~enough]] = middle[~enough]
    return high


def _below(mean: Array, std: Array, dispersion: float, y: Array) -> Array:
    """P(Y <= y) of one node."""
    if np.isinf(dispersion):
        return count_tail(LogNormalRate(mean, std), y, False)
    return dispersed_tail(DispersedRate(mean, std, np.full(mean.size, dispersion)), y, False)
