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
from qpruntime.learning.policy.judged import Stage, better
from qpruntime.learning.policy.operations import dense_evaluation
from qpruntime.learning.policy.subsets import Subsets
from qpruntime.learning.policy.trial import Climbed, Trial

__all__ = ["WIDE", "Candidate", "Chosen", "Shape", "by_feature", "choose", "last_rung"]

# Relative tolerances and iterations: at first, on the next rung, and on the last.
_BEGIN, _ON = (1e-4, 30), (1e-3, 10)
_FIRST_LENGTHS, _FREE, _LAST = (1e-3, 15), (1e-3, 10), (1e-3, 5)
# Log length-scales of single features are normal about the common one, of this deviation.
_SHRINK = 1.0
#: With more features single length-scales are learnt on the first rung alone.
WIDE = 200
# The last rung begins within this share of the budget, and leaves as much as the second says.
_SHARE, _ROOM = 0.4, 0.75
# Judges are sure of a loss of so many standard errors.
_SURE = 2.0
# Evaluations that the first climb of a shape usually takes.
_USUAL = 25
# And one that goes on.
_FEW = 6


@dataclass(frozen=True)
class Shape:
    """What a common length-scale is tried with: ranks of features, and a kernel's roughness."""

    ranks: bool
    nu: float

    @property
    def words(self) -> str:
        """For users."""
        return f"{'ranks of features, ' if self.ranks else ''}Matérn {self.nu:g}"


@dataclass(frozen=True)
class Candidate:
    """A kernel of a process that has been climbed, and whether by single features.

    Attributes
    ----------
    climbed : Climbed
    shape : Shape
    by_feature : bool
    common : Climbed or None
        With one length-scale for all features, unless judges are sure that more lose.
    """

    climbed: Climbed
    shape: Shape
    by_feature: bool
    common: Climbed | None = None

    @property
    def words(self) -> str:
        """For users."""
        return by_feature(self.shape) if self.by_feature else self.shape.words


def by_feature(shape: Shape) -> str:
    """A shape with one length-scale a feature, in words."""
    return f"{shape.words}, one length-scale a feature"


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
    if not (subsets.judging and budget.allows(len(shapes) * usual, _SHARE)):
        shapes = shapes[:1]
    found: dict[Shape, tuple[list[Climbed], Array]] = {}
    for shape in shapes:
        climbed = [t.climb(starts[shape], first, *_BEGIN) for t in trials[shape]]
        found[shape] = climbed, _judged(trials[shape], climbed, first, len(shapes) > 1)
        stages.append(_stage(first, shape.words, found[shape][1], budget.taken))
    begun, kept = dict(found), _two_best(found)
    rows = rungs[0]
    for rung in rungs[1:]:
        if not budget.allows(len(kept) * count * _FEW * dense_evaluation(rung), _ROOM):
            break
        rows = rung
        for shape in kept:
            climbed = _climbed_on(trials[shape], found[shape][0], rung)
            found[shape] = climbed, _judged(trials[shape], climbed, rung, subsets.judging)
            stages.append(_stage(rung, shape.words, found[shape][1], budget.taken))
    shape = kept[0]
    # The best of three is also the luckiest, and few rows judge a fit that ends dense.
    errors = 1.0 if others else _SURE
    if len(kept) > 1 and better(found[kept[1]][1] - found[shape][1], errors):
        shape = kept[1]
    judging = subsets.judging
    if not budget.allows(count * _USUAL * dense_evaluation(rows), _ROOM):
        judging = False
    lists = [
        [_lengths(trial, c, shape, subsets, rows, stages) if judging else _plain(c, shape)]
        for trial, c in zip(trials[shape], found[shape][0], strict=True)
    ]
    room = budget.allows(count * _USUAL * dense_evaluation(rows), _ROOM)
    rival = _rival(shape, begun) if others and room else None
    if rival is not None:
        if rival not in kept or rows == first:
            found[rival] = _climbed_on(trials[rival], begun[rival][0], rows), np.zeros(1)
        pairs = zip(trials[rival], found[rival][0], lists, strict=True)
        for trial, c, candidates in pairs:
            candidates.append(_alike(trial, c, rival, candidates[0], rows))
        stages.append(Stage(rows, rival.words, math.nan, budget.taken))
    return Chosen(shape, tuple(tuple(one) for one in lists), rows)


