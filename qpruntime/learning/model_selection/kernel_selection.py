"""Kernel selection: candidates are optimised on few rows and scored on hold-out rows.

Length-scales of single features, rough functions and ranks of features raise the evidence more
often than they improve predictions. So the evidence only optimises, and hold-out rows select: a
more flexible kernel is used if it raises their log density by more than the standard error of the
gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpruntime._typing import Array
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.model_selection.budget import (
    Stage,
    Subsets,
    dense_evaluation_cost,
    gains_significantly,
)
from qpruntime.learning.model_selection.candidates import (
    CONFIDENT_ERRORS,
    CONTINUED_SEARCH,
    LAST_RUNG_END_SHARE,
    LAST_RUNG_START_SHARE,
    Candidate,
    FittedKernel,
    KernelShape,
    Trial,
    make_stage,
    rival_candidate,
    select_length_scales,
)

__all__ = ["KernelSelection", "select_kernel"]

# Relative tolerance and iterations of the first search.
_FIRST_SEARCH = (1e-4, 30)
# The best shape with the other features is tried if at most this share of the budget is used.
_OTHER_FEATURES_SHARE = 0.5
# Usual number of evaluations of the first search of a shape.
_FIRST_EVALUATIONS = 25
# Usual number of evaluations of a search that continues an earlier one.
_CONTINUED_EVALUATIONS = 6


@dataclass(frozen=True, eq=False)
class KernelSelection:
    """Kernels selected for processes that share their rows.

    Attributes
    ----------
    shape : Shape
    processes : tuple of tuple of Candidate
        The selected candidate of each process, then others that all rows might prefer.
    rows : int
        Number of rows that kernels were learnt from.
    """

    shape: KernelShape
    processes: tuple[tuple[Candidate, ...], ...]
    rows: int


def select_kernel(
    trials: dict[KernelShape, Sequence[Trial]],
    starts: dict[KernelShape, Start],
    subsets: Subsets,
    stages: list[Stage],
    others: bool,
) -> KernelSelection:
    """Select the kernels of processes that share their rows.

    Parameters
    ----------
    trials : dict
        Trials of all processes for each shape, with inputs transformed as the shape says.
    starts : dict
        Start of the search of each shape. The first shape is the default.
    subsets : Subsets
    stages : list of Stage
        Appended to.
    others : bool
        True if all rows compare the candidates once more: kernels of another smoothness are then
        kept if few rows cannot tell them from the best. If false, another shape than the default
        must gain two standard errors instead of one.
    """
    shapes, count = list(starts), len(trials[next(iter(starts))])
    budget, settings = trials[shapes[0]][0].budget, trials[shapes[0]][0].settings
    is_compared = settings.compare_kernels and subsets.has_holdout
    first, rungs = subsets.rungs[0], [r for r in subsets.rungs if r <= subsets.holdout.start]
    first_cost = _FIRST_EVALUATIONS * count * dense_evaluation_cost(first)
    if not (is_compared and budget.allows(len(shapes) * first_cost, LAST_RUNG_START_SHARE)):
        shapes = shapes[:1]
    results: dict[KernelShape, tuple[list[FittedKernel], Array]] = {}

    def keep(shape: KernelShape, fitted: list[FittedKernel], rung: int, judge: bool) -> None:
        results[shape] = fitted, _holdout_densities(trials[shape], fitted, rung, judge)
        stages.append(make_stage(rung, shape.label, results[shape][1], budget.used))

    for shape in shapes:
        fitted = [t.optimise(starts[shape], first, *_FIRST_SEARCH) for t in trials[shape]]
        keep(shape, fitted, first, len(shapes) > 1)
    first_results, kept = dict(results), _default_and_best(results)
    rows = rungs[0]
    for rung in rungs[1:]:
        cost = len(kept) * count * _CONTINUED_EVALUATIONS * dense_evaluation_cost(rung)
        if not budget.allows(cost, LAST_RUNG_END_SHARE):
            break
        rows = rung
        for shape in kept:
            fitted = _optimise_further(trials[shape], results[shape][0], rung)
            keep(shape, fitted, rung, subsets.has_holdout)
    shape = kept[0]
    # The best of several shapes is also the luckiest, and a dense fit has few hold-out rows.
    errors = 1.0 if others else CONFIDENT_ERRORS
    if len(kept) > 1 and gains_significantly(results[kept[1]][1] - results[shape][1], errors):
        shape = kept[1]
    cost = count * _FIRST_EVALUATIONS * dense_evaluation_cost(rows)
    has_holdout = budget.allows(cost, LAST_RUNG_END_SHARE) and is_compared
    lists = [
        select_length_scales(trial, c, shape, subsets, rows, stages)
        if has_holdout
        else [Candidate(c, shape, False)]
        for trial, c in zip(trials[shape], results[shape][0], strict=True)
    ]
    has_budget = budget.allows(cost, LAST_RUNG_END_SHARE)
    rival = _other_roughness(shape, first_results) if others and has_budget else None
    if rival is not None:
        if rival not in kept or rows == first:
            further = _optimise_further(trials[rival], first_results[rival][0], rows)
            results[rival] = further, np.zeros(1)
        for trial, c, candidates in zip(trials[rival], results[rival][0], lists, strict=True):
            candidates.append(rival_candidate(trial, c, rival, candidates[0], rows))
        stages.append(Stage(rows, rival.label, math.nan, budget.used))
    if others and count == 1 and budget.allows(cost, _OTHER_FEATURES_SHARE):
        alternative = _best_other_features(shape, first_results)
        if alternative is not None and alternative not in kept and rows > first:
            fitted = _optimise_further(trials[alternative], first_results[alternative][0], rows)
            keep(alternative, fitted, rows, True)
        if alternative is not None and not gains_significantly(
            results[shape][1] - results[alternative][1], CONFIDENT_ERRORS
        ):
            trial, (common,) = trials[alternative][0], results[alternative][0]
            lists[0].extend(select_length_scales(trial, common, alternative, subsets, rows, stages))
    return KernelSelection(shape, tuple(map(tuple, lists)), rows)


def _optimise_further(
    trials: Sequence[Trial], kernels: Sequence[FittedKernel], rows: int
) -> list[FittedKernel]:
    """Continue the search of each process with more rows."""
    pairs = zip(trials, kernels, strict=True)
    return [
        trial.optimise(fitted.start, rows, *CONTINUED_SEARCH, fitted.theta)
        for trial, fitted in pairs
    ]


def _holdout_densities(
    trials: Sequence[Trial], kernels: Sequence[FittedKernel], rows: int, is_needed: bool
) -> Array:
    """Return the hold-out densities, summed over processes; zeros if they are not needed."""
    if not is_needed:
        return np.zeros(1)
    pairs = zip(trials, kernels, strict=True)
    return np.asarray(np.sum([trial.densities(fitted, rows) for trial, fitted in pairs], axis=0))


def _default_and_best(
    results: dict[KernelShape, tuple[list[FittedKernel], Array]],
) -> list[KernelShape]:
    """Return the default shape, and the best other shape unless it is clearly worse."""
    default, *others = results
    if not others:
        return [default]
    best = max(others, key=lambda shape: float(np.mean(results[shape][1])))
    is_worse = gains_significantly(results[default][1] - results[best][1], CONFIDENT_ERRORS)
    return [default] if is_worse else [default, best]


def _other_roughness(
    shape: KernelShape, results: dict[KernelShape, tuple[list[FittedKernel], Array]]
) -> KernelShape | None:
    """Return the other smoothness of the same features unless it is clearly worse."""
    rivals = [
        alternative
        for alternative in results
        if alternative.ranks == shape.ranks and alternative != shape
    ]
    if not rivals or gains_significantly(
        results[shape][1] - results[rivals[0]][1], CONFIDENT_ERRORS
    ):
        return None
    return rivals[0]


def _best_other_features(
    shape: KernelShape, results: dict[KernelShape, tuple[list[FittedKernel], Array]]
) -> KernelShape | None:
    """Return the best shape with ranks for features, or vice versa, unless clearly worse."""
    alternatives = [alternative for alternative in results if alternative.ranks != shape.ranks]
    if not alternatives:
        return None
    best = max(alternatives, key=lambda alternative: float(np.mean(results[alternative][1])))
    return (
        None
        if gains_significantly(results[shape][1] - results[best][1], CONFIDENT_ERRORS)
        else best
    )
