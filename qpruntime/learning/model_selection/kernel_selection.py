"""The kernel of a process: candidates climbed on few rows, judged by rows held out, climbed on.

Length-scales of single features, rough functions and ranks of features raise the evidence more
often than they predict better. So the evidence only climbs, and rows held out choose: a further
freedom is taken where it raises their log density by more than the standard error of the gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpruntime._typing import Array
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.model_selection.budget import Stage, Subsets, better, dense_evaluation
from qpruntime.learning.model_selection.candidates import (
    ON,
    ROOM,
    SHARE,
    SURE,
    Candidate,
    Climbed,
    Shape,
    Trial,
    alike,
    lengths,
    staged,
)

__all__ = ["Chosen", "choose"]

# Relative tolerance and iterations of first climbs.
_BEGIN = (1e-4, 30)
# The best of the other features is looked at within this share of the budget.
_HALF = 0.5
# Evaluations that the first climb of a shape usually takes.
_USUAL = 25
# And one that goes on.
_FEW = 6


@dataclass(frozen=True, eq=False)
class Chosen:
    """What stages have chosen for processes that share their rows.

    Attributes
    ----------
    shape : Shape
    processes : tuple of tuple of Candidate
        Of each process the one chosen, and others that all rows might prefer.
    rows : int
        That kernels were learnt from.
    """

    shape: Shape
    processes: tuple[tuple[Candidate, ...], ...]
    rows: int


def choose(
    trials: dict[Shape, Sequence[Trial]],
    starts: dict[Shape, Start],
    subsets: Subsets,
    stages: list[Stage],
    others: bool,
) -> Chosen:
    """Choose the kernels of processes that share their rows.

    Parameters
    ----------
    trials : dict
        Of every shape the trials of all processes, the inputs of which it has changed.
    starts : dict
        Where a shape begins. The first one is the default.
    subsets : Subsets
    stages : list of Stage
        Appended to.
    others : bool
        Whether all rows judge again: kernels of another roughness are kept that few rows do not
        tell from the best. If not, another shape than the default takes judges that are surer,
        by two standard errors for one.
    """
    shapes, count = list(starts), len(trials[next(iter(starts))])
    budget = trials[shapes[0]][0].budget
    first, rungs = subsets.rungs[0], [r for r in subsets.rungs if r <= subsets.judged.start]
    usual = _USUAL * count * dense_evaluation(first)
    if not (subsets.judging and budget.allows(len(shapes) * usual, SHARE)):
        shapes = shapes[:1]
    found: dict[Shape, tuple[list[Climbed], Array]] = {}
    for shape in shapes:
        climbed = [t.climb(starts[shape], first, *_BEGIN) for t in trials[shape]]
        found[shape] = climbed, _judged(trials[shape], climbed, first, len(shapes) > 1)
        stages.append(staged(first, shape.words, found[shape][1], budget.taken))
    begun, kept = dict(found), _two_best(found)
    rows = rungs[0]
    for rung in rungs[1:]:
        if not budget.allows(len(kept) * count * _FEW * dense_evaluation(rung), ROOM):
            break
        rows = rung
        for shape in kept:
            climbed = _climbed_on(trials[shape], found[shape][0], rung)
            found[shape] = climbed, _judged(trials[shape], climbed, rung, subsets.judging)
            stages.append(staged(rung, shape.words, found[shape][1], budget.taken))
    shape = kept[0]
    # The best of three is also the luckiest, and few rows judge a fit that ends dense.
    errors = 1.0 if others else SURE
    if len(kept) > 1 and better(found[kept[1]][1] - found[shape][1], errors):
        shape = kept[1]
    judging = subsets.judging
    if not budget.allows(count * _USUAL * dense_evaluation(rows), ROOM):
        judging = False
    lists = [
        lengths(trial, c, shape, subsets, rows, stages) if judging else [Candidate(c, shape, False)]
        for trial, c in zip(trials[shape], found[shape][0], strict=True)
    ]
    room = budget.allows(count * _USUAL * dense_evaluation(rows), ROOM)
    rival = _rival(shape, begun) if others and room else None
    if rival is not None:
        if rival not in kept or rows == first:
            found[rival] = _climbed_on(trials[rival], begun[rival][0], rows), np.zeros(1)
        pairs = zip(trials[rival], found[rival][0], lists, strict=True)
        for trial, c, candidates in pairs:
            candidates.append(alike(trial, c, rival, candidates[0], rows))
        stages.append(Stage(rows, rival.words, math.nan, budget.taken))
    if others and count == 1 and budget.allows(_USUAL * dense_evaluation(rows), _HALF):
        other = _other_features(shape, begun)
        if other is not None and other not in kept and rows > first:
            climbed = _climbed_on(trials[other], begun[other][0], rows)
            found[other] = climbed, _judged(trials[other], climbed, rows, True)
            stages.append(staged(rows, other.words, found[other][1], budget.taken))
        if other is not None and not better(found[shape][1] - found[other][1], SURE):
            trial, (common,) = trials[other][0], found[other][0]
            lists[0].extend(lengths(trial, common, other, subsets, rows, stages))
    return Chosen(shape, tuple(tuple(one) for one in lists), rows)


def _climbed_on(trials: Sequence[Trial], climbed: Sequence[Climbed], rows: int) -> list[Climbed]:
    pairs = zip(trials, climbed, strict=True)
    return [trial.climb(one.start, rows, *ON, one.theta) for trial, one in pairs]


def _judged(trials: Sequence[Trial], climbed: Sequence[Climbed], rows: int, wanted: bool) -> Array:
    """Densities of the judges, of several processes their sums; zeros if none are wanted."""
    if not wanted:
        return np.zeros(1)
    pairs = zip(trials, climbed, strict=True)
    total: Array = np.sum([trial.densities(one, rows) for trial, one in pairs], axis=0)
    return total


def _two_best(found: dict[Shape, tuple[list[Climbed], Array]]) -> list[Shape]:
    """The default, and the best of all others unless judges are sure that it is worse."""
    default, *others = found
    if not others:
        return [default]
    best = max(others, key=lambda shape: float(np.mean(found[shape][1])))
    sure = better(found[default][1] - found[best][1], SURE)
    return [default] if sure else [default, best]


def _rival(shape: Shape, found: dict[Shape, tuple[list[Climbed], Array]]) -> Shape | None:
    """The other roughness of the same features, unless judges are sure that it is worse."""
    rivals = [other for other in found if other.ranks == shape.ranks and other != shape]
    if not rivals or better(found[shape][1] - found[rivals[0]][1], SURE):
        return None
    return rivals[0]


def _other_features(shape: Shape, begun: dict[Shape, tuple[list[Climbed], Array]]) -> Shape | None:
    """The best shape of ranks for one of features, or of features, unless judges are sure."""
    others = [other for other in begun if other.ranks != shape.ranks]
    if not others:
        return None
    best = max(others, key=lambda other: float(np.mean(begun[other][1])))
    return None if better(begun[shape][1] - begun[best][1], SURE) else best
