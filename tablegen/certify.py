# mypy: disable-error-code=no-untyped-def
"""Measure the error of a table by a second quadrature rule that shares nothing but the likelihood.

The table's own rule integrates phi(Phi^-1(F)); this one goes back to the formula before the
integration by parts, sigma* = int (f - mean) Phi^-1(F(f)) q(f) df, on other nodes: the centre is
shifted by a fraction of the width, steps are shorter, panels have eight points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime import likelihoods
from qpruntime.artifact import Axis, Metadata
from qpruntime.errors import NumericalError
from qpruntime.jit import call_frame, call_split, kernel
from qpruntime.special import ndtri_density
from qpruntime.wasserstein import default_frame, place

__all__ = ["TOLERANCES", "certify", "independent", "worst_nodes"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Largest relative error allowed at nodes. float32 rounds by 2^-24 = 6e-8.
TOLERANCES = {"float64": 1e-12, "float32": 1e-7}
#: Nodes on each edge, random cells, and worst places kept.
EDGE, CELLS, WORST = 49, 1000, 64

_CUT = 46.0
_STEP = 0.085
_MARCH_LIMIT = 2000
_NODES, _WEIGHTS = (tuple(a.tolist()) for a in np.polynomial.legendre.leggauss(8))


@kernel
def _log_density(split, anchor, slope, inverse, rest0, curvature0, d, y, theta):
    """log q(anchor + d) - log q(anchor); slope = (anchor - mu)/sigma^2, inverse = 1/sigma^2."""
    rest, curvature = call_split(split, anchor + d, y, theta)
    e = rest - rest0 - d * (curvature * anchor + slope) - 0.5 * d * d * (curvature + inverse)
    return e - 0.5 * (curvature - curvature0) * anchor * anchor


@kernel
def _independent(theta, has_frame, split, frame, mu, sigma, y):
    """Return sigma* by the second rule, NaN if it does not converge."""
    if has_frame:
        centre, width, refine, side = call_frame(frame, mu, sigma, y, theta)
    else:
        centre, width, refine, side = default_frame(split, mu, sigma, y, theta)
    width *= 0.81
    if side == 0.0:
        centre += 0.17 * width
    anchor = centre + side * width
    inverse = 1.0 / (sigma * sigma)
    slope = (anchor - mu) * inverse
    rest0, curvature0 = call_split(split, anchor, y, theta)
    best = -math.inf
    ends = np.zeros(2)
    for end in range(2):
        v = 0.0
        for turn in range(_MARCH_LIMIT + 1):
            d, jacobian = place(side, width, v)
            e = _log_density(split, anchor, slope, inverse, rest0, curvature0, d, y, theta)
            e += math.log(jacobian)
            best = max(best, e)
            if e < best - _CUT:
                break
            if turn == _MARCH_LIMIT or math.isnan(e):
                return math.nan
            v += 0.2 if end == 1 else -0.2
        ends[end] = v
    panels = math.ceil((ends[1] - ends[0]) / (_STEP * refine))
    h = (ends[1] - ends[0]) / panels
    mass = np.empty(panels)
    total, first = 0.0, 0.0
    for p in range(panels):
        mass[p] = 0.0
        for k in range(8):
            d, jacobian = place(side, width, ends[0] + h * (p + 0.5 + 0.5 * _NODES[k]))
            e = _log_density(split, anchor, slope, inverse, rest0, curvature0, d, y, theta)
            m = math.exp(e - best) * jacobian * _WEIGHTS[k] * 0.5 * h
            mass[p] += m
            first += m * d
        total += mass[p]
    mean = first / total
    upper = np.empty(panels)
    upper[panels - 1] = mass[panels - 1]
    for p in range(panels - 2, -1, -1):
        upper[p] = upper[p + 1] + mass[p]
    lower, star = 0.0, 0.0
    for p in range(1, panels):
        lower += mass[p - 1]
        tail = min(lower, upper[p]) / total
        if tail > 0.0:
            x = ndtri_density(tail)[1]
            if upper[p] < lower:
                x = -x
            d, jacobian = place(side, width, ends[0] + h * p)
            e = _log_density(split, anchor, slope, inverse, rest0, curvature0, d, y, theta)
            star += (d - mean) * x * math.exp(e - best) * jacobian
    # Where f falls with v (side -1), lower and upper tail have changed places.
    return abs(star) * h / total


@kernel
def _independent_points(theta, has_frame, split, frame, mu, sigma, y, out):
    for i in range(mu.size):
        out[i] = _independent(theta, has_frame, split, frame, mu[i], sigma[i], y[i])


def independent(likelihood: str, mu: Array, sigma: Array, y: Array) -> Array:
    """Integrate sigma* (a standard deviation) by the second rule; all arrays of shape (N,)."""
    theta, _, has_frame, split, _, frame = likelihoods.get(likelihood).functions()[:6]
    out = np.empty(mu.size)
    _independent_points(theta, has_frame, split, frame, mu, sigma, y, out)
    return out


@kernel
def _worst(values, first, last):
    """Return the largest relative second difference in columns first:last (-1: none), and i, j."""
    best, row, column = -1.0, 0, 0
    for i in range(1, values.shape[0] - 1):
        for j in range(max(first, 1), min(last, values.shape[1] - 1)):
            v = values[i, j]
            bend = abs(values[i - 1, j] - 2.0 * v + values[i + 1, j])
            bend += abs(values[i, j - 1] - 2.0 * v + values[i, j + 1])
            if bend > best * v:
                best, row, column = bend / v, i, j
    return best, row, column


def worst_nodes(
    values: NDArray[Any], outcome: int, start: int
) -> list[tuple[float, int, int, int]]:
    """Return the most curved node in each of 16 column blocks of a chunk.

    Parameters
    ----------
    values : ndarray, shape (rows, columns)
        The chunk, whose first row is row `start` of the table.

    Returns
    -------
    list of (relative second difference, outcome, row, column)
    """
    columns = values.shape[1]
    chunk = np.array(values, dtype=np.float64, order="C")
    found = []
    for block in range(16):
        first, last = block * columns // 16, (block + 1) * columns // 16
        bend, i, j = _worst(chunk, first, last)
        if bend >= 0.0:
            found.append((bend, outcome, start + i, j))
    return found


Runner = Callable[[Callable[[Any], Array], Sequence[Any]], list[Array]]


def certify(
    values: NDArray[Any],
    metadata: Metadata,
    worst: Sequence[tuple[float, int, int, int]],
    *,
    run: Runner,
    points: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare a table with the second rule.

    Parameters
    ----------
    values : ndarray, shape (outcomes, mu.size, log10_sigma.size)
    worst : sequence
        Results of `worst_nodes` over all chunks.
    run : callable
        ``run(function, items)`` maps on any number of threads.
    points : int
        Random nodes; edges, corners and the most curved nodes come on top.
    seed : int
        Of the random nodes and cells.

    Returns
    -------
    dict
        ``nodes`` and ``cells``, each with ``max_relative_error``, ``points`` and the place
        (``mu``, ``log10_sigma``, ``outcome``); ``cells`` is the error of bilinear interpolation at
        cell centres.

    Raises
    ------
    NumericalError
        If the second rule does not converge, or a value of the table is not finite.
    """
    rng = np.random.default_rng(seed)
    outcomes, rows, columns = values.shape
    curved = np.array(sorted(worst, reverse=True)[:WORST]).reshape(-1, 4)[:, 1:].astype(np.int64)
    nodes = np.concatenate(
        [
            rng.integers((outcomes, rows, columns), size=(points, 3)),
            _edges(outcomes, rows, columns),
            curved,
        ]
    )
    cells = np.concatenate(
        [
            rng.integers((outcomes, rows - 1, columns - 1), size=(CELLS, 3)),
            curved,
            curved - (0, 1, 1),
        ]
    )
    k, i, j = nodes.T
    at_nodes = values[k, i, j].astype(np.float64)
    k, i, j = cells.T
    corners = [values[k, i + a, j + b].astype(np.float64) for a in (0, 1) for b in (0, 1)]
    return {
        "rule": "sigma* = int (f - mean) Phi^-1(F) q df, 8-point panels",
        "seed": seed,
        "random_nodes": points,
        "nodes": _compare(at_nodes, nodes, 0.0, metadata, run),
        "cells": _compare(sum(corners) / 4.0, cells, 0.5, metadata, run),
    }


