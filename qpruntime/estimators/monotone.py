"""`monotone=` of the estimators: which features, at which rows slopes are observed, and the fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc
from sklearn.base import is_classifier
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.posterior import solution_of
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance, require_slopes
from qpruntime.kernels.scaling import Units
from qpruntime.learning.default_kernel import Start, automatic_start, default_start, given_start
from qpruntime.learning.monotone_solver import and_slopes, with_slopes
from qpruntime.learning.settings import Data, Settings, Slopes
from qpruntime.learning.train import Fit, train

__all__ = ["monotone_data", "one_direction", "train_monotone"]

# Rows at which the slope along each feature is observed, at most.
_ROWS = 40
# After a fit, so many further places along each at most, and so many fits.
_FURTHER, _ROUNDS = 20, 4
# Scale of the probit of a slope, for features in units of their spread.
_SHARP = 1e-3


def monotone_data(
    model: Any, processes: Sequence[Data], settings: Settings
) -> tuple[list[Data], Settings, Slopes | None]:
    """Return data and settings of an estimator, with the slopes of its `monotone` option.

    Raises
    ------
    InputError
        If ``model.monotone`` is not usable, or another option does not support slopes.
    """
    directions = getattr(model, "monotone", None)
    if directions is None or (isinstance(directions, Mapping) and not directions):
        return list(processes), settings, None
    if not isinstance(directions, Mapping):
        raise InputError(
            'monotone must be a mapping of features to +1 or -1, {"age": +1}; '
            f"got {shown(directions)}"
        )
    if settings.sparse is not None:
        raise InputError("monotone needs the dense engine: use inducing=None")
    if settings.solver == "markov":
        raise InputError('monotone needs covariance matrices: use solver="dense"')
    if model.prior_mean is not None:
        raise InputError(
            "monotone constrains the Gaussian process alone, and prior_mean may still fall: "
            "leave one out, or constrain boosting by its monotonic_cst"
        )
    data = processes[0]
    if data.projector.method == "wp":
        raise InputError('monotone takes method "qp", "ep" or "vb"')
    labels = is_classifier(model)
    if not labels:
        _of_numbers(model, settings, data)
    if settings.given:
        require_slopes(settings.kernel)
    X = np.asarray(data.X, dtype=float)
    units = Units.of(X, data.weights)
    slopes, signs = _slopes(X, units, _directions(model, directions, units))
    settings = replace(settings, inducing=None, solver="dense")
    return [with_slopes(replace(data, X=X, own_signs=labels), slopes, signs)], settings, slopes


def _of_numbers(model: Any, settings: Settings, data: Data) -> None:
    """Raise `InputError` for what has no answer where values and slopes differ in likelihood."""
    if data.projector.likelihood.even:
        raise InputError(
            'monotone constrains f, and with link="square" the rate rises with |f|: use link="exp"'
        )
    if settings.search.objective == "loo":
        raise InputError('monotone for counts and numbers is learnt by evidence: leave out "loo"')
    if model.correction is not None:
        raise InputError("monotone for counts and numbers has no corrections: use correction=None")
    if not (model.table is None or (isinstance(model.table, str) and model.table == "exact")):
        raise InputError("monotone for counts and numbers takes no table: use table=None")


def one_direction(model: Any, count: int) -> None:
    """Raise `InputError` if a classifier of more than two classes asks for a direction."""
    if model.monotone and count > 2:
        raise InputError(f"monotone needs two classes, got {count}: join classes, or leave it out")


def train_monotone(
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
        scaled = replace(data, X=units.scaled(data.X), slopes=slopes)
        assert data.scale is not None
        scaled = replace(scaled, scale=slopes.scales(len(data.X), data.scale[: len(data.X)]))
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


def _prior(begin: Start, fit: Fit) -> Any:
    """Return the prior of a fitted kernel's parameters, which may have become ARD."""
    prior = begin.log_prior
    if prior is None or begin.kernel.n_dims == fit.kernel.n_dims:
        return prior
    return replace(prior, mean=prior.mean[:-1], deviation=prior.deviation[:-1])


def _places(X: Array) -> Array:
    """Return the rows and 256 points of the box that they span, where slopes are checked."""
    unit_points = qmc.Sobol(X.shape[1], seed=0).random_base2(8)
    low, high = X.min(axis=0), X.max(axis=0)
    return np.vstack([X, low + unit_points * (high - low)])


def _directions(model: Any, monotone: Mapping[Any, Any], units: Units) -> dict[int, float]:
    """Return directions by the number of the feature."""
    names = list(getattr(model, "feature_names_in_", ()))
    count = units.spread.size
    directions: dict[int, float] = {}
    for key, value in monotone.items():
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or float(value) not in (1.0, -1.0):
            raise InputError(
                f"monotone must be +1 for a feature along which the function rises, or -1; got "
                f"{shown(value)} for {shown(key)}"
            )
        if isinstance(key, str):
            if key not in names:
                have = f"it has {shown(names)}" if names else "X had no names, use numbers"
                raise InputError(
                    f"monotone names the feature {shown(key)}, which X does not have: {have}"
                )
            k = names.index(key)
        elif isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < count:
            k = int(key)
        else:
            raise InputError(
                f"monotone must name features, or number them from 0 to {count - 1}; "
                f"got {shown(key)}"
            )
        if not units.spread[k] > 0.0:
            raise InputError(
                f"monotone names the feature {shown(key)}, which is the same in every row: "
                "leave it out"
            )
        if directions.setdefault(k, float(value)) != float(value):
            raise InputError(f"monotone has two directions for feature {k}: leave one out")
    return directions


def _slopes(X: Array, units: Units, directions: dict[int, float]) -> tuple[Slopes, Array]:
    """Return slopes along features at rows far from each other, and their signs."""
    rows = spread_rows(units.scaled(X), _ROWS)
    feature = np.repeat(list(directions), len(rows)).astype(np.intp)
    signs = np.repeat([*directions.values()], len(rows))
    where = np.tile(X[rows], (len(directions), 1))
    return Slopes(where, feature, units.spread[feature] / _SHARP), signs


def spread_rows(X: Array, count: int) -> NDArray[np.intp]:
    """Return `count` distinct rows, each the farthest from the earlier ones, from the middle on."""
    distance = ((X - X.mean(axis=0)) ** 2).sum(axis=1)
    rows = [int(np.argmin(distance))]
    distance = ((X - X[rows[0]]) ** 2).sum(axis=1)
    while len(rows) < count and distance.max() > 0.0:
        rows.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((X - X[rows[-1]]) ** 2).sum(axis=1))
    return np.array(rows)
