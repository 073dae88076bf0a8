"""Model selection for few rows: rank transforms and feature screening."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import rankdata

from qpruntime._typing import Array
from qpruntime.execution.threads import blas_threads
from qpruntime.learning.initialisation import default_start
from qpruntime.learning.inputs import Data, InputView
from qpruntime.learning.model_selection.budget import Budget, Stage, gains_significantly
from qpruntime.learning.model_selection.candidates import CONFIDENT_ERRORS, Trial, subset_data
from qpruntime.learning.options import Settings
from qpruntime.learning.scaling import Units

__all__ = ["RankScreening", "screen_features", "screen_ranks"]

# --- Rank transforms
#
# Every row takes part in the final fit as usual. The comparison uses a single shared length-scale,
# which has too few parameters to overfit.

# If every feature correlates this much with its ranks, ranks change little and are not tried.
_MIN_RANK_CORRELATION = 0.9
# Largest number of classes that are compared.
_MAX_RANKED_CLASSES = 3
# Sites that may be negative are updated one by one, so the comparison uses this many rows.
_MAX_RANKED_ROWS = 500


@dataclass(frozen=True, eq=False)
class RankScreening:
    """Decision between features and their ranks, and starts of the first processes' searches."""

    view: InputView
    thetas: tuple[Array, ...]
    stages: tuple[Stage, ...]


def screen_ranks(
    processes: Sequence[Data], settings: Settings, latent_scale: float
) -> RankScreening | None:
    """Use ranks of the features if leave-one-out densities clearly gain by them.

    `qpruntime.learning.model_selection.budget.rank_screening_applies` says which fits this is for;
    X is in memory. If features are nearly linear in their ranks, return None without any
    computation.
    """
    first = processes[0]
    rng = np.random.default_rng(0)
    plain, ranks = (
        InputView.fitted(first.inputs, first.weights, rng, by_rank, deviations=settings.linear)
        for by_rank in (False, True)
    )
    if not _is_nonlinear_in_ranks(first.X, ranks.features.X):
        return None
    n, budget = len(first.y), Budget(None, len(first.y))
    concave = first.projector.likelihood.log_concave
    rows = np.arange(n) if concave else np.sort(rng.permutation(n)[:_MAX_RANKED_ROWS])
    densities_by_view, stages, thetas = [], [], []
    for view in (plain, ranks):
        start = default_start(view.units, latent_scale, linear=settings.linear)
        class_densities, class_thetas = [], []
        for data in processes[:_MAX_RANKED_CLASSES]:
            class_data = subset_data(data, view.scaled.X[rows], rows)
            trial = Trial(class_data, settings, budget, slice(0, 0))
            with blas_threads(rows.size):
                climbed = trial.optimise(start, rows.size, *_SEARCH)
                class_densities.append(trial.left_out(climbed, rows.size))
            class_thetas.append(climbed.theta)
        log_densities: Array = np.sum(class_densities, axis=0)
        label = "ranks of features" if view is ranks else "features"
        stages.append(Stage(rows.size, label, float(log_densities.mean()), budget.used))
        densities_by_view.append(log_densities)
        thetas.append(tuple(class_thetas))
    prefers_ranks = gains_significantly(
        densities_by_view[1] - densities_by_view[0], CONFIDENT_ERRORS
    )
    view = ranks if prefers_ranks else plain
    return RankScreening(view, thetas[prefers_ranks], tuple(stages))


def _is_nonlinear_in_ranks(X: Array, ranks: Array) -> bool:
    """Decide whether any feature is far from linear in its ranks."""
    x, r = X - X.mean(axis=0), ranks - ranks.mean(axis=0)
    with np.errstate(all="ignore"):
        scale = np.abs(x).max(axis=0)
        x = x / np.where(scale > 0.0, scale, 1.0)
        norms = np.sqrt((x * x).sum(axis=0) * (r * r).sum(axis=0))
        straight = (x * r).sum(axis=0) > _MIN_RANK_CORRELATION * norms
    return not bool((straight | (norms == 0.0)).all())


# --- Feature selection
#
# Any k of d features could have been selected with equal probability. The log evidence pays for
# that by the log number of such subsets (Occam's factor), so that noise is selected no more often
# than by chance.

