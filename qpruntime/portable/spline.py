"""Quintic splines of compact tables in plain operations, which any library derives."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.portable.operations import Operations
from qpruntime.projection.table import Table

__all__ = ["Spline"]


def _weights(t: Any) -> tuple[Any, ...]:
    """Values at 0 <= t <= 1 of the six uniform quintic B-splines that are not zero there."""
    s = 1.0 - t
    t2, s2 = t * t, s * s
    left = 26.0 + t * (-50.0 + t * (20.0 + t * (20.0 + t * (-20.0 + 5.0 * t))))
    right = 26.0 + s * (-50.0 + s * (20.0 + s * (20.0 + s * (-20.0 + 5.0 * s))))
    middle = 66.0 + t2 * (-60.0 + t2 * (30.0 - 10.0 * t))
    other = 66.0 + s2 * (-60.0 + s2 * (30.0 - 10.0 * s))
    return tuple(w / 120.0 for w in (s2 * s2 * s, left, middle, other, right, t2 * t2 * t))


class Spline:
    """R = sigma*/sigma_EP of a compact table, at a row and its coordinates.

    Parameters
    ----------
    ops : Operations
    table : Table
        Of kind "compact".
    """

    def __init__(self, ops: Operations, table: Table) -> None:
        self._ops, self._axes = ops, [float(v) for v in table.axes()]
        self._shape = table.values.shape
        self._flat = np.array(table.values, dtype=float).reshape(-1)
        self.rows = self._shape[0]

    def __call__(self, row: Any, u: Any, v: Any) -> Any:
        """Arguments beyond an axis count as its end; `u` is not used along one axis."""
        ops = self._ops
        flat = ops.constant(self._flat, v)
        j, w = self._cell(v, 3, self._shape[2])
        if self._shape[1] == 1:
            start = row * self._shape[2] + j
            return sum(w[k] * ops.take(flat, start + k) for k in range(6))
        i, x = self._cell(u, 0, self._shape[1])
        total = 0.0
        for n in range(6):
            start = (row * self._shape[1] + i + n) * self._shape[2] + j
            total = total + x[n] * sum(w[k] * ops.take(flat, start + k) for k in range(6))
        return total

    def _cell(self, v: Any, axis: int, nodes: int) -> tuple[Any, tuple[Any, ...]]:
        """First coefficient of the cell of v, and the weights there."""
        ops, (start, stop, density) = self._ops, self._axes[axis : axis + 3]
        at = (ops.minimum(ops.maximum(v, start), stop) - start) * density
        cell = ops.held(ops.minimum(ops.floor(at), float(nodes - 6)))
        return cell, _weights(at - cell)
