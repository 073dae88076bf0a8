"""Triangles over the plane: meshes, where points lie in them, and their finite elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import cKDTree

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite

__all__ = ["Mesh"]

# Triangles whose centres are nearest are looked at first.
_NEAREST = 16
# Of a triangle: points this far outside count as inside, for the sake of rounding.
_SLACK = 1e-9
# Products of points and triangles at a time, where the nearest did not do.
_PRODUCTS = 2_000_000


class Mesh:
    """Triangles that cover a part of the plane.

    Parameters
    ----------
    nodes : array-like, shape (K, 2)
        Each is a corner of a triangle.
    triangles : array-like of int, shape (T, 3)
        Numbers of their corners; any mesh library has these two arrays.

    Raises
    ------
    InputError
        If a corner does not exist, a node has no triangle, or a triangle has no area.
    """

    def __init__(self, nodes: ArrayLike, triangles: ArrayLike) -> None:
        self.nodes = finite(nodes, "nodes")
        self.triangles = np.asarray(triangles, dtype=np.int64)
        if self.nodes.ndim != 2 or self.nodes.shape[1] != 2:
            raise InputError(f"nodes must have shape (K, 2), got {self.nodes.shape}")
        if self.triangles.ndim != 2 or self.triangles.shape[1] != 3 or not len(self.triangles):
            raise InputError(f"triangles must have shape (T, 3), got {self.triangles.shape}")
        used = np.bincount(self.triangles.ravel().clip(0), minlength=self.size)
        if self.triangles.min() < 0 or self.triangles.max() >= self.size:
            raise InputError(f"triangles name corners beyond the {self.size} nodes")
        if not used.all():
            raise InputError(
                f"node {int(np.argmin(used))} is in no triangle: leave such nodes out, their "
                "effects would be without a prior"
            )
        span = float(np.ptp(self.nodes, axis=0).max())
        small = self.areas <= 1e-14 * span**2
        if small.any():
            raise InputError(f"triangle {int(np.argmax(small))} has no area: leave it out")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def areas(self) -> Array:
        """Areas of the triangles, shape (T,)."""
        a, b, c = (self.nodes[self.triangles[:, k]] for k in range(3))
        u, v = b - a, c - a
        return 0.5 * np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0])

    @property
    def angles(self) -> Array:
        """Least angle of every triangle in degrees, shape (T,)."""
        corners = self.nodes[self.triangles]
        found = []
        for k in range(3):
            u = corners[:, (k + 1) % 3] - corners[:, k]
            v = corners[:, (k + 2) % 3] - corners[:, k]
            cosine = (u * v).sum(axis=1) / (np.hypot(*u.T) * np.hypot(*v.T))
            found.append(np.arccos(np.clip(cosine, -1.0, 1.0)))
        return np.degrees(np.min(found, axis=0))

    def mass(self) -> Array:
        """Lumped mass: a third of the area of a node's triangles, shape (K,)."""
        thirds = np.repeat(self.areas / 3.0, 3)
        return np.bincount(self.triangles.ravel(), thirds, self.size).astype(float, copy=False)

    def stiffness(self) -> sparse.csc_array:
        """Integrals of products of the linear elements' gradients, shape (K, K)."""
        corners = self.nodes[self.triangles]
        edges = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]
        products = np.einsum("tid,tjd->tij", edges, edges) / (4.0 * self.areas)[:, None, None]
        rows = np.repeat(self.triangles, 3, axis=1)
        columns = np.tile(self.triangles, (1, 3))
        places = rows.ravel(), columns.ravel()
        shape = (self.size, self.size)
        return sparse.csc_array(sparse.coo_array((products.ravel(), places), shape=shape))

    def located(self, points: Array) -> tuple[NDArray[np.int64], Array]:
        """Triangle of every point (N,), -1 for none, and its barycentric coordinates (N, 3)."""
        centres = self.nodes[self.triangles].mean(axis=1)
        k = min(_NEAREST, len(centres))
        nearest = cKDTree(centres).query(points, k)[1].reshape(len(points), k)
        found = np.full(len(points), -1, dtype=np.int64)
        inside = np.zeros((len(points), 3))
        for column in nearest.T:
            left = np.flatnonzero(found < 0)
            if not left.size:
                break
            self._try(points, left, column[left], found, inside)
        self._everywhere(points, found, inside)
        return found, inside

    def _try(self, points: Array, rows: Any, triangles: Any, found: Any, inside: Array) -> None:
        own = self._coordinates(points[rows], triangles)
        good = own.min(axis=1) >= -_SLACK
        kept = np.clip(own[good], 0.0, None)
        found[rows[good]] = triangles[good]
        inside[rows[good]] = kept / kept.sum(axis=1, keepdims=True)

    def _everywhere(self, points: Array, found: Any, inside: Array) -> None:
        """Look in all triangles, for long ones have centres far away."""
        left = np.flatnonzero(found < 0)
        low, high = self.nodes.min(axis=0), self.nodes.max(axis=0)
        near = ((points[left] >= low) & (points[left] <= high)).all(axis=1)
        left = left[near]
        count = len(self.triangles)
        batch = max(1, _PRODUCTS // count)
        every = np.arange(count)
        for start in range(0, len(left), batch):
            some = left[start : start + batch]
            pairs = np.repeat(some, count)
            own = self._coordinates(points[pairs], np.tile(every, len(some)))
            worst = own.min(axis=1).reshape(len(some), count)
            best = worst.argmax(axis=1)
            self._try(points, some, best, found, inside)

    def _coordinates(self, points: Array, triangles: Any) -> Array:
        a, b, c = (self.nodes[self.triangles[triangles, k]] for k in range(3))
        u, v, w = b - a, c - a, points - a
        area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
        second = (w[:, 0] * v[:, 1] - w[:, 1] * v[:, 0]) / area
        third = (u[:, 0] * w[:, 1] - u[:, 1] * w[:, 0]) / area
        return np.column_stack([1.0 - second - third, second, third])

    def nearest(self, points: Array) -> NDArray[np.int64]:
        """Node that is nearest to every point."""
        return np.asarray(cKDTree(self.nodes).query(points)[1])
