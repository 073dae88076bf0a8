"""Fit of all processes of a model, in units of each feature's spread.

Kernels and engines are selected if the settings leave them open; slopes are observed if there are
any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.posterior import solution_of
from qpruntime.kernels.default import LogNormal
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance
from qpruntime.learning.hyperpriors import Priors
from qpruntime.learning.initialisation import Start, automatic_start, default_start, given_start
from qpruntime.learning.inputs import Data, InputView, Slopes
from qpruntime.learning.model_selection.budget import rank_screening_applies, selection_applies
from qpruntime.learning.model_selection.select import Choice, fit_with_selection, screened_choice
from qpruntime.learning.model_selection.small_data import screen_features, screen_ranks
from qpruntime.learning.options import Settings, numbered
from qpruntime.learning.scaling import Units
from qpruntime.learning.solvers import and_slopes
from qpruntime.learning.sparse.train import remove_checkpoints
from qpruntime.learning.train import Fit, train

__all__ = ["fit_processes", "spread_rows"]


def fit_processes(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    theta: Array | None = None,
) -> tuple[list[Fit], Choice | None]:
    """Fit processes with the same inputs and weights; return the fits, and what was chosen.

    A given kernel is used as it is. Others are learnt in units of each feature's spread, for latent
    functions that vary by about `latent_scale`; they may begin at `theta`.
    """
    first = processes[0]
    if first.slopes is not None:
        return _fit_with_slopes(processes, settings, rng, latent_scale, theta), None
    if selection_applies(first, settings):
        return fit_with_selection(processes, settings, rng, latent_scale)
    few = rank_screening_applies(first, settings)
    inputs = first.inputs
    if settings.sparse is None:
        inputs = inputs.in_memory()
        # Convert targets as for other inputs, because kernels would compile again for integers.
        processes = [
            replace(data, inputs=inputs, y=np.asarray(data.y, dtype=float)) for data in processes
        ]
    if isinstance(settings.kernel, Kernel):
        begin = given_start(settings.kernel, settings.search.priors, first.learn)
        return _trained(processes, [begin] * len(processes), settings, rng), None
    ranks = screen_ranks(processes, settings, latent_scale) if few else None
    if ranks is None:
        view = InputView.fitted(
            inputs, first.weights, rng, False, len(inputs), deviations=settings.linear
        )
    else:
        view = ranks.view
    screened = screen_features(processes, view, settings, latent_scale) if few else None
    if screened is not None:
        view = screened[0]
    units = view.units
    scaled_settings = settings.in_units(units)
    if scaled_settings.solver == "auto" and (inputs.width > 1 or units.levels):
        # Constant columns are left out of the units, and one that is left is no series.
        scaled_settings = replace(scaled_settings, series=None)
    elif scaled_settings.solver == "markov" and inputs.width != units.width:
        raise InputError(
            f'solver="markov" takes X of one column, got {inputs.width}: leave out constant columns'
        )
    start = default_start if settings.kernel is None else automatic_start
    begin = start(units, latent_scale, linear=settings.linear)
    thetas = ranks.thetas if ranks is not None and screened is None else ()
    begins = [replace(begin, thetas=(end,)) for end in thetas]
    if theta is not None:
        begin = replace(begin, thetas=(theta,))
    begins += [begin] * (len(processes) - len(begins))
    scaled = [replace(data, inputs=view.scaled) for data in processes]
    fits = [fit.moved(view.of_features) for fit in _trained(scaled, begins, scaled_settings, rng)]
    if ranks is None and screened is None:
        return fits, None
    stages = (() if ranks is None else ranks.stages) + (() if screened is None else screened[1])
    return fits, screened_choice(len(inputs), len(fits), view.warp, units.count, stages)


def _trained(
    processes: Sequence[Data], begins: Sequence[Start], settings: Settings, rng: np.random.Generator
) -> list[Fit]:
    by_process = numbered(settings, len(processes))
    cases = zip(processes, begins, by_process, strict=True)
    fits = [train(data, begin, process_settings, rng) for data, begin, process_settings in cases]
    remove_checkpoints(by_process)
    return fits


# --- Observed slopes

# After a fit, so many further places along each feature at most, and so many fits.
_FURTHER, _ROUNDS = 20, 4


def _fit_with_slopes(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    theta: Array | None,
) -> list[Fit]:
    """Return fits with slopes; by default in units of each feature's spread.

    If the mean has a wrong slope somewhere after a fit, slopes there are added and the fit repeats.
    """
    if isinstance(settings.kernel, Kernel):
        begin = given_start(settings.kernel, settings.search.priors, processes[0].learn)
        return [_settled(data, begin, settings, rng) for data in processes]
    fits = []
    for data in processes:
        assert data.slopes is not None
        weights = None if data.weights is None else data.weights[: len(data.X)]
        units = Units.of(data.X, weights)
        begin = (default_start if settings.kernel is None else automatic_start)(units, latent_scale)
        if theta is not None:
            begin = replace(begin, thetas=(theta,))
        slopes = data.slopes.scaled(units)
        assert data.scale is not None
        scale = slopes.scales(len(data.X), data.scale[: len(data.X)])
        inputs = data.inputs.mapped(units.scaled, units.width)
        scaled = replace(data, inputs=inputs, slopes=slopes, scale=scale)
        fit = _settled(scaled, begin, settings, rng)
        assert fit.slopes is not None
        more = fit.slopes.unscaled(units, data.slopes)
        fits.append(replace(fit, kernel=units.kernel_of_features(fit.kernel), slopes=more))
    return fits


def _settled(data: Data, begin: Start, settings: Settings, rng: np.random.Generator) -> Fit:
    """Fit, and fit again with more slopes where the mean has the wrong slope."""
    fit, places = train(data, begin, settings, rng), _places(data.X)
    for attempts_left in range(_ROUNDS, -1, -1):
        wrong = _wrong(fit, data, places)
        if not any(len(rows) for rows in wrong.values()):
            break
        if not attempts_left:
            warn(
                "the function still has slopes of the wrong sign at "
                f"{max(map(len, wrong.values()))} of {len(places)} places, so the rows contradict "
                "monotone: leave the feature out, or reverse its direction",
                ConvergenceWarning,
            )
            break
        for (k, sign, times), rows in wrong.items():
            chosen = rows[spread_rows(rows, _FURTHER)] if len(rows) else rows
            unit = np.ones(len(chosen))
            data = and_slopes(
                data, Slopes(chosen, np.full(len(chosen), k), times * unit), sign * unit
            )
        start = () if fit.optimum is None else (fit.optimum.theta,)
        fit = train(data, Start(fit.kernel, _prior(begin, fit), start), settings, rng)
    return replace(fit, slopes=data.slopes)


def _wrong(fit: Fit, data: Data, places: Array) -> dict[tuple[int, float, float], Array]:
    """Return points at which the mean has a wrong slope, by feature, sign and scale."""
    assert data.slopes is not None
    assert data.scale is not None
    slopes, signs, places_by_key = data.slopes, data.y[len(data.X) :], {}
    weights = data.scale * solution_of(fit.posterior).kept.weights
    for k in np.unique(slopes.feature):
        first = int(np.argmax(slopes.feature == k))
        at = DerivativeRows(places, np.full(len(places), k))
        mean = covariance(fit.kernel, at, slopes.asked(data.X)) @ weights
        key = int(k), float(signs[first]), float(slopes.times[first])
        places_by_key[key] = places[signs[first] * mean < 0.0]
    return places_by_key


def _prior(begin: Start, fit: Fit) -> Priors | LogNormal | None:
    """Return the prior of a fitted kernel's parameters, which may have become ARD."""
    prior = begin.log_prior
    if not isinstance(prior, LogNormal) or begin.kernel.n_dims == fit.kernel.n_dims:
        return prior
    return replace(prior, mean=prior.mean[:-1], deviation=prior.deviation[:-1])


def _places(X: Array) -> Array:
    """Return the rows and 256 points of the box that they span, where slopes are checked."""
    unit_points = qmc.Sobol(X.shape[1], seed=0).random_base2(8)
    low, high = X.min(axis=0), X.max(axis=0)
    return np.vstack([X, low + unit_points * (high - low)])


def spread_rows(X: Array, count: int) -> NDArray[np.intp]:
    """Return `count` distinct rows, each the farthest from the earlier ones, from the middle on."""
    distance = ((X - X.mean(axis=0)) ** 2).sum(axis=1)
    rows = [int(np.argmin(distance))]
    distance = ((X - X[rows[0]]) ** 2).sum(axis=1)
    while len(rows) < count and distance.max() > 0.0:
        rows.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((X - X[rows[-1]]) ** 2).sum(axis=1))
    return np.array(rows)
