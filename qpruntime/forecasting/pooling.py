"""Hyper-parameters shared by the series of a panel."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.base import clone

from qpruntime._typing import Array
from qpruntime.effects.objective import EffectsObjective
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, QPError
from qpruntime.execution.threads import one_blas_thread
from qpruntime.forecasting.averaging import alone
from qpruntime.forecasting.calendar import StepClock
from qpruntime.forecasting.families import COUNTS, ROUNDED, scale_of
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

#: Number of series in one call, which share the cost of sending it to a cluster.
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


#: Options, common structure, common clock, and the series to fit.
Item = tuple[GPForecaster, Structure | None, StepClock | None, Sequence[Task]]
#: Number of the series, its forecaster or None, and the error message.
Result = tuple[int, GPForecaster | None, str]


def pieces(lasting: tuple[Any, ...], tasks: Sequence[Task], far: bool) -> list[Any]:
    """Return the arguments of `fit_some`."""
    size = _PIECE if far else 1
    return [(*lasting, tasks[k : k + size]) for k in range(0, len(tasks), size)]


def fit_some(item: Item) -> list[Result]:
    """Fit series; a series that fails has its error message in place of a forecaster."""
    options, structure, clock, tasks = item
    results: list[Result] = []
    with warnings.catch_warnings(action="ignore"), one_blas_thread():
        for number, series in tasks:
            try:
                results.append((number, _fitted(options, structure, clock, series), ""))
            except (QPError, np.linalg.LinAlgError, FloatingPointError) as error:
                results.append((number, None, str(error)))
    return results


def _fitted(
    options: GPForecaster,
    structure: Structure | None,
    clock: StepClock | None,
    series: dict[str, Any],
) -> GPForecaster:
    forecaster: GPForecaster = clone(options)
    if structure is None:
        return forecaster.fit(**series)  # as if it were alone: its clock and its nodes too
    if forecaster.integrate == "auto":
        forecaster.integrate = "mode"  # of thousands of series, nodes would take hours
    known = forecaster._read(**series, clock=clock)
    chosen = fitted(like(structure, known), known, forecaster.integrate)
    # The parameters learnt from the other series stay with the panel.
    chosen = replace(chosen, structure=replace(chosen.structure, learnt=None))
    return forecaster._taken(alone(chosen, known), constant=True)


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


def common(options: GPForecaster, sample: Sequence[ObservedSeries], spread: bool) -> Structure:
    """Return the structure that most of the series have, with common hyper-parameters.

    Parameters
    ----------
    options : GPForecaster
    sample : sequence of ObservedSeries
    spread : bool
        True if series may differ from the common hyper-parameters. Their spread is learnt then.

    Raises
    ------
    InputError
        If none of the series can be fitted.
    """
    if isinstance(options.seasons, str) and not sample[0].clock.calendar():
        pairs = [(series.steps, seasonal(series.y)) for series in sample]
        options = clone(options).set_params(seasons=common_seasons(pairs))
    # Periods and patterns that change are learnt for single series only: few series show them.
    drift = options.drift is True
    options = clone(options).set_params(cycle=False, drift=drift, outliers=False)
    fits, errors = [], []
    for series in sample:
        try:
            fits.append((series, choose(options, series)))
        except QPError as error:
            errors.append(error)
    if not fits:
        raise InputError(f"none of {len(sample)} series can be fitted: {errors[0]}") from errors[0]
    structure = _voted([best.structure for _, best in fits])
    parts = []
    for known, _ in fits:
        try:
            parts.append(fitted(like(structure, known), known, "mode"))
        except QPError:
            continue
    return replace(structure, learnt=_learnt(parts, spread))


def like(structure: Structure, known: ObservedSeries) -> Structure:
    """Return the structure for one of the series, which may be too short for some seasons."""
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


def _voted(structures: list[Structure]) -> Structure:
    """Return the structure with the parts that most of these structures have."""
    n = len(structures)
    seasons = Counter(p for structure in structures for p in structure.seasons)
    noise = sum(structure.noise for structure in structures)
    trend = Counter(structure.trend for structure in structures).most_common(1)[0][0]
    families = Counter(structure.family for structure in structures)
    family = families.most_common(1)[0][0]
    if isinstance(family, str) and family in (*COUNTS, ROUNDED):
        reals = [name for name in families if name not in (*COUNTS, ROUNDED)]
        if reals:
            family = max(reals, key=lambda name: families[name])
        elif family != ROUNDED:
            wide = [name for name in _WIDER if families[name] >= _SHARE * n]
            family = wide[0] if wide else family
    scale = next(structure.scale for structure in structures if structure.family == family)
    common = tuple(sorted(p for p, count in seasons.items() if 2 * count >= n))
    return Structure(
        seasons=common,
        drifting=tuple(
            p for p in common if any(p in structure.drifting for structure in structures)
        ),
        regressors=(),
        trend=trend,
        noise=2 * noise >= n,
        family=family,
        scale=scale,
    )


def _learnt(parts: list[ChosenStructure], spread: bool) -> Learnt:
    """Return hyper-parameters that maximise the summed evidence, and their spread over series."""
    names = max((part.model.names_ for part in parts), key=len)
    alike = [part.model for part in parts if part.model.names_ == names]
    objectives = [model.state_.objective() for model in alike]
    centres = _pooled(objectives, np.median([model.theta_ for model in alike], axis=0))
    if not spread:
        return Learnt(tuple(names), centres)
    return Learnt(tuple(names), *_spread(objectives, centres))


def _pooled(objectives: list[EffectsObjective], start: Array) -> Array:
    """Return the mode of the sum of log evidences and one log prior."""
    if not start.size:
        return start

    def lost(theta: Array) -> tuple[float, Array]:
        value, slope = 0.0, np.zeros(theta.size)
        for k, objective in enumerate(objectives):
            at = objective(theta)
            value, slope = value + at.evidence, slope + at.evidence_slope
            if not k:
                value, slope = value + at.log_prior, slope + at.prior_slope
        return -value / len(objectives), -slope / len(objectives)

    return _least(lost, start, objectives[0], {"maxiter": _STEPS, "ftol": 1e-7, "gtol": 1e-4})


def _least(
    lost: Callable[[Array], tuple[float, Array]],
    start: Array,
    objective: EffectsObjective,
    options: dict[str, float],
) -> Array:
    """Return where a function with its slope is smallest, between the bounds of an objective."""
    bounds = objective.bounds
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        begin = np.clip(start, *bounds.T)
        optimum = minimize(lost, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(optimum.x)


def _spread(objectives: list[EffectsObjective], start: Array) -> tuple[Array, Array]:
    """Return centres and spreads of normal hyper-parameters, by EM with Laplace's approximation."""
    centres, spread = start, np.full(start.size, _SPREAD)
    if not start.size:
        return centres, spread
    modes = np.tile(start, (len(objectives), 1))
    for _ in range(_ROUNDS):
        variances = np.empty(modes.shape)
        for k, objective in enumerate(objectives):
            modes[k], variances[k] = _mode(objective, modes[k], centres, spread)
        centres = modes.mean(axis=0)
        spread = np.sqrt((variances + (modes - centres) ** 2).mean(axis=0))
        spread = np.clip(spread, _LEAST, _MOST)
    return centres, spread


def _mode(
    objective: EffectsObjective, start: Array, centres: Array, spread: Array
) -> tuple[Array, Array]:
    """Return the mode of one series under a normal prior, and the variances there."""

    def lost(theta: Array) -> tuple[float, Array]:
        at, z = objective(theta), (theta - centres) / spread
        return 0.5 * float(z @ z) - at.evidence, z / spread - at.evidence_slope

    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        try:
            mode = _least(lost, start, objective, {"maxiter": 20, "ftol": 1e-6})
            curvature = np.empty(mode.size)
            for k in range(mode.size):
                ends = []
                for sign in (-1.0, 1.0):
                    theta = mode.copy()
                    theta[k] = np.clip(theta[k] + sign * _STEP, *objective.bounds[k])
                    ends.append((theta[k], objective(theta).evidence_slope[k]))
                curvature[k] = -(ends[1][1] - ends[0][1]) / (ends[1][0] - ends[0][0])
        except NumericalError:
            return centres.copy(), spread**2
    return mode, 1.0 / (spread**-2.0 + np.maximum(curvature, _FLAT))
