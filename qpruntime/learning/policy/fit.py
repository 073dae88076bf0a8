"""Fit processes without arguments: choose the kernel, then the engine for the rows there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.execution.blas_threads import blas_threads, one_blas_thread
from qpruntime.inference.sparse.lazy import is_lazy, read
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, Units, default_start
from qpruntime.learning.dense import Dense
from qpruntime.learning.inducing import SAMPLE, rows_at, sample
from qpruntime.learning.policy.acts import DENSE
from qpruntime.learning.policy.choice import Choice, tell
from qpruntime.learning.policy.inducing import Ground
from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.kernels import (
    WIDE,
    Candidate,
    Shape,
    by_feature,
    choose,
    last_rung,
)
from qpruntime.learning.policy.operations import Budget, dense_evaluation, dense_inference
from qpruntime.learning.policy.subsets import Subsets, drawn
from qpruntime.learning.policy.trial import Climbed, Trial, some_of
from qpruntime.learning.settings import Settings
from qpruntime.learning.sparse_end import advise
from qpruntime.learning.training import Fit
from qpruntime.learning.warp import Warp

__all__ = ["fitted"]

# Relative tolerance and iterations with all of these rows.
_END = (1e-5, 15)
# And with length-scales of single features; what each must raise the log evidence by there, unless
# judges gain by them as well: Akaike's price of 1 is too little for judges who do not know.
_EACH, _CLEAR = (1e-3, 30), 1.35
# What that takes, in evaluations.
_EVALUATIONS = 45
# So many rows are fitted densely too where the user gives so many seconds.
_LARGE, _GENEROUS = 6000, 120.0
# Rows of a dense fit whose sites may be negative.
_FEWER = 1000
_SHAPES = (Shape(False, 2.5), Shape(False, 0.5), Shape(True, 2.5), Shape(True, 0.5))


def fitted(
    processes: Sequence[Data], settings: Settings, rng: np.random.Generator, latent_scale: float
) -> tuple[list[Fit], Choice]:
    """Return the fits of processes with the same X and weights, in the units of X, or its ranks.

    Parameters
    ----------
    processes : sequence of Data
        Of at least 60 rows.
    settings : Settings
        With ``auto``.
    rng : Generator
    latent_scale : float
        By which latent functions vary, about.
    """
    assert settings.auto is not None
    n = len(processes[0].y)
    dense = n <= DENSE or (n <= _LARGE and (settings.auto.budget or 0.0) >= _GENEROUS)
    if dense and is_lazy(processes[0].X):
        held = read(processes[0].X, slice(0, n))
        processes = [replace(data, X=held) for data in processes]
    X = processes[0].X
    budget = Budget(settings.auto.budget, n)
    # Sites of likelihoods that are not log-concave settle one after the other, which takes long.
    concave = processes[0].projector.likelihood.log_concave
    subsets = drawn(n, _strata(processes), rng, **({} if concave else {"most": _FEWER}))
    stages: list[Stage] = []
    units: dict[bool, tuple[Warp | None, Units]] = {}
    starts: dict[Shape, Start] = {}
    trials: dict[Shape, Sequence[Trial]] = {}
    order = np.argsort(subsets.order, kind="stable")
    seen = np.empty((len(subsets.order), int(X.shape[1])))
    seen[order] = rows_at(X, subsets.order[order])
    for shape in _SHAPES:
        if shape.ranks not in units:
            units[shape.ranks] = _units(X, processes[0].weights, rng, shape.ranks)
        warp, unit = units[shape.ranks]
        starts[shape] = default_start(unit, latent_scale, nu=shape.nu)
        scaled = unit.scaled(warp(seen) if warp else seen)
        trials[shape] = [
            Trial(some_of(data, scaled, subsets.order), settings, budget, subsets.judged)
            for data in processes
        ]
    with one_blas_thread():
        chosen = choose(trials, starts, subsets, stages, others=not dense)
    warp, unit = units[chosen.shape.ranks]
    features = warp.of_any(X) if warp else X
    scaled = unit.of_any(features)
    rows = _Rows(subsets, settings, budget, stages, rng, len(processes))
    fits, words, nearest = [], [], 0
    for number, data in enumerate(processes):
        own, candidates = replace(data, X=scaled), chosen.processes[number]
        if dense:
            with blas_threads(n):
                fit, best = rows.dense(own, trials[chosen.shape][number], candidates[0], number)
            words.append(best)
        else:
            fit, best, k = rows.inducing(own, trials[chosen.shape][number], candidates)
            nearest = max(nearest, k)
            words.append(best)
        kernel = unit.kernel_of_features(fit.kernel)
        posterior = fit.posterior.on(kernel, features, unit.unscaled)
        fits.append(replace(fit, kernel=kernel, posterior=posterior))
    choice = Choice(
        engine="dense" if dense else "inducing+nearest" if nearest else "inducing",
        rows=n,
        kernels=tuple(words),
        inducing=() if dense else tuple(len(fit.posterior.Z) for fit in fits),
        nearest=nearest,
        warp=warp,
        stages=tuple(stages),
    )
    tell(choice, budget.taken)
    return fits, choice


@dataclass(frozen=True, eq=False)
class _Rows:
    """How all rows are fitted once there are candidates."""

    subsets: Subsets
    settings: Settings
    budget: Budget
    stages: list[Stage]
    rng: np.random.Generator
    processes: int

    def dense(self, data: Data, trial: Trial, candidate: Candidate, number: int) -> tuple[Fit, str]:
        """All rows by the dense engine, as many steps further as there is room; kernel in words.

        Process `number` shares what the budget has left with those after it.
        """
        settings, n = self.settings, len(data.y)
        Dense(settings).require(n, candidate.climbed.kernel, True)
        if n > DENSE:
            candidate = last_rung(trial, candidate, self.subsets, self.processes) or candidate
        climbed, words = candidate.climbed, candidate.words
        trial = Trial(data, settings, self.budget, slice(0, 0))
        left = self.budget.most - self.budget.taken
        room = left / (self.processes - number) - dense_inference(n)
        tolerance, steps = _END
        steps = min(steps, int(room / dense_evaluation(n)) - 2)
        # All rows are worth a few steps, but none if they would be cut off at once.
        few = n > DENSE and steps < 2
        last = (
            climbed
            if few
            else trial.climb(climbed.start, n, tolerance, max(steps, 2), climbed.theta)
        )
        sites = None if few else last.sites
        self.stages.append(Stage(n, "all rows, dense", math.nan, self.budget.taken))
        each = self._by_feature(trial, candidate, last)
        if each is not None:
            last, words, sites = each, by_feature(candidate.shape), each.sites
        projector = last.projector(data)
        own = replace(data, projector=projector)
        posterior = Dense(settings).infer(last.kernel, own, sites)
        self.budget.take(dense_inference(n))
        advise(last.kernel, data.X)
        fit = Fit(last.kernel, projector.likelihood, posterior, (last.optimum, climbed.optimum))
        return fit, words

    def _by_feature(self, trial: Trial, candidate: Candidate, last: Climbed) -> Climbed | None:
        """A length-scale for each feature where the evidence of all rows is far higher by them.

        Half of the rows learn too little for them where there are few, and rows held out cannot
        know what all will.
        """
        n, common = len(trial.data.y), candidate.common
        count = common.start.by_feature if common is not None else 0
        cost = _EVALUATIONS * dense_evaluation(n, count)
        if common is None or not 0 < count <= WIDE or not self.budget.allows(cost):
            return None
        one = trial.climb(common.start, n, *_END, common.theta)
        each = trial.climb(one.start.refined(one.theta), n, *_EACH)
        self.stages.append(
            Stage(n, "all rows, one length-scale a feature", math.nan, self.budget.taken)
        )
        price = count if candidate.by_feature else _CLEAR * count
        clear = each.optimum.value - one.optimum.value > price
        return each if clear and each.optimum.value > last.optimum.value else None

    def inducing(
        self, data: Data, trial: Trial, candidates: Sequence[Candidate]
    ) -> tuple[Fit, str, int]:
        """All rows by inducing points; the kernel in words, and how many nearest rows correct."""
        ground = Ground(data, self.settings, self.budget, self.stages, self.rng)
        kernels = [
            (c.climbed.kernel, c.climbed.projector(data), f"{c.words}, " if candidates[1:] else "")
            for c in candidates
        ]
        number, settled = ground.first(kernels)
        best = candidates[number]
        with one_blas_thread():
            further = last_rung(trial, best, self.subsets, self.processes)
        if further is not None:
            self.stages.append(
                Stage(self.subsets.rungs[-1], further.words, math.nan, self.budget.taken)
            )
            kernel, projector = further.climbed.kernel, further.climbed.projector(data)
            moved = ground.settle(kernel, projector, settled.m, "", settled)
            # More rows know more, nearly always: rows left out say where not.
            if moved.score >= settled.score:
                best, settled = further, moved
            else:
                moved.engine.release()
        kernel, projector = best.climbed.kernel, best.climbed.projector(data)
        settled = ground.grow(kernel, projector, settled)
        posterior, nearest = ground.end(settled, projector)
        advise(kernel, trial.data.X)
        fit = Fit(kernel, projector.likelihood, posterior, (best.climbed.optimum,))
        return fit, best.words, nearest


def _strata(processes: Sequence[Data]) -> Array | None:
    """Return the class of each row, None for observations that are no labels."""
    first = processes[0]
    if not first.discrete or len(np.unique(first.y[:1000])) > 2:
        return None
    if len(processes) == 1:
        return first.y
    strata: Array = np.argmax([data.y for data in processes], axis=0)
    return strata


def _units(
    X: Any, weights: Array | None, rng: np.random.Generator, ranks: bool
) -> tuple[Warp | None, Units]:
    """What features go through, and their units; of many rows, by a sample."""
    n = int(X.shape[0])
    if n <= SAMPLE and not is_lazy(X):
        points, mass = X, weights
    else:
        some = sample(n, SAMPLE, rng)
        points, mass = rows_at(X, some), None if weights is None else weights[some]
    if not ranks:
        return None, Units.of(points, mass)
    warp = Warp.of(points, mass)
    return warp, Units.of(warp(points), mass)
