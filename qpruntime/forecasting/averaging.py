"""Averages of forecasts over trends whose evidences are close."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning
from qpruntime.forecasting.timetable import Timetable, timetable_of
from qpruntime.forecasting.trial import (
    MANY,
    ChosenStructure,
    ObservedSeries,
    StructureOptions,
    fitted,
    preferred,
)

__all__ = ["WeightedStructures", "alone", "averaged"]

#: Trends that are averaged.
_TRENDS = ("level", "line", "slope", "damped")
#: Log evidence below the best, as `preferred` has it, at which a trend is left out.
_CLOSE = 4.0


class WeightedStructures(NamedTuple):
    """Structures with their fits, the heaviest first, and weights that sum to 1.

    A timetable says that the counts have repeated exactly.
    """

    members: tuple[ChosenStructure, ...]
    weights: Array
    timetable: Timetable | None


def averaged(
    options: StructureOptions, best: ChosenStructure, known: ObservedSeries
) -> WeightedStructures:
    """Return fits of all trends whose log evidences are close.

    They are more than one with ``trend="average"`` only, and for series that are not too long.

    Parameters
    ----------
    options : GPForecaster
    best : ChosenStructure
        The structure that was chosen; only its trend differs from that of the others.
    known : ObservedSeries
    """
    if options.trend != "average" or best.structure.empty or known.y.size >= MANY:
        return alone(best, known)
    members = [best]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        others = [
            fitted(replace(best.structure, trend=trend), known)
            for trend in _TRENDS
            if trend != best.structure.trend
        ]
        least = max(preferred(fit, known) for fit in [best, *others]) - _CLOSE
        for fit in others:
            if fit.model.converged_ and preferred(fit, known) > least:
                members.append(fitted(fit.structure, known, options.integrate))
    weights = softmax([preferred(fit, known) for fit in members])
    order = np.argsort(-weights, kind="stable")
    timetable = timetable_of(best.structure, known)
    return WeightedStructures(tuple(members[k] for k in order), weights[order], timetable)


def alone(best: ChosenStructure, known: ObservedSeries) -> WeightedStructures:
    """Return a single structure, with all the weight."""
    return WeightedStructures((best,), np.ones(1), timetable_of(best.structure, known))
