"""Student-t noise of a robust regression: the spread of the targets, and where noise begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.learning.settings import search_of
from qpruntime.likelihoods import Likelihood, get
from qpruntime.validation import number, shown

__all__ = ["bounds_of", "median", "noise_of", "robust_std"]

# The median absolute deviation of a normal is its standard deviation over this.
_MAD = 1.4826022185056018
# Where the scale starts and how far it may go, in robust standard deviations of y.
_START, _NARROWEST, _WIDEST = 0.3, 1e-5, 1e2


def noise_of(
    model: Any, spread: float, unit: float
) -> tuple[Likelihood, dict[str, tuple[float, float]]]:
    """Return the likelihood that a fit begins with, and between what its parameters are learnt.

    Both in `unit`; `spread` is the robust standard deviation of the targets.
    """
    given = bounds_of(model.noise_bounds)
    start = given.get("start")
    scale = _START * spread if start is None else start
    scale_bounds = given.get("scale")
    if scale_bounds is None:
        scale_bounds = (_NARROWEST * spread, _WIDEST * spread)
    learn = _bounds("nu", model.nu, given.get("nu", "fixed"), 1.0)
    learn |= _bounds("scale", scale, scale_bounds, unit)
    for name, bounds in given.items():
        if name in learn and bounds is not None and search_of(model.optimize) is None:
            raise InputError(
                f"noise_bounds of {name} cannot act with optimize=False: leave one of the two out"
            )
    return get("student-t", nu=model.nu, scale=_positive(scale, "scale") / unit), learn


def bounds_of(given: Any) -> Mapping[str, Any]:
    """Return what was given as ``noise_bounds=``: of nu, of the scale, and where that begins."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or set(given) - {"nu", "scale", "start"}:
        raise InputError(
            'noise_bounds must be None or a dict of "nu" and "scale", such as {"nu": (1.0, 50.0)}, '
            f'and of "start", a scale, got {shown(given)}'
        )
    return given


def _positive(value: Any, name: str) -> float:
    return number(value, name, above=0.0)


def _bounds(name: str, start: Any, bounds: Any, unit: float) -> dict[str, tuple[float, float]]:
    """Check the bounds of a parameter, and return them in `unit`; nothing if it is fixed."""
    if isinstance(bounds, str) and bounds == "fixed":
        return {}
    try:
        low, high = (_positive(v, f"noise_bounds of {name}") for v in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"noise_bounds of {name} must be two positive numbers or 'fixed', got {bounds!r}"
        ) from error
    if not low <= _positive(start, name) <= high:
        raise InputError(f"{name} is {start:g}, outside its noise_bounds {low:g} to {high:g}")
    limits = get("student-t").limits[name]
    return {name: (max(low / unit, limits[0]), min(high / unit, limits[1]))}


def median(y: Array, weights: Array | None) -> float:
    """Median, in which whole weights count as repeated targets do."""
    if weights is None:
        return float(np.median(y))
    order = np.argsort(y)
    below = np.cumsum(_scaled(weights)[order])
    half = 0.5 * below[-1]
    # The middle is between two targets where exactly half the weight is below.
    middle = [np.searchsorted(below, half, side=side) for side in ("left", "right")]
    return float(y[order[middle]].mean())


def _scaled(weights: Array) -> Array:
    """Weights whose sums do not overflow, without rounding: they times a power of 2."""
    return np.ldexp(weights, -int(np.frexp(weights.max())[1]))


def robust_std(y: Array, weights: Array | None) -> float:
    """1.48 median absolute deviations; the standard deviation, or 1, where that is 0."""
    spread = _MAD * median(np.abs(y - median(y, weights)), weights)
    if not spread > 0.0:
        share = None if weights is None else _scaled(weights)
        spread = float(np.sqrt(np.average((y - np.average(y, weights=share)) ** 2, weights=share)))
    return spread if spread > 0.0 else 1.0
