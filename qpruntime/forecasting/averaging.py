"""Averages of forecasts over trends whose evidences are close."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning
from qpruntime.forecasting.trial import (
    MANY,
    ChosenStructure,
    ObservedSeries,
    evidence,
    fitted,
)

__all__ = ["averaged", "weights_of"]

#: Trends that are averaged.
_TRENDS = ("level", "line", "slope", "damped")
#: Log evidence below the best at which a trend is left out.
_CLOSE = 4.0
#: Power of evidences in weights.
_POWER = 0.5


def averaged(
    options: Any, best: ChosenStructure, known: ObservedSeries
) -> tuple[list[ChosenStructure], Array]:
    """Return fits of all trends whose log evidences are close, the heaviest first, and weights.

    A trend that is given stays alone, and so does the trend of a long series, whose evidence
    decides.

    Parameters
    ----------
    options : GPForecaster
    best : ChosenStructure
        The structure that was chosen; only its trend differs from that of the others.
    known : ObservedSeries
    """
    if options.trend != "auto" or best.structure.trend == "none" or known.y.size >= MANY:
        return [best], np.ones(1)
    members = [best]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        others = [
            fitted(replace(best.structure, trend=one), known, "mode")
            for one in _TRENDS
            if one != best.structure.trend
        ]
        top = max(evidence(one, known) for one in [best, *others])
        for one in others:
            if one.model.converged_ and evidence(one, known) > top - _CLOSE:
                members.append(fitted(one.structure, known, options.integrate))
    weights = weights_of(np.array([evidence(one, known) for one in members]))
    order = np.argsort(-weights, kind="stable")
    return [members[k] for k in order], weights[order]


def weights_of(evidences: Array) -> Array:
    """Return weights that sum to 1, proportional to a power of the evidence."""
    power = np.exp(_POWER * (evidences - evidences.max()))
    return np.asarray(power / power.sum())
