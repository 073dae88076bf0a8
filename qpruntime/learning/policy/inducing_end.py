"""All rows by inducing points, under the kernel that they choose among those of some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.learning.data import Data
from qpruntime.learning.inducing import rows_at, sample
from qpruntime.learning.policy.candidates import SURE, Candidate, Shape, combined, last_rung
from qpruntime.learning.policy.contest import ROWS, Case, contest, moved
from qpruntime.learning.policy.inducing import LEFT_OUT, NEAREST, Ground
from qpruntime.learning.policy.judged import Stage, better
from qpruntime.learning.policy.operations import local_density
from qpruntime.learning.policy.rest import Rest
from qpruntime.learning.policy.trial import Trial, some_of
from qpruntime.learning.policy.views import View
from qpruntime.learning.sparse.end import advise
from qpruntime.learning.training import Fit

__all__ = ["Ended", "end_inducing"]


class Ended(NamedTuple):
    """The fit of a process, and what became of its kernel.

    Attributes
    ----------
    fit : Fit
    best : Candidate
    nearest : int
        Rows that correct a point.
    short : bool
        Whether rows left out are predicted worse than by the rows that kernels were learnt from.
    score : float
        Mean log density of rows left out.
    """

    fit: Fit
    best: Candidate
    nearest: int
    short: bool
    score: float


def end_inducing(
    rest: Rest,
    data: Data,
    views: dict[bool, View],
    trials: dict[Shape, Trial],
    given: Sequence[Candidate],
    rows: int,
) -> Ended:
    """All rows by inducing points, given candidates that were learnt from so many rows."""
    n = len(data.y)
    some = sample(n, ROWS, rest.rng) if n > ROWS else None
    left_out = sample(min(n, ROWS), LEFT_OUT, rest.rng)
    seed = int(rest.rng.integers(2**31))

    candidates = list(given)

    def case_of(one: Candidate) -> Case:
        X = views[one.shape.ranks].scaled
        own = replace(data, X=X) if some is None else some_of(data, rows_at(X, some), some)
        ground = Ground(own, rest.settings, rest.budget, rest.stages, seed, left_out)
        words = f"{one.words}, " if given[1:] else ""
        return Case(ground, one.climbed.kernel, one.climbed.projector(own), words)

    def both(densities: dict[int, Array]) -> Case | None:
        with one_blas_thread():
            further = combined(trials, given, densities, rows)
        if further is None:
            return None
        candidates.append(further)
        return case_of(further)

    cases = [case_of(one) for one in given]
    number, kernel, settled = contest(cases, both)
    best, case = candidates[number], cases[number]
    with one_blas_thread():
        further = last_rung(trials[best.shape], best, rest.subsets, rest.processes)
    if further is not None:
        rest.stages.append(
            Stage(rest.subsets.rungs[-1], further.words, math.nan, rest.budget.taken)
        )
        climbed = further.climbed
        later = case._replace(kernel=climbed.kernel, projector=climbed.projector(data))
        begun = case.ground.settle(later.kernel, later.projector, settled.m, "", settled)
        own, last = moved(later, begun)
        # More rows know more, nearly always: rows left out say where not.
        if last.score >= settled.score:
            best, case, kernel, settled = further, later, own, last
    ground, projector = case.ground, case.projector
    if some is not None:
        X = views[best.shape.ranks].scaled
        left_out = sample(n, LEFT_OUT, rest.rng)
        ground = replace(ground, data=replace(data, X=X), left_out=left_out)
        settled = ground.settle(kernel, projector, settled.m, "", None)
    settled = ground.grow(kernel, projector, settled)
    posterior, nearest = ground.end(settled, projector)
    advise(kernel, trials[best.shape].data.X)
    fit = Fit(kernel, projector.likelihood, posterior, (best.climbed.optimum,))
    return Ended(fit, best, nearest, _short(ground, posterior, rest, given), settled.score)


def _short(ground: Ground, posterior: Any, rest: Rest, given: Sequence[Candidate]) -> bool:
    """Whether judges are sure that all rows predict them worse than some of the rows did."""
    known = [one.judged for one in given if one.judged is not None]
    if not known or not rest.subsets.judging:
        return False
    some = max(known, key=lambda densities: float(np.mean(densities)))
    judges = rest.subsets.order[rest.subsets.judged]
    found = ground.weighted(posterior.loo(judges), judges)
    rest.budget.take(local_density(judges.size, NEAREST, len(posterior.Z)))
    return better(some - found, SURE)
