"""Uniform quintic splines by collocation.

An axis of n cells has n + 5 B-splines, their knots continued evenly beyond both ends. They are
fixed by the values at the n + 1 nodes and in the middle of the two outermost cells of each end.
No BLAS takes part: the same values give the same coefficients on every machine.
"""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel
from qpruntime._typing import Array
from qpruntime.projection.interpolation import quintic
from qpruntime.table_format.metadata import Axis

__all__ = ["along", "evaluate", "points"]

#: 120 and 3840 times the B-splines at a node and in the middle of a cell.
_AT_NODE = (1.0, 26.0, 66.0, 26.0, 1.0, 0.0)
_IN_MIDDLE = (1.0, 237.0, 1682.0, 1682.0, 237.0, 1.0)
#: No row of the collocation matrix reaches further from its diagonal.
_BAND = 6


def positions(axis: Axis) -> Array:
    """Return the collocation points in cells from the start, ascending, shape (size + 4,)."""
    if axis.size < 6:
        raise ValueError(f"axis {axis.name}: a spline needs at least 6 nodes, got {axis.size}")
    n = axis.size - 1
    return np.sort(np.concatenate([np.arange(n + 1), [0.5, 1.5, n - 1.5, n - 0.5]]))


def points(axis: Axis) -> Array:
    """Return the collocation points, ascending, shape (size + 4,)."""
    part = positions(axis) / (axis.size - 1)
    return np.asarray(axis.start + part * (axis.stop - axis.start))


@kernel
def _solve(place: Array, values: Array) -> None:
    """Overwrite `values`, a column per right-hand side, with the spline's coefficients."""
    n = place.size
    # Diagonals only: entry (i, j) stands at (i, j - i + _BAND).
    matrix = np.zeros((n, 2 * _BAND + 1))
    for i in range(n):
        j = min(int(place[i]), n - 6)
        t = place[i] - j
        for k in range(6):
            if t == 0.5:
                matrix[i, j + k - i + _BAND] = _IN_MIDDLE[k] / 3840.0
            elif t == 0.0:
                matrix[i, j + k - i + _BAND] = _AT_NODE[k] / 120.0
            else:  # the last node: t = 1
                matrix[i, j + k - i + _BAND] = _AT_NODE[5 - k] / 120.0
    # The matrix is totally positive: elimination without pivoting is stable.
    for k in range(n):
        for i in range(k + 1, min(n, k + _BAND)):
            factor = matrix[i, k - i + _BAND] / matrix[k, _BAND]
            if factor != 0.0:
                for j in range(k + 1, min(n, k + _BAND)):
                    matrix[i, j - i + _BAND] -= factor * matrix[k, j - k + _BAND]
                for c in range(values.shape[1]):
                    values[i, c] -= factor * values[k, c]
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, min(n, i + _BAND)):
            for c in range(values.shape[1]):
                values[i, c] -= matrix[i, j - i + _BAND] * values[j, c]
        for c in range(values.shape[1]):
            values[i, c] /= matrix[i, _BAND]


def along(values: Array, which: int, axis: Axis) -> Array:
    """Return the coefficients, along dimension `which`, of splines through these values.

    The dimension holds values at the collocation points of `axis`; other dimensions are
    independent.
    """
    front = np.moveaxis(values, which, 0)
    columns = front.reshape(front.shape[0], -1).copy()
    _solve(positions(axis), columns)
    return np.ascontiguousarray(np.moveaxis(columns.reshape(front.shape), 0, which))


@kernel
def _evaluate(values: Array, axes: Array, where: Array, out: Array) -> None:
    for i in range(out.size):
        out[i] = quintic(values, axes, int(where[i, 0]), where[i, 1], where[i, 2])


def evaluate(values: Array, axes: Array, where: Array) -> Array:
    """Return the splines at rows (row, u, v) of `where`; `axes` is `Table.axes()`."""
    out = np.empty(len(where))
    _evaluate(values, axes, np.ascontiguousarray(where, dtype=np.float64), out)
    return out
