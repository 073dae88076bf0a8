"""Measure the error of a compact table wherever it may be: on nodes, in cells, at seams, far out.

What is measured is a whole lookup, coordinates and sigma_EP included, against the second
quadrature rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.artifact import Axis
from qpruntime.table import Table
from tablegen import splines
from tablegen.second_rule import RULE, independent

__all__ = ["DOMAIN", "REGIONS", "TOLERANCE", "certify", "describe", "worst"]

Array = NDArray[np.float64]
Runner = Callable[[Callable[[Any], Array], Sequence[Any]], list[Array]]

#: Largest relative error allowed anywhere.
TOLERANCE = 1e-9
REGIONS = ("nodes", "cells", "seams", "far")
#: log10 sigma goes from here to there; mu up to `_REACH` times the larger of sigma and 1.
DOMAIN = (-6.0, 8.0)
_REACH = 1e6
#: Beyond this many sigma a double cannot hold where mu lies to 1e-10 sigma: nothing to compare.
_RESOLVED = 1e9
#: Distances from a seam, in lengths of its axis.
_NEAR = (0.0, 1e-12, 1e-9, 1e-6, 1e-3)
#: Windows of coefficients that are looked at because they fit worst.
_ROUGH = 64


def certify(table: Table, *, run: Runner, points: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Compare lookups with the second rule.

    Parameters
    ----------
    table : Table
        A compact one.
    run : callable
        ``run(function, items)`` maps on any number of threads.
    points : int
        Random points in each region.
    seed : int

    Returns
    -------
    dict
        For each of `REGIONS` ``max_relative_error``, ``points`` and the place (``mu``,
        ``log10_sigma``, ``outcome``).
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {"rule": RULE, "seed": seed, "random_points": points}
    for name, draw in zip(REGIONS, (_nodes, _cells, _seams, _far), strict=True):
        found[name] = _compare(table, draw(table, points, rng), run)
    return found


def worst(certificate: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the region with the largest error; NaN is larger than all."""
    entries = [{**certificate[name], "region": name} for name in REGIONS]

    def size(entry: dict[str, Any]) -> float:
        error = float(entry["max_relative_error"])
        return error if error == error else float("inf")

    return max(entries, key=size)


def describe(entry: dict[str, Any]) -> str:
    """Return an error and its place in words."""
    return (
        "relative error {max_relative_error:.2g} at mu = {mu:.17g}, log10 sigma = "
        "{log10_sigma:.17g}, y = {outcome:g} ({region})"
    ).format(**entry)


def _axes(table: Table) -> tuple[Axis | None, Axis]:
    axes = table.metadata.axes
    return (axes[0] if len(axes) == 2 else None), axes[-1]


def _cavities(table: Table, where: Array, rng: np.random.Generator) -> Array:
    """Return cavities (mu, sigma, y), shape (N, 3), for rows of (row, u, v)."""
    reduction = table.likelihood.reduction
    assert reduction is not None
    found = np.array([reduction.cavity(int(row), u, v) for row, u, v in where.tolist()])
    return _either_label(table, found, rng)


def _either_label(table: Table, found: Array, rng: np.random.Generator) -> Array:
    if table.likelihood.mirror:
        sign = rng.choice([-1.0, 1.0], len(found))
        found = found * np.stack([sign, np.ones(len(found)), sign], 1)
    return found


def _nodes(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Random nodes, and where neighbouring coefficients fit together worst."""
    u, v = _axes(table)
    rows, m, n = table.metadata.shape
    index = np.concatenate(
        [
            rng.integers((rows, m, n), size=(points, 3)),
            np.unique(splines.roughest(table.values, _ROUGH), axis=0),
        ]
    )
    # Coefficient j belongs to node j - 2; those beyond the ends to the ends.
    where = index.astype(float)
    for column, axis in ((1, u), (2, v)):
        if axis is not None:
            node = np.clip(index[:, column] - 2, 0, axis.size - 1)
            where[:, column] = axis.nodes()[node]
    return _cavities(table, where, rng)


def _cells(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Random points of the rectangle, half of them in the middle of a cell."""
    u, v = _axes(table)
    where = np.zeros((points, 3))
    where[:, 0] = rng.integers(table.metadata.shape[0], size=points)
    middle = rng.random(points) < 0.5
    for column, axis in ((1, u), (2, v)):
        if axis is not None:
            cell = rng.uniform(0, axis.size - 1, points)
            cell = np.where(middle, np.floor(cell) + 0.5, cell)
            where[:, column] = axis.start + cell * axis.step
    return _cavities(table, where, rng)


def _seams(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Both sides of the ends of each axis, and of the last row."""
    u, v = _axes(table)
    rows = table.metadata.shape[0]
    where = np.zeros((points, 3))
    where[:, 0] = rng.integers(rows, size=points)
    for column, axis in ((1, u), (2, v)):
        if axis is not None:
            where[:, column] = rng.uniform(axis.start, axis.stop, points)
    ends = [(k, axis) for k, axis in ((1, u), (2, v)) if axis is not None]
    for i in range(points):
        kind = i % (len(ends) + (rows > 1))
        if kind == len(ends):
            where[i, 0] = rows - 1 + rng.integers(2)
            continue
        column, axis = ends[kind]
        off = rng.choice(_NEAR) * rng.choice([-1.0, 1.0]) * (axis.stop - axis.start)
        where[i, column] = rng.choice([axis.start, axis.stop]) + off
    return _cavities(table, where, rng)


def _far(table: Table, points: int, rng: np.random.Generator) -> Array:
    """Cavities of every width and place, and outcomes of every size."""
    sigma = 10.0 ** rng.uniform(*DOMAIN, points)
    size = np.maximum(sigma, 1.0) * _REACH ** rng.uniform(-1.0, 1.0, points)
    mu = rng.choice([-1.0, 1.0], points) * np.minimum(size, _RESOLVED * sigma)
    y = np.ones(points)
    if not table.likelihood.mirror:
        assert table.likelihood.reduction is not None
        largest = table.likelihood.reduction.largest
        y = np.floor((largest + 1.0) ** rng.uniform(0.0, 1.0, points)) - 1.0
    return _either_label(table, np.stack([mu, sigma, y], 1), rng)


def _compare(table: Table, cavities: Array, run: Runner) -> dict[str, Any]:
    mu, sigma, y = np.ascontiguousarray(cavities.T)

    def block(part: slice) -> Array:
        truth = independent(table.likelihood.name, mu[part], sigma[part], y[part])
        return np.asarray(table.lookup(mu[part], sigma[part], y[part])[0] / truth - 1.0)

    parts = [slice(a, a + 128) for a in range(0, mu.size, 128)]
    error = np.abs(np.concatenate(run(block, parts)))
    at = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    return {
        "max_relative_error": float(error[at]),
        "points": int(mu.size),
        "mu": float(mu[at]),
        "log10_sigma": float(np.log10(sigma[at])),
        "outcome": float(y[at]),
    }