def last_rung(trial: Trial, candidate: Candidate, subsets: Subsets, share: int) -> Candidate | None:
    """Climb on with more rows, if there are any and the budget of `share` processes has it."""
    done = subsets.judged.start
    further = [rung for rung in subsets.rungs if rung > done]
    if not further:
        return None
    rows = further[-1]
    cost = share * (_LAST[1] + 2) * dense_evaluation(rows)
    if not (trial.budget.allows(0.0, _SHARE) and trial.budget.allows(cost, _ROOM)):
        return None
    own = candidate.climbed
    return replace(candidate, climbed=trial.climb(own.start, rows, *_LAST, own.theta))


def _climbed_on(trials: Sequence[Trial], climbed: Sequence[Climbed], rows: int) -> list[Climbed]:
    pairs = zip(trials, climbed, strict=True)
    return [trial.climb(one.start, rows, *_ON, one.theta) for trial, one in pairs]


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
    """The default, and the best of all others unless judges are sure that it is worse."""
    default, *others = found
    if not others:
        return [default]
    best = max(others, key=lambda shape: float(np.mean(found[shape][1])))
    sure = better(found[default][1] - found[best][1], _SURE)
    return [default] if sure else [default, best]


def _rival(shape: Shape, found: dict[Shape, tuple[list[Climbed], Array]]) -> Shape | None:
    """The other roughness of the same features, unless judges are sure that it is worse."""
    rivals = [other for other in found if other.ranks == shape.ranks and other != shape]
    if not rivals or better(found[shape][1] - found[rivals[0]][1], _SURE):
        return None
    return rivals[0]


def _plain(common: Climbed, shape: Shape) -> Candidate:
    return Candidate(common, shape, False)


def _lengths(
    trial: Trial,
    common: Climbed,
    shape: Shape,
    subsets: Subsets,
    rows: int,
    stages: list[Stage],
) -> Candidate:
    """Give each feature a length-scale of its own if judges gain by it."""
    plain, count = _plain(common, shape), common.start.by_feature
    if not count:
        return plain
    first = subsets.rungs[0]
    refined = common.start.refined(common.theta)
    shrunk = trial.climb(_shrunk(refined, common.theta), first, *_FIRST_LENGTHS)
    if count <= WIDE and rows > first:
        shrunk = trial.climb(shrunk.start, rows, *_ON, shrunk.theta)
    elif rows > first:
        common = trial.climb(common.start, first, *_ON, common.theta)
        rows = first
    before, after = trial.densities(common, rows), trial.densities(shrunk, rows)
    words = by_feature(shape)
    stages.append(_stage(rows, words, after, trial.budget.taken))
    if not better(after - before):
        return plain if better(before - after, _SURE) else replace(plain, common=common)
    if count > WIDE:
        return Candidate(shrunk, shape, True)
    free = trial.climb(refined, rows, *_FREE, shrunk.theta)
    last = trial.densities(free, rows)
    stages.append(_stage(rows, f"{words} without their prior", last, trial.budget.taken))
    return Candidate(free if float(np.mean(last - after)) > 0.0 else shrunk, shape, True, common)


def _alike(trial: Trial, common: Climbed, shape: Shape, chosen: Candidate, rows: int) -> Candidate:
    """The rival of a candidate: with as many length-scales, begun at those of the candidate."""
    if not chosen.by_feature:
        return _plain(common, shape)
    start = replace(common.start.refined(common.theta), log_prior=chosen.climbed.start.log_prior)
    climbed = trial.climb(start, rows, *_ON, chosen.climbed.theta)
    return Candidate(climbed, shape, True)


def _shrunk(refined: Start, theta: Array) -> Start:
    """Add the prior of single length-scales, about the common one."""
    if refined.log_prior is None:
        return refined
    count = refined.kernel.n_dims - 2
    mean, deviation = np.full(count, theta[2]), np.full(count, _SHRINK)
    prior = LogNormal(
        np.concatenate([refined.log_prior.mean, mean]),
        np.concatenate([refined.log_prior.deviation, deviation]),
    )
    return replace(refined, log_prior=prior)
