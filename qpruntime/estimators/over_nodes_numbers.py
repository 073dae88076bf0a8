"""Quantiles of observations, averaged over hyper-parameters that were integrated."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.estimators.over_nodes import nodes_of
from qpruntime.estimators.predictive.by_likelihood import PLAIN, Predicted, Rows
from qpruntime.estimators.predictive.mixed_quantiles import mixed_quantiles
from qpruntime.estimators.predictive.normals import Mixture

__all__ = ["mixed_at"]


def mixed_at(model: Any, points: Array, q: Array, rows: Rows = PLAIN) -> Array:
    """Quantiles (T, Q) of an observation at validated points, in units of y."""
    ((weights, models),) = nodes_of(model)
    centre, unit = model._units()
    found = [one._predicted(points, lambda m, v: (m, v)) for one in models]
    if model.likelihood_.name == "gaussian":
        # Noise and what is not known of f add up: a mixture of normals.
        noise = [one.likelihood_.parameters["scale"] for one in models]
        mean = np.array([m for m, _ in found])
        variance = np.array([v + s**2 for (_, v), s in zip(found, noise, strict=True)])
        return np.asarray(centre + unit * Mixture(mean, variance, weights).quantiles(q))
    # Robust regressions know the distribution by their likelihood alone.
    known = [getattr(one, "_predicted_", Predicted(one.likelihood_, None)) for one in models]
    pairs = zip(known, found, strict=True)
    below = [partial(one.tail, mean, variance, rows=rows) for one, (mean, variance) in pairs]
    each = [(one._quantiles_at(points, q, rows) - centre) / unit for one in models]
    whole = Predicted.discrete(model.likelihood_)
    return np.asarray(centre + unit * mixed_quantiles(each, below, weights, q, whole))