# Features are screened if there are more than this many per row.
_MIN_FEATURES_PER_ROW = 0.5
# Numbers of features that are tried, in the order of their dependence on the response.
_SUBSET_SIZES = (1, 2, 3, 5, 8, 13, 20)
# The log evidence of a subset must exceed that of all features by this much beyond its price.
_MIN_EVIDENCE_GAIN = 10.0
# Relative tolerance and iterations of the search.
_SEARCH = (1e-3, 20)
# Number of classes and of rows that are compared; rows are limited if sites may be negative.
_MAX_SCREENED_CLASSES, _MAX_SCREENED_ROWS = 3, 500


def log_choices(d: int, k: int) -> float:
    """Return the log of the number of ways to choose k of d features."""
    return float(gammaln(d + 1) - gammaln(k + 1) - gammaln(d - k + 1))


def screen_features(
    processes: Sequence[Data], view: InputView, settings: Settings, latent_scale: float
) -> tuple[InputView, tuple[Stage, ...]] | None:
    """Return a view that ignores all but a few features if the evidence prefers that.

    `qpruntime.learning.model_selection.budget.rank_screening_applies` says which fits this is for;
    X is in memory. If there are few features, or some are categorical, return None without any
    computation.
    """
    first, units = processes[0], view.units
    n, d = len(first.y), units.count
    if units.levels or d <= max(_MIN_FEATURES_PER_ROW * n, 2.0):
        return None
    slow = not first.projector.likelihood.log_concave
    rows = np.random.default_rng(0).permutation(n)[: _MAX_SCREENED_ROWS if slow else n]
    budget, stages = Budget(None, n), []
    X = view.features.X
    order = _by_dependence(processes, X, units)

    def score(units_kept: Units, label: str, price: float) -> float:
        """Return the log evidence of these features less their price."""
        start, total = default_start(units_kept, latent_scale), -price
        for data in processes[:_MAX_SCREENED_CLASSES]:
            class_data = subset_data(data, units_kept.scaled(X)[rows], rows)
            with blas_threads(rows.size):
                trial = Trial(class_data, settings, budget, slice(0, 0))
                total += trial.optimise(start, rows.size, *_SEARCH).optimum.value
        label = f"{label}, log evidence {total:.2f}"
        stages.append(Stage(rows.size, label, math.nan, budget.used))
        return total

    best_evidence, selected = score(units, f"{d} features", 0.0) + _MIN_EVIDENCE_GAIN, None
    for k in _SUBSET_SIZES:
        if k >= d:
            break
        spread = np.zeros_like(units.spread)
        spread[order[:k]] = units.spread[order[:k]]
        units_kept = replace(units, spread=spread)
        evidence = score(units_kept, f"{k} of {d} features, at their price", log_choices(d, k))
        if evidence > best_evidence:
            best_evidence, selected = evidence, units_kept
    return None if selected is None else (replace(view, units=selected), tuple(stages))


def _by_dependence(processes: Sequence[Data], X: Array, units: Units) -> NDArray[np.intp]:
    """Return features ordered by their correlation, or that of their size, with the response.

    Ignored features come last.
    """
    kept = np.flatnonzero(units.spread > 0.0)
    Z = (X[:, kept] - units.centre[kept]) / units.spread[kept]
    correlations = np.zeros(kept.size)
    for data in processes:
        y = data.y if data.scale is None else data.y / data.scale
        target = rankdata(y)
        weights = np.ones(len(y)) if data.weights is None else data.weights
        for columns in (Z, np.abs(Z)):
            correlations = np.maximum(correlations, _correlation(columns, target, weights))
    return kept[np.argsort(-correlations, kind="stable")]


def _correlation(columns: Array, y: Array, weights: Array) -> Array:
    """Return absolute weighted correlations of columns (N, d) with y."""
    share = weights / weights.sum()
    a, b = columns - share @ columns, y - share @ y
    with np.errstate(all="ignore"):
        covariance: Array = np.abs((share * b) @ a) / np.sqrt((share @ (a * a)) * (share @ (b * b)))
    return np.nan_to_num(covariance)
