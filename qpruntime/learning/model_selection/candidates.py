"""Kernels of a process that have been climbed: of a shape, by one length-scale or one a feature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.policy.judged import Stage, better
from qpruntime.learning.policy.operations import dense_evaluation
from qpruntime.learning.policy.subsets import Subsets
from qpruntime.learning.policy.trial import Climbed, Trial

__all__ = [
    "ON",
    "ROOM",
    "SHARE",
    "SURE",
    "WIDE",
    "Candidate",
    "Shape",
    "alike",
    "combined",
    "last_rung",
    "lengths",
    "staged",
]

#: Relative tolerance and iterations of a climb that goes on.
ON = (1e-3, 10)
# Of the first one by single length-scales, of that without their prior, and on the last rung.
_FIRST_LENGTHS, _FREE, _LAST = (1e-3, 15), (1e-3, 10), (1e-3, 5)
# Log length-scales of single features are normal about the common one, of this deviation.
_SHRINK = 1.0
#: With more features single length-scales are learnt on the first rung alone.
WIDE = 200
#: The last rung begins within this share of the budget, and leaves as much as the second says.
SHARE, ROOM = 0.5, 0.85
#: Judges are sure of a loss of so many standard errors.
SURE = 2.0


@dataclass(frozen=True)
class Shape:
    """What a common length-scale is tried with: ranks of features, and a kernel's roughness."""

    ranks: bool
    nu: float

    @property
    def words(self) -> str:
        """How messages name it."""
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
    judged : ndarray or None
        Densities of the judges, where they have been asked.
    """

    climbed: Climbed
    shape: Shape
    by_feature: bool
    common: Climbed | None = None
    judged: Array | None = None

    @property
    def words(self) -> str:
        """How messages name it."""
        return by_feature(self.shape) if self.by_feature else self.shape.words


def by_feature(shape: Shape) -> str:
    """A shape with one length-scale a feature, in words."""
    return f"{shape.words}, one length-scale a feature"


def last_rung(trial: Trial, candidate: Candidate, subsets: Subsets, share: int) -> Candidate | None:
    """Climb on with more rows, if there are any and the budget of `share` processes has it."""
    done = subsets.judged.start
    further = [rung for rung in subsets.rungs if rung > done]
    if not further:
        return None
    rows = further[-1]
    cost = share * (_LAST[1] + 2) * dense_evaluation(rows)
    if not (trial.budget.allows(0.0, SHARE) and trial.budget.allows(cost, ROOM)):
        return None
    own = candidate.climbed
    return replace(candidate, climbed=trial.climb(own.start, rows, *_LAST, own.theta))


def staged(rows: int, words: str, densities: Array, taken: float) -> Stage:
    """A stage after so many operations, whose density is NaN where nobody judged."""
    known = densities.size > 1
    return Stage(rows, words, float(np.mean(densities)) if known else math.nan, taken)


def lengths(
    trial: Trial,
    common: Climbed,
    shape: Shape,
    subsets: Subsets,
    rows: int,
    stages: list[Stage],
) -> list[Candidate]:
    """Give each feature a length-scale of its own if judges gain by it.

    The other choice follows unless they are sure.
    """
    plain, count = Candidate(common, shape, False), common.start.by_feature
    if not count:
        return [plain]
    first = subsets.rungs[0]
    refined = common.start.refined(common.theta)
    shrunk = trial.climb(_shrunk(refined), first, *_FIRST_LENGTHS)
    if count <= WIDE and rows > first:
        shrunk = trial.climb(shrunk.start, rows, *ON, shrunk.theta)
    elif rows > first:
        common = trial.climb(common.start, first, *ON, common.theta)
        rows = first
    before, after = trial.densities(common, rows), trial.densities(shrunk, rows)
    words = by_feature(shape)
    stages.append(staged(rows, words, after, trial.budget.taken))
    plain = replace(plain, judged=before)
    each = Candidate(shrunk, shape, True, common, after)
    if not better(after - before):
        sure = better(before - after, SURE)
        return [plain] if sure else [replace(plain, common=common), each]
    if count > WIDE:
        return [replace(each, common=None), plain]
    free = trial.climb(refined, rows, *_FREE, shrunk.theta)
    last = trial.densities(free, rows)
    stages.append(staged(rows, f"{words} without their prior", last, trial.budget.taken))
    if float(np.mean(last - after)) > 0.0:
        each, after = replace(each, climbed=free, judged=last), last
    return [each] if better(after - before, SURE) else [each, plain]


def alike(trial: Trial, common: Climbed, shape: Shape, chosen: Candidate, rows: int) -> Candidate:
    """The rival of a candidate: with as many length-scales, begun at those of the candidate."""
    if not chosen.by_feature:
        return Candidate(common, shape, False, common)
    start = replace(common.start.refined(common.theta), log_prior=chosen.climbed.start.log_prior)
    climbed = trial.climb(start, rows, *ON, chosen.climbed.theta)
    return Candidate(climbed, shape, True, common)


def combined(
    trials: dict[Shape, Trial],
    candidates: Sequence[Candidate],
    densities: dict[int, Array],
    rows: int,
) -> Candidate | None:
    """Another roughness with other length-scales, where rows gain by either of them.

    That is by what candidates with one of the two gain on the first of all.
    """
    seen = {(candidates[n].shape, candidates[n].by_feature): n for n in densities}
    first = candidates[0]
    for shape, by_one in seen:
        other = replace(first.shape, nu=shape.nu)
        sibling = seen.get((first.shape, not first.by_feature))
        if shape != other or shape == first.shape or sibling is None:
            continue
        rival = candidates[seen[shape, by_one]]
        gains = [densities[n] - densities[0] for n in (sibling, seen[shape, by_one])]
        missing = (shape, not first.by_feature) not in seen
        if missing and rival.common is not None and all(map(better, gains)):
            return alike(trials[shape], rival.common, shape, candidates[sibling], rows)
    return None


def _shrunk(refined: Start) -> Start:
    """Add the prior of single length-scales, about the common one."""
    if refined.log_prior is None:
        return refined
    mean = refined.thetas[0][2 : refined.kernel.n_dims]
    deviation = np.full(mean.size, _SHRINK)
    prior = LogNormal(
        np.concatenate([refined.log_prior.mean, mean]),
        np.concatenate([refined.log_prior.deviation, deviation]),
    )
    return replace(refined, log_prior=prior)
