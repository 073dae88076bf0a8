"""Checks of a user's kernel, and starting values from the data if it cannot learn.

A covariance matrix that is diagonal or constant learns nothing from the features, whatever the
labels are: gradients are zero, and the optimiser stays at its start without complaint. This module
finds and describes such kernels from the features alone; `qpruntime.learning.train` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.gaussian_process.kernels import ExpSineSquared, Hyperparameter, Kernel

from qpruntime._typing import Array

__all__ = ["FLATNESS_STEP", "at_bounds", "degenerate", "has_no_variance", "start_from", "unrelated"]

#: Correlations, and differences of correlations, below this count as zero.
_ZERO_CORRELATION = 1e-6
#: A variance of all latent values below this counts as zero.
_ZERO_VARIANCE = 1e-4
# K counts as diagonal if no more than this share of the rows is related to any other. Pairs of rows
# that happen to be close, or are equal, determine no length-scale.
_DIAGONAL_SHARE = 0.1
# Number of rows that are tested first. A kernel that relates them all, but not all alike, is sound.
_PROBE_ROWS = 16
# Largest number of rows whose distances are computed once a kernel is found unsound.
_DISTANCE_ROWS = 500
# Largest number of rows whose covariance matrix is computed for the checks.
_MAX_CHECKED_ROWS = 10_000
# Slopes of the objective below this do not count as being held at a bound: the objective gains
# about as much beyond it, as for a length-scale of 1e5 of an irrelevant feature.
_MIN_HELD_SLOPE = 1e-3
#: Change of the log parameters that tests whether an objective is flat.
FLATNESS_STEP = 0.5


@dataclass(frozen=True)
class _Scale:
    """Length-scale parameter of a kernel, its value, and the value from the data, shape (n,)."""

    parameter: Hyperparameter
    value: Array
    measured: Array


def degenerate(kernel: Kernel, X: Array) -> str | None:
    """Return "diagonal" or "constant" if that is what K is, to 1e-6; None if it is sound.

    White noise is left out, so that it hides nothing. A kernel with a sound K costs 16 of its rows.
    """
    n = len(X)
    if not 2 <= n <= _MAX_CHECKED_ROWS:
        return None
    rows = np.unique(np.linspace(0, n - 1, _PROBE_ROWS).astype(int))
    deviation = np.sqrt(np.maximum(kernel.diag(X), 0.0))
    related, alike = _related_rows(kernel(X[rows], X), rows, deviation)
    if related.all() and not alike:
        return None
    K = kernel(X, X)
    if not np.isfinite(K).all():
        return None  # inference says what is wrong with it
    related, alike = _related_rows(K, np.arange(n), deviation)
    if related.mean() <= _DIAGONAL_SHARE:
        return "diagonal"
    return "constant" if alike else None


def _related_rows(
    K: Array, rows: NDArray[np.intp], deviation: Array
) -> tuple[NDArray[np.bool_], bool]:
    """Return which rows are related to any other row, and whether all rows are alike.

    K is the covariance of `rows` with all rows.
    """
    # A matrix between two sets of rows has no white noise, not even on its diagonal.
    alike = bool(np.ptp(K) <= _ZERO_CORRELATION * np.abs(K).max())
    K = np.array(K, dtype=float)
    K[np.arange(len(rows)), rows] = 0.0
    strong = np.abs(K) > _ZERO_CORRELATION * (deviation[rows, None] * deviation)
    return np.any(strong, axis=1), alike


def has_no_variance(kernel: Kernel, X: Array) -> bool:
    """Decide whether the latent values have hardly any variance, so that no label can move them."""
    return bool(np.mean(kernel.diag(X)) < _ZERO_VARIANCE)


def start_from(kernel: Kernel, X: Array) -> Array | None:
    """Return log parameters with length-scales from the data, within the kernel's bounds.

    If the variance of the latent values is below 1e-4, constants start at 1 as well. Return None if
    nothing changes, for example because all parameters are fixed.
    """
    scales = {s.parameter.name: s.measured for s in _scales(kernel, X)}
    small = has_no_variance(kernel, X)
    logs = []
    parameters = kernel.get_params()
    for parameter in kernel.hyperparameters:
        if parameter.fixed:
            continue
        value = np.atleast_1d(parameters[parameter.name])
        if parameter.name in scales:
            value = scales[parameter.name]
        elif small and parameter.name.endswith("constant_value"):
            value = np.ones(1)
        logs.append(np.log(value))
    if not logs:
        return None
    low, high = kernel.bounds.T
    theta: Array = np.clip(np.concatenate(logs), low, high)
    return None if np.allclose(theta, kernel.theta, rtol=0.0, atol=1e-5) else theta


def at_bounds(kernel: Kernel, X: Array, theta: Array, slope: Array, objective: str) -> list[str]:
    """Describe the kernel parameters that ended at a bound beyond which the objective rises.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    theta, slope : ndarray, shape (p,) or more
        Optimum and the gradient of the objective there; those of the kernel come first.
    objective : str
        Name of the objective.
    """
    low, high = kernel.bounds.reshape(-1, 2).T
    theta, slope = theta[: low.size], slope[: low.size]
    # Rounding takes a parameter off its bound by less than this.
    near = 1e-10 * (1.0 + np.abs(theta))
    below = (theta <= low + near) & (slope < -_MIN_HELD_SLOPE)
    above = (theta >= high - near) & (slope > _MIN_HELD_SLOPE)
    if not (below | above).any():
        return []
    texts, first = [], 0
    scales = {s.parameter.name: s.measured for s in _scales(kernel, X)}
    for parameter in kernel.hyperparameters:
        if parameter.fixed:
            continue
        part = slice(first, first + parameter.n_elements)
        first += parameter.n_elements
        for side, hit, bound in (("lower", below, low), ("upper", above, high)):
            # Levels that are all alike, w = 0, are a limit of the model and not of its bounds.
            alike = side == "lower" and parameter.name.endswith("dissimilarity")
            if alike or not hit[part].any():
                continue
            at_bound = np.flatnonzero(hit[part])
            label = "" if parameter.n_elements == 1 else f"[{', '.join(map(str, at_bound))}]"
            text = (
                f"{parameter.name}{label} ended at its {side} bound {_span(np.exp(bound[part]))}, "
                f"and the {objective} rises beyond: widen the bound, or fix the parameter if it is "
                "meant"
            )
            if parameter.name in scales:
                text += f"; rows are {_span(scales[parameter.name][at_bound])} apart in the median"
            texts.append(text)
    return texts


def unrelated(kernel: Kernel, X: Array, shape: str | None, tried: str) -> str:
    """Say what is wrong with a kernel, and what its length-scales could be.

    Parameters
    ----------
    kernel : scikit-learn kernel
        At the parameters that are wrong.
    X : ndarray, shape (N, d)
    shape : {"diagonal", "constant", None}
        From `degenerate`; None if the objective does not change with the parameters.
    tried : str
        What was done about it.
    """
    if shape == "diagonal":
        what = "the kernel relates no rows: its matrix is diagonal to 1e-06"
    elif shape == "constant":
        what = "the kernel tells no rows apart: its matrix is constant to 1e-06"
    else:
        what = "the fit ended where it began: the objective does not change with the kernel"
    scales = list(_scales(kernel, X))
    parts = [
        f"{s.parameter.name} {_span(s.value)}{_limits(s.parameter)} where rows are "
        f"{_span(s.measured)} apart in the median"
        for s in scales
    ]
    if scales:
        remedy = f"start it at {_span(scales[0].measured)}"
    elif (distance := _distance(X)) is not None:
        parts = ["it has no length-scale"]
        remedy = f"add a part that has one, as RBF({distance:.3g})"
    else:
        parts = ["all rows are equal"]
        remedy = "check the features"
    values = (
        f", with latent variance {np.mean(kernel.diag(X)):.3g}"
        if has_no_variance(kernel, X)
        else ""
    )
    return (
        f"{what}{values} ({'; '.join(parts)}){tried}: {remedy}, scale the features, or leave "
        "kernel=None"
    )


def _scales(kernel: Kernel, X: Array) -> Iterator[_Scale]:
    """Yield the length-scales of all parts, with the data's; none if all rows are equal."""
    parameters = kernel.get_params()
    for parameter in kernel.hyperparameters:
        if not parameter.name.endswith("length_scale"):
            continue
        part: Kernel = parameters.get(parameter.name[: -len("__length_scale")], kernel)
        value = np.atleast_1d(np.asarray(parameters[parameter.name], dtype=float))
        if isinstance(part, ExpSineSquared):
            # The length-scale is in units of the sine, so it is 1 for any distances.
            yield _Scale(parameter, value, np.ones(1))
        elif value.size == 1 and (distance := _distance(X)) is not None:
            yield _Scale(parameter, value, np.array([distance]))
        elif value.size == X.shape[1] > 1:
            yield _Scale(parameter, value, _distances_by_feature(X, value))


def _distance(X: Array) -> float | None:
    """Return the median distance between distinct rows, or None if there are none."""
    sample = X[np.unique(np.linspace(0, len(X) - 1, _DISTANCE_ROWS).astype(int))]
    distances = pdist(sample)
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if distances.size else None


def _distances_by_feature(X: Array, current: Array) -> Array:
    """Return the median distance in each feature times the root of their number.

    The scaled distance of two rows is then about 1, as with one length-scale. A constant feature
    keeps its value.
    """
    distances = [_distance(column[:, None]) for column in X.T]
    varying = sum(d is not None for d in distances)
    return np.array(
        [o if d is None else d * varying**0.5 for d, o in zip(distances, current, strict=True)]
    )


def _limits(parameter: Hyperparameter) -> str:
    """Describe how far a parameter may go."""
    if parameter.fixed:
        return " (fixed)"
    low, high = np.atleast_2d(parameter.bounds).T
    return f" (bounds {low.min():.3g} to {high.max():.3g})"


def _span(values: Array) -> str:
    """Format one number, or the least and the greatest."""
    low, high = f"{np.min(values):.3g}", f"{np.max(values):.3g}"
    return low if low == high else f"{low} to {high}"
