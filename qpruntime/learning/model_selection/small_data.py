"""Model selection for few rows: rank transforms and feature screening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import rankdata

from qpruntime._typing import Array
from qpruntime.execution.blas_threads import blas_threads
from qpruntime.inference.sparse.data import is_lazy, mapped
from qpruntime.kernels.scaling import Units
from qpruntime.learning.default_kernel import default_start
from qpruntime.learning.inducing_points import SAMPLE, rows_at, sample
from qpruntime.learning.model_selection.budget import Budget, Stage, better
from qpruntime.learning.model_selection.candidates import SURE, Trial, some_of
from qpruntime.learning.rank_transform import Warp
from qpruntime.learning.settings import Data, Settings

__all__ = [
    "Looked",
    "View",
    "look",
    "screened",
]

# --- Rank transforms
#
# All of them are fitted as ever. The common length-scale of all features is compared, for it has
# too few parameters to learn rows by heart.

# Where every feature is as straight in its ranks, by their correlation, ranks change little.
_STRAIGHT = 0.9
# Of many classes so many say.
_RANKED_CLASSES = 3
# Rows whose sites may be negative settle one after the other.
_RANKED_ROWS = 500


@dataclass(frozen=True, eq=False)
class Looked:
    """Features as they are or as ranks, and where the fits of the first processes may begin."""

    warp: Warp | None
    thetas: tuple[Array, ...]
    stages: tuple[Stage, ...]


def look(processes: Sequence[Data], settings: Settings, latent_scale: float) -> Looked | None:
    """Take ranks of features where rows left out are sure that they predict better.

    Of fits that `qpruntime.learning.model_selection.budget.acts_on_few` names, with X in memory.
    None, and nothing is computed, where features are nearly straight in their ranks.
    """
    first = processes[0]
    rng = np.random.default_rng(0)
    warped = View.of(first.X, first.weights, rng, True, first.levels)
    if not _bent(first.X, warped.features):
        return None
    n, budget = len(first.y), Budget(None, len(first.y))
    concave = first.projector.likelihood.log_concave
    rows = np.arange(n) if concave else np.sort(rng.permutation(n)[:_RANKED_ROWS])
    seen, stages, thetas = [], [], []
    for view in (View.of(first.X, first.weights, rng, False, first.levels), warped):
        start = default_start(view.units, latent_scale)
        each, ends = [], []
        for data in processes[:_RANKED_CLASSES]:
            own = some_of(data, view.scaled[rows], rows)
            trial = Trial(own, settings, budget, slice(0, 0))
            with blas_threads(rows.size):
                climbed = trial.climb(start, rows.size, *_CLIMB)
                each.append(trial.left_out(climbed, rows.size))
            ends.append(climbed.theta)
        left: Array = np.sum(each, axis=0)
        words = "ranks of features" if view is warped else "features"
        stages.append(Stage(rows.size, words, float(left.mean()), budget.taken))
        seen.append(left)
        thetas.append(tuple(ends))
    sure = better(seen[1] - seen[0], SURE)
    return Looked(warped.warp if sure else None, thetas[sure], tuple(stages))


def _bent(X: Array, shares: Array) -> bool:
    """Whether any feature is far from straight in its ranks."""
    x, r = X - X.mean(axis=0), shares - shares.mean(axis=0)
    with np.errstate(all="ignore"):
        scale = np.abs(x).max(axis=0)
        x = x / np.where(scale > 0.0, scale, 1.0)
        norms = np.sqrt((x * x).sum(axis=0) * (r * r).sum(axis=0))
        straight = (x * r).sum(axis=0) > _STRAIGHT * norms
    return not bool((straight | (norms == 0.0)).all())


# --- Scaled inputs


@dataclass(frozen=True, eq=False)
class View:
    """Inputs (N, d), perhaps read in parts, what they go through, and their units."""

    X: Any
    warp: Warp | None
    units: Units

    @classmethod
    def of(
        cls,
        X: Any,
        weights: Array | None,
        rng: np.random.Generator,
        ranks: bool,
        levels: Sequence[int] = (),
    ) -> View:
        """Measure the rows of X, some of whose columns are levels; of many rows a sample."""
        n = int(X.shape[0])
        if n <= SAMPLE and not is_lazy(X):
            points, mass = X, weights
        else:
            some = sample(n, SAMPLE, rng)
            points, mass = rows_at(X, some), None if weights is None else weights[some]
        if not ranks:
            return cls(X, None, Units.of(points, mass, levels))
        warp = Warp.of(points, mass, levels)
        return cls(X, warp, Units.of(warp(points), mass, levels))

    @cached_property
    def features(self) -> Any:
        """What the kernel of users is a function of."""
        return mapped(self.X, self.warp, int(self.X.shape[1])) if self.warp else self.X

    @cached_property
    def scaled(self) -> Any:
        """The same in units of the kernel that is learnt."""
        return mapped(self.features, self.units.scaled, self.units.width)

    def rows(self, points: Array) -> Array:
        """Points (n, d) like those of X, scaled."""
        return self.units.scaled(self.warp(points) if self.warp else points)


# --- Feature selection
#
# Any k of d features could have been chosen, with equal probability: that costs the log of how many
# such choices there are (Occam's price), so that noise is chosen no more often than by chance.

# Features are many where there are more than so many for a row.
_MANY = 0.5
# So many of them are tried, those first that vary most with what is observed.
_SIZES = (1, 2, 3, 5, 8, 13, 20)
# What the log evidence must rise by beyond the price.
_BEYOND_CHANCE = 10.0
# Relative tolerance and iterations.
_CLIMB = (1e-3, 20)
# Of many classes so many say; and so many rows, where sites may be negative.
_SCREENED_CLASSES, _SCREENED_ROWS = 3, 500


def log_choices(d: int, k: int) -> float:
    """Return the log of the number of ways to choose k of d features."""
    return float(gammaln(d + 1) - gammaln(k + 1) - gammaln(d - k + 1))


def screened(
    processes: Sequence[Data], X: Any, units: Units, settings: Settings, latent_scale: float
) -> tuple[Units, tuple[Stage, ...]] | None:
    """Return units that ignore all but a few features of X, if the evidence is for them.

    Of fits that `qpruntime.learning.model_selection.budget.acts_on_few` names, with X in memory.
    None, and nothing is computed, where features are not many, or some of them are levels.
    """
    first = processes[0]
    n, d = len(first.y), units.count
    if units.levels or d <= max(_MANY * n, 2.0):
        return None
    slow = not first.projector.likelihood.log_concave
    rows = np.random.default_rng(0).permutation(n)[: _SCREENED_ROWS if slow else n]
    budget, stages = Budget(None, n), []
    order = _by_dependence(processes, X, units)

    def score(kept: Units, words: str, price: float) -> float:
        start, total = default_start(kept, latent_scale), -price
        for data in processes[:_SCREENED_CLASSES]:
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
        found = score(kept, f"{k} of {d} features, at their price", log_choices(d, k))
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
