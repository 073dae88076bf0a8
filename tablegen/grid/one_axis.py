"""Expand a dense grid from one axis, where the likelihood declares an exact scale.

sigma*/length is a function of one variable v for each outcome (`Reduction.scale`). A fine spline
along v, and one evaluation a node, replace a quadrature a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from qpruntime._numba import contracted
from qpruntime._pointers import call_coordinates
from qpruntime._typing import Array
from qpruntime.projection.interpolation import quintic
from qpruntime.projection.projector import project_arrays
from qpruntime.table_format.metadata import Axis
from tablegen import splines
from tablegen.grid.plan import GridChunk, Plan

__all__ = ["CELLS", "Curves", "expand", "fill"]

#: Cells along v: the spline is as good as the quadrature (certified at 1e-12).
CELLS = 4096


@dataclass(frozen=True, eq=False)
class Curves:
    """Splines of sigma*/length over v: one row for each outcome, and what `quintic` takes.

    Attributes
    ----------
    coefficients : ndarray, shape (outcomes, 1, points)
    axes : ndarray, shape (7,)
    first : int
        Number of the first of these outcomes in the plan.
    """

    coefficients: Array
    axes: Array
    first: int = 0

    def only(self, outcome: int) -> Curves:
        """Return what chunks of one outcome need."""
        part = outcome - self.first
        return Curves(self.coefficients[part : part + 1], self.axes, outcome)


@contracted
def _scales(
    scale: int, mu: Array, sigma: Array, y: float, theta: Array, length: Array, v: Array
) -> None:
    for i in range(mu.size):
        for j in range(sigma.size):
            length[i, j], v[i, j], _ = call_coordinates(scale, mu[i], sigma[j], y, theta)


@contracted
def _expand(
    scale: int,
    curve: tuple[Array, Array, int],
    mu: Array,
    sigma: Array,
    y: float,
    theta: Array,
    out: Array,
) -> None:
    coefficients, axes, row = curve
    for i in range(mu.size):
        for j in range(sigma.size):
            length, v, _ = call_coordinates(scale, mu[i], sigma[j], y, theta)
            out[i, j] = length * quintic(coefficients, axes, row, 0.0, v)


def _handle(plan: Plan) -> tuple[Any, Array]:
    likelihood = plan.model
    assert likelihood.reduction is not None
    assert likelihood.reduction.scale is not None
    return likelihood.reduction.scale.handle, likelihood.theta


def _range(plan: Plan, y: float) -> tuple[float, float]:
    """Return the least and the largest v on the grid: v is monotone in sigma for every mu."""
    scale, theta = _handle(plan)
    mu, sigma = plan.mu.nodes(), 10.0 ** plan.log10_sigma.nodes()[[0, -1]]
    length, v = np.empty((mu.size, 2)), np.empty((mu.size, 2))
    _scales(scale, mu, sigma, y, theta, length, v)
    return float(v.min()), float(v.max())


def expand(plan: Plan, run: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]) -> Curves:
    """Integrate along v for every outcome.

    Parameters
    ----------
    run : callable
        ``run(function, items)`` maps in any order, on any number of threads or machines.
    """
    ends = [_range(plan, y) for y in plan.outcomes]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    axis = Axis("v", low, high, CELLS + 1)
    places = splines.points(axis)
    blocks = [(y, places[a : a + 512]) for y in plan.outcomes for a in range(0, places.size, 512)]
    values = np.concatenate(run(partial(_along, plan), blocks))
    values = values.reshape(len(plan.outcomes), 1, places.size)
    axes = np.array([0.0, 0.0, 0.0, low, high, CELLS / (high - low), plan.outcomes[0]])
    return Curves(splines.coefficients(values, None, axis), axes)


def _along(plan: Plan, block: tuple[float, Array]) -> Array:
    """Return sigma*/length for one outcome y at some places v."""
    y, places = block
    likelihood = plan.model
    assert likelihood.reduction is not None
    reduction = likelihood.reduction
    scale, theta = _handle(plan)
    row = int(y) - reduction.outcomes[0]
    mu, sigma, ys = np.array([reduction.cavity(row, 0.0, v) for v in places.tolist()]).T
    star = project_arrays(plan.model, mu, sigma, ys, table="exact").std
    length, v = np.empty((1, 1)), np.empty((1, 1))
    for i in range(star.size):
        _scales(scale, mu[i : i + 1], sigma[i : i + 1], y, theta, length, v)
        star[i] /= length[0, 0]
    return star


def fill(plan: Plan, chunk: GridChunk, curves: Curves) -> Array:
    """Return sigma* on one chunk, shape (chunk rows, log10_sigma.size)."""
    scale, theta = _handle(plan)
    mu = plan.mu.nodes()[chunk.start : chunk.stop]
    sigma = 10.0 ** plan.log10_sigma.nodes()
    out = np.empty((mu.size, sigma.size))
    y = plan.outcomes[chunk.outcome]
    row = chunk.outcome - curves.first
    _expand(scale, (curves.coefficients, curves.axes, row), mu, sigma, y, theta, out)
    return out
