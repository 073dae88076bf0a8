"""Class probabilities and intervals of a classifier, averaged over hyper-parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.estimators.over_nodes import densities, nodes_of
from qpruntime.estimators.predictive.normals import Mixture
from qpruntime.estimators.predictive.two_classes import log_probabilities
from qpruntime.estimators.process import one_or_columns

__all__ = ["mixed_normals", "mixed_probabilities"]


def mixed_probabilities(model: Any, points: Array) -> tuple[Array, Array]:
    """Log p(-1) and log p(+1) of every process at validated points, each (T,) or (T, K)."""
    own, table = model._likelihood_, model._table_if_needed()

    def finish(mean: Array, variance: Array) -> tuple[Array, Array]:
        return log_probabilities(own, mean, variance, table)

    columns: tuple[list[Array], list[Array]] = ([], [])
    for weights, models in nodes_of(model):
        found = [one._predicted(points, finish) for one in models]
        for sign in (0, 1):
            columns[sign].append(densities(weights, [pair[sign] for pair in found]))
    minus, plus = (one_or_columns(parts) for parts in columns)
    return minus, plus


def mixed_normals(model: Any, points: Array, level: float) -> Array:
    """Central intervals (T, 2) of the latent function of two classes, a mixture of normals."""
    ((weights, models),) = nodes_of(model)
    found = [one._predicted(points, lambda mean, variance: (mean, variance)) for one in models]
    mean, variance = (np.array([pair[k] for pair in found]) for k in (0, 1))
    tail = 0.5 - 0.5 * level
    return Mixture(mean, variance, weights).quantiles(np.array([tail, 1.0 - tail]))
