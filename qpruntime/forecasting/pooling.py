"""Hyper-parameters shared by the series of a panel."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.base import clone

from qpruntime._typing import Array
from qpruntime.effects.objective import EffectsObjective
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, QPError
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.forecasting.averaging import WeightedStructures
from qpruntime.forecasting.calendar import StepClock
from qpruntime.forecasting.families import COUNTS, scale_of
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.seasonality import common_seasons
from qpruntime.forecasting.structure import Learnt, Structure
from qpruntime.forecasting.structure_search import choose, regressors_of, seasonal
from qpruntime.forecasting.trial import ChosenStructure, ObservedSeries, fitted

__all__ = [
    "Task",
    "common",
    "fit_some",
    "like",
    "pieces",
]

# --- Fits of single series, by an executor -------------------------------------------------------

#: Series of one call: on a cluster what it costs to hand one out is shared.
_PIECE = 20


class Task(NamedTuple):
    """One series.

    Attributes
    ----------
    number : int
    series : dict
        Arguments of `GPForecaster.fit`.
    """

    number: int
    series: dict[str, Any]


#: Options, what all have in common, their clock, and series.
Item = tuple[GPForecaster, Structure | None, StepClock | None, Sequence[Task]]
#: Number, forecaster or None, what was wrong.
Result = tuple[int, GPForecaster | None, str]


def pieces(lasting: tuple[Any, ...], tasks: Sequence[Task], far: bool) -> list[Any]:
    """Arguments of `fit_some`."""
    size = _PIECE if far else 1
    return [(*lasting, tasks[k : k + size]) for k in range(0, len(tasks), size)]


def fit_some(item: Item) -> list[Result]:
    """Fit series; what is wrong with one is said in its place."""
    options, structure, clock, tasks = item
    found: list[Result] = []
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore")
        for number, series in tasks:
            try:
                found.append((number, _fitted(options, structure, clock, series), ""))
            except (QPError, np.linalg.LinAlgError, FloatingPointError) as error:
                found.append((number, None, str(error)))
    return found


def _fitted(
    options: GPForecaster,
    structure: Structure | None,
    clock: StepClock | None,
    series: dict[str, Any],
) -> GPForecaster:
    own: GPForecaster = clone(options)
    if structure is None:
        return own.fit(**series)  # as if it were alone: its clock and its nodes too
    if own.integrate == "auto":
        own.integrate = "mode"  # of thousands of series, nodes would take hours
    known = own._read(**series, clock=clock)
    found = fitted(like(structure, known), known, own.integrate)
    # The parameters learnt from the other series stay with the panel.
    found = replace(found, structure=replace(found.structure, learnt=None))
    return own._taken(WeightedStructures((found,), np.ones(1)))


# --- Structure and hyper-parameters shared by all series -----------------------------------------

# A family is that of all if so many of the series have it: a wider one has the narrower as a limit.
_SHARE = 0.25
_WIDER = ("zero-inflated", "hurdle", "negative-binomial", "poisson")
# Steps of the search for the common hyper-parameters, and of those for their spread.
_STEPS, _ROUNDS = 60, 4
# Spread at first, the least and the greatest; step of differences of slopes.
_SPREAD, _LEAST, _MOST, _STEP = 0.5, 0.1, 2.0, 1e-2
# Curvature of an evidence that says nothing.
_FLAT = 1e-3


def common(options: Any, some: Sequence[ObservedSeries], spread: bool) -> Structure:
    """Return the parts that most of the series ask for, with common hyper-parameters.

    Parameters
    ----------
    options : GPForecaster
    some : sequence of Known
        Series that are looked at.
    spread : bool
        Whether series may differ from the common hyper-parameters: how far is learnt too.

    Raises
    ------
    InputError
        If none of the series can be fitted.
    """
    if isinstance(options.seasons, str) and not some[0].clock.calendar():
        pairs = [(one.steps, seasonal(one.y)) for one in some]
        options = clone(options).set_params(seasons=common_seasons(pairs))
    # What few series have to teach, one wandering period or pattern, is for series alone.
    drift = options.drift is True
    options = clone(options).set_params(cycle=False, drift=drift, outliers=False)
    found, errors = [], []
    for one in some:
        try:
            found.append((one, choose(options, one)))
        except QPError as error:
            errors.append(error)
    if not found:
        raise InputError(f"none of {len(some)} series can be fitted: {errors[0]}") from errors[0]
    structure = _voted([one.structure for _, one in found])
    parts = []
    for known, _ in found:
        try:
            parts.append(fitted(like(structure, known), known, "mode"))
        except QPError:
            continue
    return replace(structure, learnt=_learnt(parts, spread))


def like(structure: Structure, known: ObservedSeries) -> Structure:
    """The structure for one of the series, which may be too short for some seasons."""
    span = float(known.steps[-1] - known.steps[0]) + 1.0
    whole = structure.scale.whole
    return replace(
        structure,
        seasons=tuple(p for p in structure.seasons if 2.0 * p <= span),
        drifting=tuple(p for p in structure.drifting if 2.0 * p <= span),
        regressors=regressors_of(known),
        scale=scale_of(structure.family, known.y),
        empty=whole and not known.y.any(),
        clock=known.clock,
    )


def _voted(each: list[Structure]) -> Structure:
    """Return what most of the structures have."""
    n = len(each)
    seasons = Counter(p for one in each for p in one.seasons)
    noise = sum(one.noise for one in each)
    trend = Counter(one.trend for one in each).most_common(1)[0][0]
    families = Counter(one.family for one in each)
    family = families.most_common(1)[0][0]
    if isinstance(family, str) and family in COUNTS:
        reals = [name for name in families if name not in COUNTS]
        if reals:
            family = max(reals, key=lambda name: families[name])
        else:
            wide = [name for name in _WIDER if families[name] >= _SHARE * n]
            family = wide[0] if wide else family
    scale = next(one.scale for one in each if one.family == family)
    common = tuple(sorted(p for p, count in seasons.items() if 2 * count >= n))
    return Structure(
        seasons=common,
        drifting=tuple(p for p in common if any(p in one.drifting for one in each)),
        regressors=(),
        trend=trend,
        noise=2 * noise >= n,
        family=family,
        scale=scale,
    )


def _learnt(parts: list[ChosenStructure], spread: bool) -> Learnt:
    """Hyper-parameters of the sum of evidences, and how far single series are from them."""
    names = max((one.model.names_ for one in parts), key=len)
    alike = [one.model for one in parts if one.model.names_ == names]
    objectives = [one.state_.objective() for one in alike]
    centres = _pooled(objectives, np.median([one.theta_ for one in alike], axis=0))
    if not spread:
        return Learnt(tuple(names), centres)
    return Learnt(tuple(names), *_spread(objectives, centres))


def _pooled(objectives: list[EffectsObjective], start: Array) -> Array:
    """Mode of the sum of log evidences and one log prior."""
    if not start.size:
        return start
    bounds = objectives[0].bounds

    def lost(theta: Array) -> tuple[float, Array]:
        value, slope = 0.0, np.zeros(theta.size)
        for k, one in enumerate(objectives):
            at = one(theta)
            value, slope = value + at.evidence, slope + at.evidence_slope
            if not k:
                value, slope = value + at.log_prior, slope + at.prior_slope
        return -value / len(objectives), -slope / len(objectives)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = minimize(
            lost,
            np.clip(start, *bounds.T),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _STEPS, "ftol": 1e-7, "gtol": 1e-4},
        )
    return np.asarray(found.x)


def _spread(objectives: list[EffectsObjective], start: Array) -> tuple[Array, Array]:
    """Centres and spreads of normal hyper-parameters, by EM with Laplace's approximation."""
    centres, spread = start, np.full(start.size, _SPREAD)
    if not start.size:
        return centres, spread
    each = np.tile(start, (len(objectives), 1))
    for _ in range(_ROUNDS):
        variances = np.empty(each.shape)
        for k, one in enumerate(objectives):
            each[k], variances[k] = _mode(one, each[k], centres, spread)
        centres = each.mean(axis=0)
        spread = np.sqrt((variances + (each - centres) ** 2).mean(axis=0))
        spread = np.clip(spread, _LEAST, _MOST)
    return centres, spread


def _mode(
    objective: EffectsObjective, start: Array, centres: Array, spread: Array
) -> tuple[Array, Array]:
    """Mode of one series under a normal prior, and the variances there."""
    bounds = objective.bounds

    def lost(theta: Array) -> tuple[float, Array]:
        at, z = objective(theta), (theta - centres) / spread
        return 0.5 * float(z @ z) - at.evidence, z / spread - at.evidence_slope

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            found = minimize(
                lost,
                np.clip(start, *bounds.T),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": 20, "ftol": 1e-6},
            ).x
            curvature = np.empty(found.size)
            for k in range(found.size):
                ends = []
                for sign in (-1.0, 1.0):
                    theta = found.copy()
                    theta[k] = np.clip(theta[k] + sign * _STEP, *bounds[k])
                    ends.append((theta[k], objective(theta).evidence_slope[k]))
                curvature[k] = -(ends[1][1] - ends[0][1]) / (ends[1][0] - ends[0][0])
        except NumericalError:
            return centres.copy(), spread**2
    return found, 1.0 / (spread**-2.0 + np.maximum(curvature, _FLAT))
