"""Many features for few rows: some of them alone, where the evidence pays for choosing these.

Any k of d features could have been chosen, with equal probability: that costs the log of how many
such choices there are (Occam's price), so that noise is chosen no more often than by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import rankdata

from qpruntime.arrays import Array
from qpruntime.execution.blas_threads import blas_threads
from qpruntime.kernels.units import Units
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import default_start
from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.operations import Budget
from qpruntime.learning.policy.trial import Trial, some_of
from qpruntime.learning.settings import Settings

__all__ = ["screened"]

# Features are many where there are more than so many for a row.
_MANY = 0.5
# So many of them are tried, those first that vary most with what is observed.
_SIZES = (1, 2, 3, 5, 8, 13, 20)
# What the log evidence must rise by beyond the price.
_BEYOND_CHANCE = 10.0
# Relative tolerance and iterations.
_CLIMB = (1e-3, 20)
# Of many classes so many say; and so many rows, where sites may be negative.
_CLASSES, _SLOW = 3, 500


def screened(
    processes: Sequence[Data], X: Any, units: Units, settings: Settings, latent_scale: float
) -> tuple[Units, tuple[Stage, ...]] | None:
    """Return units that ignore all but a few features of X, if the evidence is for them.

    Of fits that `qpruntime.learning.policy.acts.acts_on_few` names, with X in memory. None, and
    nothing is computed, where features are not many, or some of them are levels.
    """
    first = processes[0]
    n, d = len(first.y), units.count
    if units.levels or d <= max(_MANY * n, 2.0):
        return None
    slow = not first.projector.likelihood.log_concave
    rows = np.random.default_rng(0).permutation(n)[: _SLOW if slow else n]
    budget, stages = Budget(None, n), []
    order = _by_dependence(processes, X, units)

    def score(kept: Units, words: str, price: float) -> float:
        start, total = default_start(kept, latent_scale), -price
        for data in processes[:_CLASSES]:
            own = some_of(data, kept.scaled(X)[rows], rows)
            with blas_threads(rows.size):
                trial = Trial(own, settings, budget, slice(0, 0))
                total += trial.climb(start, rows.size, *_CLIMB).optimum.value
        words = f"{words}, log evidence {total:.2f}"
        stages.append(Stage(rows.size, words, math.nan, budget.taken))
        return total

    best, chosen = score(units, f"{d} features", 0.0) + _BEYOND_CHANCE, None
    for k in _SIZES:
        if k >= d:
            break
        spread = np.zeros_like(units.spread)
        spread[order[:k]] = units.spread[order[:k]]
        kept = replace(units, spread=spread)
        price = float(gammaln(d + 1) - gammaln(k + 1) - gammaln(d - k + 1))
        found = score(kept, f"{k} of {d} features, at their price", price)
        if found > best:
            best, chosen = found, kept
    return None if chosen is None else (chosen, tuple(stages))


def _by_dependence(processes: Sequence[Data], X: Array, units: Units) -> NDArray[np.intp]:
    """Features in the order of their correlation with what is observed, or that of their size.

    Ignored ones are last.
    """
    kept = np.flatnonzero(units.spread > 0.0)
    Z = (X[:, kept] - units.centre[kept]) / units.spread[kept]
    seen = np.zeros(kept.size)
    for data in processes:
        y = data.y if data.scale is None else data.y / data.scale
        target = rankdata(y)
        mass = np.ones(len(y)) if data.weights is None else data.weights
        for columns in (Z, np.abs(Z)):
            seen = np.maximum(seen, _correlation(columns, target, mass))
    return kept[np.argsort(-seen, kind="stable")]


def _correlation(columns: Array, y: Array, mass: Array) -> Array:
    """Absolute correlations of columns (N, d) with y, rows weighted."""
    share = mass / mass.sum()
    a, b = columns - share @ columns, y - share @ y
    with np.errstate(all="ignore"):
        found: Array = np.abs((share * b) @ a) / np.sqrt((share @ (a * a)) * (share @ (b * b)))
    return np.nan_to_num(found)
