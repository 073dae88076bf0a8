"""Timetables: counts that have repeated exactly, and forecasts that they go on to do so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.forecasting.predictive import Ahead
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.trial import ObservedSeries
from qpruntime.predictive.mixtures import Mixture

__all__ = ["Timetable", "timetable_of", "weight_after"]

# Periods that a series must span before a repetition is more than a coincidence.
_REPEATED = 3.0
# Standard deviation of a number whose rounding is certain: half a unit is ten of it.
_CERTAIN = 0.05
# Probability that a normal number with the variance of rounding, 1/12, is rounded away from its
# mean: about what a model's forecasts of a timetable have.
_MISSED = float(2.0 * ndtr(-0.5 * 12.0**0.5))


@restorable("timetable/1")
@dataclass(frozen=True, eq=False)
class Timetable:
    """Counts of each step of a period, all of which were observed.

    Attributes
    ----------
    counts : ndarray, shape (period,)
    weight : float
        Weight of the fitted model beside the timetable, the posterior mean under a uniform prior.
    """

    counts: Array
    weight: float

    def mixed(self, ahead: Ahead, wall: Array) -> Ahead:
        """Return the mixture of the timetable and the model's distributions at these steps."""
        scale, likelihood = ahead.scale, ahead.likelihoods[0]
        counts = self.counts[np.mod(wall, self.counts.size).astype(np.intp)]
        planned = Mixture(scale.into(counts)[None], np.zeros((1, counts.size)), np.ones(1))
        certain = likelihood.with_parameters(scale=_CERTAIN / scale.unit)
        weights = np.array([1.0 - self.weight, self.weight])
        return Ahead.mixed([Ahead(planned, [certain], scale), ahead], weights)


def timetable_of(structure: Structure, known: ObservedSeries) -> Timetable | None:
    """Return the timetable of rounded numbers that repeat exactly, or None if they do not.

    Its period is the shortest of one step and the structure's seasons in which all counts repeat.
    """
    wall = structure.wall_steps(known.steps)
    if not structure.scale.rounded or (wall != np.round(wall)).any():
        return None
    span = float(known.steps[-1] - known.steps[0]) + 1.0
    for period in (1.0, *structure.seasons):
        if period != round(period) or span < _REPEATED * period:
            continue
        phase = np.mod(wall, period).astype(np.intp)
        counts = np.full(int(period), np.nan)
        counts[phase] = known.y
        if np.array_equal(counts[phase], known.y) and not np.isnan(counts).any():
            return Timetable(counts, weight_after(known.y.size - counts.size))
    return None


def weight_after(repetitions: int) -> float:
    """Return the posterior mean of the model's weight w after repetitions without a miss.

    Each has probability 1 - p w, where p is the probability that the model misses. The product p w
    is 1/(k + 2) for many repetitions k, as by Laplace's rule of succession.
    """
    hit, k = 1.0 - _MISSED, repetitions
    repeated = (k + 1.0) / (k + 2.0) * (1.0 - hit ** (k + 2)) / (1.0 - hit ** (k + 1))
    return (1.0 - repeated) / _MISSED