def _edges(outcomes: int, rows: int, columns: int) -> Index:
    along_mu = np.unique(np.linspace(0, rows - 1, EDGE).round().astype(np.int64))
    along_sigma = np.unique(np.linspace(0, columns - 1, EDGE).round().astype(np.int64))
    pairs = [(i, j) for i in along_mu for j in (0, columns - 1)]
    pairs += [(i, j) for i in (0, rows - 1) for j in along_sigma]
    return np.array([(k, i, j) for k in range(outcomes) for i, j in pairs], dtype=np.int64)


def _place(axis: Axis, index: Index, offset: float) -> Array:
    """Return the positions `offset` of a step after the nodes `index`."""
    nodes = axis.nodes()
    upper = np.minimum(index + 1, axis.size - 1)
    between: Array = nodes[index] + offset * (nodes[upper] - nodes[index])
    return between


def _compare(
    found: Array, index: Index, offset: float, metadata: Metadata, run: Runner
) -> dict[str, Any]:
    mu = _place(metadata.mu, index[:, 1], offset)
    log10_sigma = _place(metadata.log10_sigma, index[:, 2], offset)
    y = np.array(metadata.outcomes, dtype=np.float64)[index[:, 0]]
    sigma = 10.0**log10_sigma

    def block(part: slice) -> Array:
        return independent(metadata.likelihood, mu[part], sigma[part], y[part])

    parts = [slice(a, a + 128) for a in range(0, mu.size, 128)]
    truth = np.concatenate(run(block, parts))
    error = np.abs(found / truth - 1.0)
    at = int(np.argmax(error))
    if not np.isfinite(error[at]):
        raise NumericalError(
            f"{metadata.likelihood}: the table has {found[at]:g} and the second rule {truth[at]:g} "
            f"at mu = {mu[at]:g}, log10 sigma = {log10_sigma[at]:g}"
        )
    return {
        "max_relative_error": float(error[at]),
        "points": int(mu.size),
        "mu": float(mu[at]),
        "log10_sigma": float(log10_sigma[at]),
        "outcome": float(y[at]),
    }
