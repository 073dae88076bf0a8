"""Starting values and bounds of likelihood parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.base import BaseEstimator

from qpruntime._typing import Array, Bounds
from qpruntime._validation import number, shown
from qpruntime.errors import InputError, NumericalError
from qpruntime.learning.options import search_of
from qpruntime.likelihoods import Likelihood, get
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many

__all__ = [
    "bounds_of",
    "learnt_between",
    "learnt_by_name",
    "mean_and_spread",
    "median",
    "noise_of",
    "robust_std",
]

# --- Student-t noise -----------------------------------------------------------------------------

# The median absolute deviation of a normal is its standard deviation over this.
_MAD = 1.4826022185056018


def noise_of(
    model: BaseEstimator, spread: float, unit: float
) -> tuple[Likelihood, dict[str, tuple[float, float]]]:
    """Return the likelihood that a fit begins with, and between what its parameters are learnt.

    Both in `unit`; `spread` is the robust standard deviation of the targets.
    """
    bounds_by_name = bounds_of(model.noise_bounds)
    start = bounds_by_name.get("start")
    default = get("student-t")
    scale = default.default_start("scale", spread) if start is None else start
    scale_bounds = bounds_by_name.get("scale")
    if scale_bounds is None:
        scale_bounds = default.parameter_range("scale").around(scale, spread)
    learn = {}
    for name, start, bounds, of in (
        ("nu", model.nu, bounds_by_name.get("nu", "fixed"), 1.0),
        ("scale", scale, scale_bounds, unit),
    ):
        if not (isinstance(bounds, str) and bounds == "fixed"):
            value = number(start, name, above=0.0) / of
            learn[name] = _between("noise_bounds", default, name, value, bounds, of)
    for name, bounds in bounds_by_name.items():
        if name in learn and bounds is not None and search_of(model.optimize) is None:
            raise InputError(
                f"noise_bounds of {name} cannot act with optimize=False: leave one of the two out"
            )
    return get("student-t", nu=model.nu, scale=number(scale, "scale", above=0.0) / unit), learn


def bounds_of(option: object) -> Mapping[str, Any]:
    """Return the argument ``noise_bounds=``, checked: bounds of nu and scale, and its start."""
    if option is None:
        return {}
    if not isinstance(option, Mapping) or set(option) - {"nu", "scale", "start"}:
        raise InputError(
            'noise_bounds must be None or a dict of "nu" and "scale", such as {"nu": (1.0, 50.0)}, '
            f'and of "start", a scale, got {shown(option)}'
        )
    return option


def median(y: Array, weights: Array | None) -> float:
    """Return the median, in which whole weights count as repeated targets do."""
    if weights is None:
        return float(np.median(y))
    order = np.argsort(y)
    below = np.cumsum(_scaled(weights)[order])
    half = 0.5 * below[-1]
    # The middle is between two targets where exactly half the weight is below.
    middle = [np.searchsorted(below, half, side=side) for side in ("left", "right")]
    return float(y[order[middle]].mean())


def _scaled(weights: Array) -> Array:
    """Scale weights by a power of 2, without rounding, so that their sums do not overflow."""
    return np.ldexp(weights, -int(np.frexp(weights.max())[1]))


def robust_std(y: Array, weights: Array | None) -> float:
    """Return 1.48 median absolute deviations; the standard deviation, or 1, if that is 0."""
    spread = _MAD * median(np.abs(y - median(y, weights)), weights)
    if not spread > 0.0:
        share = None if weights is None else _scaled(weights)
        spread = float(np.sqrt(np.average((y - np.average(y, weights=share)) ** 2, weights=share)))
    return spread if spread > 0.0 else 1.0


# --- Prior mean and spread of the latent function ------------------------------------------------

# Rows that are looked at, evaluations at most, and how far spreads may go from the best of a few.
_ROWS, _EVALUATIONS, _SPREAD_FACTOR = 150, 60, 5.0
_SPREADS = (0.3, 1.0, 3.0)
_FAILED = 1e100


def mean_and_spread(
    projector: Projector, y: Array, weights: Array | None, shift: Array | float = 0.0
) -> tuple[float, float]:
    """Return the most likely mean and standard deviation of latent values without a kernel.

    Parameters
    ----------
    projector : Projector
        Of EP; with the rows of observations of several numbers.
    y : ndarray, shape (N,)
        As kernels take them.
    weights : ndarray, shape (N,), or None
    shift : float or ndarray, shape (N,)
        Added to latent values, as logarithms of exposures.
    """
    sampled = np.random.default_rng(0).permutation(len(y))[:_ROWS]
    offsets = np.broadcast_to(shift, y.shape)[sampled]
    sampled_y, shares = y[sampled], np.ones(len(sampled)) if weights is None else weights[sampled]

    def loss(place: Array) -> float:
        """Return minus the log likelihood of a normal f with this mean and log deviation."""
        mu, log_spread = place
        if not (abs(mu) < 1e100 and abs(log_spread) < 200.0):
            return _FAILED
        sigma = np.full(len(sampled_y), math.exp(log_spread))
        args = projector.likelihood, projector.source, mu + offsets, sigma, sampled_y
        try:
            log_z = project_many(*args).log_z
        except NumericalError as error:
            if error.__cause__ is not None:  # a user's own exception
                raise
            return _FAILED
        negative_log_z = -float(shares @ log_z)
        return negative_log_z if math.isfinite(negative_log_z) else _FAILED

    places = _places(projector, sampled_y if np.ndim(shift) == 0 else sampled_y / np.exp(offsets))
    tried = [np.array([mu, math.log(s)]) for mu in places for s in _SPREADS]
    spread = 0.0 if projector.likelihood.rows is not None else float(np.std(sampled_y))
    if spread > 0.0 and not projector.likelihood.scale_family:
        tried += [np.array([float(np.median(sampled_y)), math.log(spread)])]
    begin = min(tried, key=loss)
    simplex = begin + np.array([[0.0, 0.0], [0.5 * math.exp(begin[1]), 0.0], [0.0, 0.5]])
    options = {"maxfev": _EVALUATIONS, "initial_simplex": simplex, "fatol": 1e-3, "xatol": 1e-3}
    end = minimize(loss, begin, method="Nelder-Mead", options=options).x
    low, high = begin[1] - math.log(_SPREAD_FACTOR), begin[1] + math.log(_SPREAD_FACTOR)
    return float(end[0]), math.exp(float(np.clip(end[1], low, high)))


def _places(projector: Projector, y: Array) -> list[float]:
    """Return means of f that observations suggest under the usual links."""
    rows = projector.likelihood.rows
    values = y if rows is None else rows[y.astype(int)][:, 0]
    values = values[np.isfinite(values)]
    middle = float(np.median(values)) if values.size else 0.0
    if projector.likelihood.scale_family and middle > 0.0:
        # Alone of all it moves with the unit of y as f does.
        return [math.log(middle)]
    places = [0.0, middle]
    if middle > 0.0:
        places += [math.log(middle), math.sqrt(middle)]
    if 0.0 < middle < 1.0:
        places.append(math.log(middle / (1.0 - middle)))
    return places


# --- Learnt parameters and their bounds ----------------------------------------------------------


def learnt_between(
    model: BaseEstimator, likelihood: Likelihood, units: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the bounds of parameters that are learnt, by name.

    Parameters
    ----------
    model : estimator
        Its ``parameter_bounds``: None, or a dict of pairs and of "fixed" by names of parameters.
    likelihood : Likelihood
        With what they begin with.
    units : mapping
        Of parameters that users give in other units than the fit has: how many of the user's
        units one of the fit's is.

    Raises
    ------
    InputError
        If bounds are of no use.
    """
    parameter_bounds = model.parameter_bounds
    known = tuple(likelihood.parameters)
    if parameter_bounds is None:
        parameter_bounds = {}
    if not isinstance(parameter_bounds, Mapping) or set(parameter_bounds) - set(known):
        names = ", ".join(known) or "it has none"
        raise InputError(
            f"parameter_bounds must be None or a dict by parameters of {likelihood.name!r}, which "
            f"are: {names}; got {shown(parameter_bounds)}"
        )
    bounds_by_name = {}
    for name, value in likelihood.parameters.items():
        bounds = parameter_bounds.get(name)
        if isinstance(bounds, str) and bounds == "fixed":
            continue
        if not value > 0.0:
            if bounds is not None:
                raise InputError(
                    f"{name} of likelihood {likelihood.name!r} is {value:g} and must be positive, "
                    "because its logarithm is learnt: write log_prob in its exponential"
                )
            continue
        if bounds is not None and search_of(model.optimize) is None:
            raise InputError(
                f"parameter_bounds of {name} cannot act with optimize=False: leave one of the two "
                "out"
            )
        if bounds is None:
            bounds_by_name[name] = likelihood.default_bounds(name)
        else:
            unit = units.get(name, 1.0)
            bounds_by_name[name] = _between(
                "parameter_bounds", likelihood, name, value, bounds, unit
            )
    return bounds_by_name


def learnt_by_name(model: BaseEstimator, likelihood: Likelihood) -> dict[str, tuple[float, float]]:
    """Return bounds of the parameters learnt because the likelihood is named without numbers.

    None are if its ``optimize`` is False, or if numbers stand beside the name.
    """
    bare = isinstance(model.likelihood, str) and "(" not in model.likelihood
    if not bare or search_of(model.optimize) is None:
        return {}
    return {name: likelihood.default_bounds(name) for name in likelihood.parameters}


def _between(
    option: str, likelihood: Likelihood, name: str, value: float, bounds: Bounds, unit: float
) -> tuple[float, float]:
    """Return the bounds of a parameter that `option` gives, in `unit`, once they are checked."""
    try:
        low, high = (number(v, "a bound", above=0.0) / unit for v in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{option} of {name} must be two positive numbers or 'fixed', got {shown(bounds)}"
        ) from error
    if not low <= value <= high:
        raise InputError(
            f"{name} is {value * unit:g}, outside its {option} {low * unit:g} to "
            f"{high * unit:g}: start inside them"
        )
    least, most = likelihood.limits.get(name, (0.0, np.inf))
    # The limits leave room for the differences that slopes are made of.
    return max(low, least), min(high, most)
