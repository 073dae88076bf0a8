"""Kernels of a process that have been climbed: of a shape, by one length-scale or one a feature."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.dense_solver import Dense
from qpruntime.learning.model_selection.budget import (
    Budget,
    Stage,
    Subsets,
    better,
    dense_evaluation,
    dense_inference,
)
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.restarts import optimise
from qpruntime.learning.settings import Data, Settings
from qpruntime.projection.projector import Projector, project_arrays

__all__ = [
    "ON",
    "ROOM",
    "SHARE",
    "SURE",
    "WIDE",
    "Candidate",
    "Climbed",
    "Shape",
    "Trial",
    "alike",
    "combined",
    "last_rung",
    "lengths",
    "some_of",
    "staged",
]

# --- Optimised kernels

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


# --- Kernel choice by dense fits and hold-out rows

# Sites of stages settle so far: they steer, and judge to three digits.
_TOL = 1e-4


@dataclass(frozen=True)
class Climbed:
    """Where a kernel has come to, and the sites there of the rows it was learnt from."""

    start: Start
    optimum: Optimum
    sites: Sites | None

    @property
    def theta(self) -> Array:
        """Log parameters of the kernel, then of the likelihood."""
        return self.optimum.theta

    @property
    def kernel(self) -> Kernel:
        """The kernel with its parameters."""
        own = self.start.kernel
        return own.clone_with_theta(self.theta[: own.n_dims])

    def projector(self, data: Data) -> Projector:
        """The projector of the data, with what was learnt of the likelihood."""
        if not data.learn:
            return data.projector
        logs = self.theta[self.start.kernel.n_dims :]
        return learnt(data.projector, tuple(data.learn), logs)


def some_of(data: Data, X: Array, rows: slice | NDArray[np.intp]) -> Data:
    """Return some rows of the data, with the inputs X of these rows."""
    columns = data.y, data.prior, data.weights, data.scale
    y, prior, weights, scale = (None if c is None else c[rows] for c in columns)
    assert y is not None
    assert prior is not None
    y = np.asarray(y, dtype=float)
    groups = None if data.groups is None else data.groups.some(rows)
    return replace(data, X=X, y=y, prior=prior, weights=weights, scale=scale, groups=groups)


@dataclass(frozen=True, eq=False)
class Trial:
    """A process on the rows of stages, whose inputs are in `data`.

    Climbs are of EP's evidence, as those of whole fits; judges see EP's posterior.
    """

    data: Data
    settings: Settings
    budget: Budget
    judged: slice

    def climb(
        self, start: Start, rows: int, ftol: float, iterations: int, theta: Array | None = None
    ) -> Climbed:
        """Maximise the evidence of the first rows, from `theta` or from where the start says.

        Raises
        ------
        NumericalError
            If inference fails where it begins.
        """
        data = self._first(rows)
        settings = replace(
            self.settings,
            n_restarts=0,
            ftol=max(ftol, self.settings.ftol),
            max_iter=min(iterations, self.settings.max_iter),
            kernel=None,
        )
        if theta is not None:
            start = replace(start, thetas=(theta,))
        rng = np.random.default_rng(0)  # of restarts, and there are none
        optima, sites, _ = optimise(data, start, settings, rng, None, Dense(settings))
        best = optima[0]
        features = start.kernel.n_dims if start.by_feature == 0 else 1
        self.budget.take(best.n_evaluations * dense_evaluation(rows, features))
        # It is meant to end early: where it did is nothing for the user to mend.
        return Climbed(start, replace(best, success=True), sites)

    def densities(self, climbed: Climbed, rows: int) -> Array:
        """Log predictive densities of the judges, given the first rows; minus infinity if none.

        Weighted as the judges are, and pooled by groups of rows.
        """
        count = self.judged.stop - self.judged.start
        found = _or_none(lambda: self._densities(climbed, rows), count)
        groups = self.data.groups
        return found if groups is None else groups.pooled(found, self.judged)

    def left_out(self, climbed: Climbed, rows: int) -> Array:
        """Weighted log predictive densities of the first rows, each without its group; likewise."""
        first = self._first(rows)

        def found() -> Array:
            posterior = self._posterior(climbed, rows)[1]
            groups = first.groups
            densities = posterior.loo() if groups is None else groups.left_out(posterior)
            return _weighted(densities, first.weights)

        densities = _or_none(found, rows)
        return densities if first.groups is None else first.groups.pooled(densities)

    def _densities(self, climbed: Climbed, rows: int) -> Array:
        data, judges = self._first(rows), some_of(self.data, self.data.X[self.judged], self.judged)
        projector, post = self._posterior(climbed, rows)
        kernel = climbed.kernel
        K_star = kernel(judges.X, data.X)
        if data.scale is not None:
            K_star *= data.scale
        mean, variance = post.predict(K_star, kernel.diag(judges.X), mean=judges.prior)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        if judges.scale is not None:
            mean, deviation = mean * judges.scale, deviation * judges.scale
        # A latent variance of 0 comes from rounding; projections want a width.
        deviation = np.maximum(deviation, 1e-15)
        found = project_arrays(projector.likelihood, mean, deviation, judges.y, "ep").log_z
        return _weighted(found, judges.weights)

    def _posterior(self, climbed: Climbed, rows: int) -> tuple[Projector, Any]:
        """EP's, of the first rows."""
        data = self._first(rows)
        projector = climbed.projector(data).for_evidence()
        dense = Dense(replace(self.settings, tol=max(_TOL, self.settings.tol)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            own = replace(data, projector=projector)
            post = dense.infer(climbed.kernel, own, climbed.sites)
        self.budget.take(dense_inference(rows))
        return projector, post

    def _first(self, rows: int) -> Data:
        return some_of(self.data, self.data.X[:rows], slice(rows))


def _or_none(densities: Callable[[], Array], count: int) -> Array:
    """Minus infinity if inference fails."""
    try:
        return densities()
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return np.full(count, -np.inf)


def _weighted(densities: Array, weights: Array | None) -> Array:
    return densities if weights is None else densities * (weights / weights.mean())
