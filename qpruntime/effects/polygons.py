"""Polygons of coasts: their corners checked, their edges divided, and what is inside."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite

__all__ = ["corners_of", "edges_of", "inside", "inside_of", "spaced"]


def corners_of(polygon: ArrayLike, name: str) -> Array:
    """Corners (B, 2) of a polygon, the first not repeated at the end."""
    found = finite(polygon, name)
    if found.ndim != 2 or found.shape[1] != 2:
        raise InputError(f"{name} must be corners of shape (B, 2), got {found.shape}")
    if len(found) > 1 and (found[0] == found[-1]).all():
        found = found[:-1]
    if len(found) < 3:
        raise InputError(f"{name} must have 3 corners or more, got {len(found)}")
    following = np.roll(found, -1, axis=0)
    if (found == following).all(axis=1).any():
        raise InputError(f"{name} has the same corner twice in a row: leave one out")
    return found


def spaced(corners: Array, step: float) -> Array:
    """Corners, and points between them at most `step` apart."""
    parts = []
    for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        count = max(1, int(np.ceil(np.hypot(*(b - a)) / step)))
        parts.append(a + np.linspace(0.0, 1.0, count, endpoint=False)[:, None] * (b - a))
    return np.vstack(parts)


def edges_of(rings: list[Array]) -> NDArray[np.int64]:
    """Pairs of neighbours in rings whose points are numbered one ring after the other."""
    parts, start = [], 0
    for ring in rings:
        own = start + np.arange(len(ring))
        parts.append(np.column_stack([own, np.roll(own, -1)]))
        start += len(ring)
    return np.vstack(parts)


def inside(points: Array, corners: Array) -> NDArray[np.bool_]:
    """Whether points are in a polygon: by the number of edges that a ray crosses."""
    x, y = points.T
    found = np.zeros(len(points), dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if ay == by:
            continue
        crosses = (ay > y) != (by > y)
        found ^= crosses & (x < ax + (y - ay) * (bx - ax) / (by - ay))
    return found


def inside_of(points: Array, land: Array, holes: list[Array]) -> Any:
    """Whether points are in a polygon and in none of its holes."""
    found = inside(points, land)
    for hole in holes:
        found &= ~inside(points, hole)
    return found
