"""The k nearest of many points: by a tree, or in the nearest cells where features are many."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from qpruntime.arrays import Array
from qpruntime.inference.nearest.cells import Cells

__all__ = ["MOST_FEATURES", "Neighbours", "neighbours_of"]

#: With more features a tree looks at nearly all points.
MOST_FEATURES = 10
# Numbers that a tree holds, at most.
_MOST = 1.25e8


class Neighbours(Protocol):
    """Points that are searched among."""

    def taken(self) -> NDArray[np.intp] | None:
        """Return an order that the points are put in from now on, near ones together, or None."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        """Return which k are the nearest of each point (n, d), the nearest first, (n, k)."""


class Tree:
    """A KD-tree: exact."""

    def __init__(self, points: Array, scale: Array) -> None:
        self._scale = scale
        self._tree: Any = cKDTree(points * scale)

    def taken(self) -> None:
        """Points stay where they are."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        _, found = self._tree.query(points * self._scale, k=np.arange(1, k + 1))
        return np.asarray(found, dtype=np.intp)


def neighbours_of(points: Array, centres: Array, scale: Array) -> Neighbours:
    """Return what searches among points (P, d), in units of which they are `scale` times as many.

    `centres` (M, d) are where cells begin.
    """
    if points.shape[1] <= MOST_FEATURES and points.size <= _MOST:
        return Tree(points, scale)
    return Cells(points, centres, scale)
