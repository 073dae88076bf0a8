"""Fit processes without arguments: choose the kernel, then the engine for the rows there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.execution.one_thread import one_blas_thread
from qpruntime.inference.sparse.lazy import is_lazy
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, Units, default_start
from qpruntime.learning.dense import Dense
from qpruntime.learning.inducing import SAMPLE, rows_at, sample
from qpruntime.learning.maximise import Optimum
from qpruntime.learning.policy.inducing import grow
from qpruntime.learning.policy.kernels import Chosen, Shape, Stage, choose
from qpruntime.learning.policy.operations import Budget, dense_evaluation
from qpruntime.learning.policy.subsets import FEWEST, Subsets, drawn
from qpruntime.learning.policy.trial import Climbed, Trial, some_of
from qpruntime.learning.settings import Settings
from qpruntime.learning.training import Fit
from qpruntime.learning.warp import Warp

__all__ = ["Choice", "fitted"]

#: More rows than this are not fitted densely.
DENSE = 1500
# Relative tolerance and iterations with all of these rows.
_END = (1e-5, 15)
_SHAPES = (Shape(False, 2.5), Shape(False, 0.5), Shape(True, 2.5), Shape(True, 0.5))


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for all processes of a model.

    Attributes
    ----------
    engine : {"dense", "inducing", "inducing+nearest"}
    stages : tuple of Stage
    warp : Warp or None
        What features went through.
    nearest : int
    """

    engine: str
    stages: tuple[Stage, ...]
    warp: Warp | None
    nearest: int


def fitted(
    processes: Sequence[Data], settings: Settings, rng: np.random.Generator, latent_scale: float
) -> tuple[list[Fit], Choice]:
    """Return the fits of processes with the same X and weights, in the units of X, or its ranks.

    Parameters
    ----------
    processes : sequence of Data
        Of at least `FEWEST` rows.
    settings : Settings
        With ``auto``.
    rng : Generator
    latent_scale : float
        By which latent functions vary, about.
    """
    assert settings.auto is not None
    X, n = processes[0].X, len(processes[0].y)
    budget = Budget(settings.auto.budget, n)
    subsets = drawn(n, _strata(processes), rng)
    stages: list[Stage] = []
    units, starts, trials = {}, {}, {}
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
        chosen = choose(trials, starts, subsets, stages)
    warp, unit = units[chosen.shape.ranks]
    features = warp.of_any(X) if warp else X
    scaled = unit.of_any(features)
    fits: list[Fit] = []
    nearest = 0
    for number, data in enumerate(processes):
        own = replace(data, X=scaled)
        climbed = chosen.climbed[number]
        if n <= DENSE:
            with one_blas_thread():
                fit = _dense(own, climbed, settings, budget, stages)
        else:
            judges = subsets.order[subsets.judged]
            fit = _inducing(own, climbed, settings, judges, budget, stages, rng)
        kernel = unit.kernel_of_features(fit.kernel)
        posterior = fit.posterior.on(kernel, features, unit.unscaled)
        fits.append(replace(fit, kernel=kernel, posterior=posterior))
    engine = "dense" if n <= DENSE else "inducing"
    return fits, Choice(engine, tuple(stages), warp, nearest)


def _dense(
    data: Data, climbed: Climbed, settings: Settings, budget: Budget, stages: list[Stage]
) -> Fit:
    """All rows, by the dense engine."""
    n = len(data.y)
    trial = Trial(data, settings, budget, slice(0, 0))
    last = trial.climb(climbed.start, n, *_END, climbed.theta)
    stages.append(Stage(n, "all rows, dense", math.nan, budget.taken))
    projector = last.projector(data)
    posterior = Dense(settings).infer(last.kernel, replace(data, projector=projector), last.sites)
    return Fit(last.kernel, projector.likelihood, posterior, (last.optimum,))


def _inducing(
    data: Data,
    climbed: Climbed,
    settings: Settings,
    judges: Any,
    budget: Budget,
    stages: list[Stage],
    rng: np.random.Generator,
) -> Fit:
    projector, kernel = climbed.projector(data), climbed.kernel
    grown = grow(data, kernel, projector, settings, judges, budget, stages, rng)
    return Fit(kernel, projector.likelihood, grown.posterior, (climbed.optimum,))


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
