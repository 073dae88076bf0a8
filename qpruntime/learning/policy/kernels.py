"""The kernel of a process: candidates climbed on few rows, judged by rows held out, climbed on.

Length-scales of single features, rough functions and ranks of features raise the evidence more
often than they predict better. So the evidence only climbs, and rows held out choose: a further
freedom is taken where it raises their log density by more than the standard error of the gain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qpruntime.arrays import Array
from qpruntime.learning.default_kernel import LogNormal, Start
from qpruntime.learning.policy.operations import dense_evaluation
from qpruntime.learning.policy.subsets import Subsets
from qpruntime.learning.policy.trial import Climbed, Trial

__all__ = ["Chosen", "Shape", "Stage", "better", "choose"]

# Relative tolerances and iterations: at first, on the next rung, and on the last.
_BEGIN, _ON = (1e-4, 30), (1e-3, 10)
_FIRST_LENGTHS, _FREE, _LAST = (1e-3, 15), (1e-3, 10), (1e-3, 5)
# Log length-scales of single features are normal about the common one, of this deviation.
_SHRINK = 1.0
# With more features single length-scales are learnt on the first rung alone.
_WIDE = 200
# The last rung begins within this share of the budget.
_SHARE = 0.4
# Evaluations that the first climb of a shape usually takes.
_USUAL = 25


@dataclass(frozen=True)
class Shape:
    """What a common length-scale is tried with: ranks of features, and a kernel's roughness."""

    ranks: bool
    nu: float

    @property
    def words(self) -> str:
        """For users."""
        return f"{'ranks of features, ' if self.ranks else ''}{_kernel_words(self.nu)}"


def _kernel_words(nu: float) -> str:
    return "squared exponential" if math.isinf(nu) else f"Matérn {nu:g}"


@dataclass(frozen=True)
class Stage:
    """A step of a fit.

    Attributes
    ----------
    rows : int
        That it learnt from, or that were settled.
    candidate : str
    density : float
        Mean log predictive density of the rows that judged, NaN if none did.
    operations : float
        That the fit had taken after it.
    """

    rows: int
    candidate: str
    density: float
    operations: float


@dataclass(frozen=True, eq=False)
class Chosen:
    """What the stages have chosen: a shape, and for each process where its kernel has come to.

    `by_feature` says which of the processes have a length-scale for each feature.
    """

    shape: Shape
    climbed: tuple[Climbed, ...]
    by_feature: tuple[bool, ...]
    rows: int


def better(gain: Array) -> bool:
    """Whether judges gain more than the standard error of their mean gain."""
    if not np.isfinite(gain).all():
        return False
    error = float(np.std(gain)) / math.sqrt(gain.size)
    return float(np.mean(gain)) > error


def choose(
    trials: dict[Shape, Sequence[Trial]],
    starts: dict[Shape, Start],
    subsets: Subsets,
    stages: list[Stage],
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
    """
    shapes = list(starts)
    budget = trials[shapes[0]][0].budget
    first, rungs = subsets.rungs[0], [r for r in subsets.rungs if r <= subsets.judged.start]
    usual = _USUAL * len(trials[shapes[0]]) * dense_evaluation(first)
    if not (subsets.judging and budget.allows(len(shapes) * usual, _SHARE)):
        shapes = shapes[:1]
    found: dict[Shape, tuple[list[Climbed], Array]] = {}
    for shape in shapes:
        climbed = [t.climb(starts[shape], first, *_BEGIN) for t in trials[shape]]
        found[shape] = climbed, _judged(trials[shape], climbed, first, len(shapes) > 1)
        stages.append(_stage(first, shape.words, found[shape][1], budget.taken))
    kept = _two_best(found)
    for rows in rungs[1:]:
        for shape in kept:
            climbed = [
                trial.climb(c.start, rows, *_ON, c.theta)
                for trial, c in zip(trials[shape], found[shape][0], strict=True)
            ]
            found[shape] = climbed, _judged(trials[shape], climbed, rows, subsets.judging)
            stages.append(_stage(rows, shape.words, found[shape][1], budget.taken))
    shape = kept[0]
    if len(kept) > 1 and better(found[kept[1]][1] - found[shape][1]):
        shape = kept[1]
    rows = rungs[-1]
    ended = [
        _lengths(trial, c, subsets, rows, stages)
        for trial, c in zip(trials[shape], found[shape][0], strict=True)
    ]
    for rung in subsets.rungs[len(rungs) :]:
        cost = len(ended) * _LAST[1] * dense_evaluation(rung)
        if not budget.allows(cost, _SHARE):
            break
        rows = rung
        ended = [
            (trial.climb(c.start, rows, *_LAST, c.theta), single)
            for trial, (c, single) in zip(trials[shape], ended, strict=True)
        ]
        stages.append(Stage(rows, shape.words, math.nan, budget.taken))
    return Chosen(shape, tuple(c for c, _ in ended), tuple(s for _, s in ended), rows)


def _judged(trials: Sequence[Trial], climbed: Sequence[Climbed], rows: int, wanted: bool) -> Array:
    """Densities of the judges, of several processes their sums; zeros if none are wanted."""
    if not wanted:
        return np.zeros(1)
    pairs = zip(trials, climbed, strict=True)
    total: Array = np.sum([trial.densities(one, rows) for trial, one in pairs], axis=0)
    return total


def _stage(rows: int, words: str, densities: Array, taken: float) -> Stage:
    known = densities.size > 1
    return Stage(rows, words, float(np.mean(densities)) if known else math.nan, taken)


def _two_best(found: dict[Shape, tuple[list[Climbed], Array]]) -> list[Shape]:
    """The default, and the best of those that judges prefer to it; the best one first if sure."""
    default, *others = found
    ahead = [s for s in others if better(found[s][1] - found[default][1])]
    if not ahead:
        return [default]
    return [default, max(ahead, key=lambda shape: float(np.mean(found[shape][1])))]


def _lengths(
    trial: Trial, common: Climbed, subsets: Subsets, rows: int, stages: list[Stage]
) -> tuple[Climbed, bool]:
    """Give each feature a length-scale of its own if judges gain by it."""
    count = common.start.by_feature
    if not (count and subsets.judging):
        return common, False
    first = subsets.rungs[0]
    refined = common.start.refined(common.theta)
    shrunk = trial.climb(_shrunk(refined, common.theta), first, *_FIRST_LENGTHS)
    if count <= _WIDE and rows > first:
        shrunk = trial.climb(shrunk.start, rows, *_ON, shrunk.theta)
    else:
        rows = first
    before, after = trial.densities(common, rows), trial.densities(shrunk, rows)
    stages.append(_stage(rows, "one length-scale a feature", after, trial.budget.taken))
    if not better(after - before):
        return common, False
    if count > _WIDE:
        return shrunk, True
    free = trial.climb(refined, rows, *_FREE, shrunk.theta)
    last = trial.densities(free, rows)
    stages.append(_stage(rows, "the same without their prior", last, trial.budget.taken))
    return (free if float(np.mean(last - after)) > 0.0 else shrunk), True


def _shrunk(refined: Start, theta: Array) -> Start:
    """Add the prior of single length-scales, about the common one."""
    count = refined.kernel.n_dims - 2
    mean, deviation = np.full(count, theta[2]), np.full(count, _SHRINK)
    if refined.log_prior is None:
        return refined
    prior = LogNormal(
        np.concatenate([refined.log_prior.mean, mean]),
        np.concatenate([refined.log_prior.deviation, deviation]),
    )
    return replace(refined, log_prior=prior)
