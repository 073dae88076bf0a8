"""Whether a kernel that a user gives can learn from its data, and a start from the data if not.

A covariance matrix that is diagonal, or constant, learns nothing from features whatever the labels:
gradients are zero, and an optimiser stays where it is, content. What is found here is worded here;
`qpruntime.learning.train` decides what to do. Nothing here knows labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.gaussian_process.kernels import ExpSineSquared, Hyperparameter, Kernel

from qpruntime._typing import Array

__all__ = ["MOVED", "at_bounds", "degenerate", "start_from", "unmoved", "unrelated"]

#: Correlations and their differences below this are none.
_NONE = 1e-6
#: A variance of all latent values below this is none.
_SMALL = 1e-4
# K counts as diagonal if no more than this share of the rows is related to any other: pairs of rows
# that happen to be close, or are the same, teach no length-scale.
_RELATED = 0.1
# Rows that are looked at first; a kernel that relates them all, and not all alike, is sound.
_PROBES = 16
# Of so many rows distances are taken at most, once something is wrong.
_MEASURED = 500
# Of more rows K is not looked at: it would not fit into memory.
_MOST = 10_000
# Slopes of the objective below this hold nothing back: beyond the bound it gains about as much, as
# for a length-scale of 1e5 of a feature that does not matter.
_HELD = 1e-3
#: How far parameters are moved, as logarithms, to see whether an objective is flat.
MOVED = 0.5


@dataclass(frozen=True)
class _Scale:
    """A length-scale of a kernel: its parameter, and what the data have instead, shape (n,)."""

    parameter: Hyperparameter
    value: Array
    found: Array


def degenerate(kernel: Any, X: Array) -> str | None:
    """Return "diagonal" or "constant" if that is what K is, to 1e-6; None if it is sound.

    White noise is left out, so that it hides nothing. A kernel with a sound K costs 16 of its rows.
    """
    n = len(X)
    if not 2 <= n <= _MOST:
        return None
    rows = np.unique(np.linspace(0, n - 1, _PROBES).astype(int))
    deviation = np.sqrt(np.maximum(kernel.diag(X), 0.0))
    related, alike = _look(kernel(X[rows], X), rows, deviation)
    if related.all() and not alike:
        return None
    K = kernel(X, X)
    if not np.isfinite(K).all():
        return None  # inference says what is wrong with it
    related, alike = _look(K, np.arange(n), deviation)
    if related.mean() <= _RELATED:
        return "diagonal"
    return "constant" if alike else None


def _look(K: Array, rows: NDArray[np.intp], deviation: Array) -> tuple[NDArray[np.bool_], bool]:
    """Which rows are related to any other, and whether all are to all alike; K of `rows` by all."""
    # A matrix between two sets of rows has no white noise, on its diagonal neither.
    alike = bool(np.ptp(K) <= _NONE * np.abs(K).max())
    K = np.array(K, dtype=float)
    K[np.arange(len(rows)), rows] = 0.0
    strong = np.abs(K) > _NONE * (deviation[rows, None] * deviation)
    return np.any(strong, axis=1), alike


def unmoved(kernel: Any, X: Array) -> bool:
    """Whether latent values have hardly any variance, so that no label can move them."""
    return bool(np.mean(kernel.diag(X)) < _SMALL)


def start_from(kernel: Any, X: Array) -> Array | None:
    """Log parameters with the length-scales of the data, within the kernel's bounds.

    Where the variance of the latent values is below 1e-4, constants start at 1 as well. None if
    there is nothing to change, as where everything is fixed.
    """
    scales = {s.parameter.name: s.found for s in _scales(kernel, X)}
    small = unmoved(kernel, X)
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


def at_bounds(kernel: Any, X: Array, theta: Array, slope: Array, objective: str) -> list[str]:
    """Say which kernel parameters ended at a bound that the objective would pass.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    theta, slope : ndarray, shape (p,) or more
        Where the optimiser ended, and the gradient of the objective there; the kernel's come first.
    objective : str
        Its name.
    """
    low, high = kernel.bounds.reshape(-1, 2).T
    theta, slope = theta[: low.size], slope[: low.size]
    # Rounding takes a parameter off its bound by less than this.
    near = 1e-10 * (1.0 + np.abs(theta))
    below = (theta <= low + near) & (slope < -_HELD)
    above = (theta >= high - near) & (slope > _HELD)
    if not (below | above).any():
        return []
    texts, first = [], 0
    scales = {s.parameter.name: s.found for s in _scales(kernel, X)}
    for parameter in kernel.hyperparameters:
        if parameter.fixed:
            continue
        own = slice(first, first + parameter.n_elements)
        first += parameter.n_elements
        for side, hit, bound in (("lower", below, low), ("upper", above, high)):
            # Levels that are all alike, w = 0, are the end of the model and not of its bounds.
            alike = side == "lower" and parameter.name.endswith("dissimilarity")
            if alike or not hit[own].any():
                continue
            held = np.flatnonzero(hit[own])
            which = "" if parameter.n_elements == 1 else f"[{', '.join(map(str, held))}]"
            text = (
                f"{parameter.name}{which} ended at its {side} bound {_span(np.exp(bound[own]))}, "
                f"and the {objective} rises beyond: widen the bound, or fix the parameter if it is "
                "meant"
            )
            if parameter.name in scales:
                text += f"; rows are {_span(scales[parameter.name][held])} apart in the median"
            texts.append(text)
    return texts


def unrelated(kernel: Any, X: Array, shape: str | None, tried: str) -> str:
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
        f"{_span(s.found)} apart in the median"
        for s in scales
    ]
    if scales:
        remedy = f"start it at {_span(scales[0].found)}"
    elif (distance := _distance(X)) is not None:
        parts = ["it has no length-scale"]
        remedy = f"add a part that has one, as RBF({distance:.3g})"
    else:
        parts = ["all rows are equal"]
        remedy = "check the features"
    values = f", with latent variance {np.mean(kernel.diag(X)):.3g}" if unmoved(kernel, X) else ""
    return (
        f"{what}{values} ({'; '.join(parts)}){tried}: {remedy}, scale the features, or leave "
        "kernel=None"
    )


def _scales(kernel: Any, X: Array) -> Iterator[_Scale]:
    """Length-scales of all parts, as the data have them; none where all rows are equal."""
    parameters = kernel.get_params()
    for parameter in kernel.hyperparameters:
        if not parameter.name.endswith("length_scale"):
            continue
        part: Kernel = parameters.get(parameter.name[: -len("__length_scale")], kernel)
        value = np.atleast_1d(np.asarray(parameters[parameter.name], dtype=float))
        if isinstance(part, ExpSineSquared):
            # In units of the sine: 1, whatever the distances.
            yield _Scale(parameter, value, np.ones(1))
        elif value.size == 1 and (distance := _distance(X)) is not None:
            yield _Scale(parameter, value, np.array([distance]))
        elif value.size == X.shape[1] > 1:
            yield _Scale(parameter, value, _distances_by_feature(X, value))


def _distance(X: Array) -> float | None:
    """Median distance between rows that differ; None if none do."""
    some = X[np.unique(np.linspace(0, len(X) - 1, _MEASURED).astype(int))]
    distances = pdist(some)
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if distances.size else None


def _distances_by_feature(X: Array, otherwise: Array) -> Array:
    """Median distance in each feature times the root of their number; kept where one is constant.

    So the scaled distance of two rows is about 1, as with one length-scale.
    """
    found = [_distance(column[:, None]) for column in X.T]
    varying = sum(d is not None for d in found)
    return np.array(
        [o if d is None else d * varying**0.5 for d, o in zip(found, otherwise, strict=True)]
    )


def _limits(parameter: Hyperparameter) -> str:
    """Words on how far a parameter may go."""
    if parameter.fixed:
        return " (fixed)"
    low, high = np.atleast_2d(parameter.bounds).T
    return f" (bounds {low.min():.3g} to {high.max():.3g})"


def _span(values: Array) -> str:
    """One number, or from the least to the greatest."""
    low, high = f"{np.min(values):.3g}", f"{np.max(values):.3g}"
    return low if low == high else f"{low} to {high}"
