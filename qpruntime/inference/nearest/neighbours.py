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


class Neighbours(Protocol):
    """Points that are searched among."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        """Return which k are the nearest of each point (n, d), the nearest first, (n, k)."""


class Tree:
    """A KD-tree: exact."""

    def __init__(self, points: Array) -> None:
        self._tree: Any = cKDTree(points)

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        _, found = self._tree.query(points, k=np.arange(1, k + 1))
        return np.asarray(found, dtype=np.intp)


def neighbours_of(points: Array, centres: Array) -> Neighbours:
    """Return what searches among points (P, d); `centres` (M, d) are where cells begin."""
    if points.shape[1] <= MOST_FEATURES:
        return Tree(points)
    return Cells(points, centres)
