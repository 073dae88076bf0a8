"""Where the density of hyper-parameters is looked at: grids, and central composite designs.

In z, standard coordinates around the mode: theta = mode + V z with the Hessian's eigenvectors. A
central composite design (Box & Wilson 1951; Rue, Martino & Chopin 2009, 6.5) has the centre, points
on the axes and corners, all of the latter at one radius, whose weights integrate a normal density
and its second moments.
"""

from __future__ import annotations

import itertools

import numpy as np

from qpruntime.arrays import Array

__all__ = ["MOST_COMPOSITE", "composite", "composite_mass", "corners"]

#: Most parameters of a composite design.
MOST_COMPOSITE = 8
#: Radius of a composite design over that of the corners, sqrt(p).
_RADIUS = 1.1
# Generators of fractions of the corners: products of columns that further columns repeat.
_GENERATORS: dict[int, tuple[tuple[int, ...], ...]] = {
    5: ((0, 1, 2, 3),),
    6: ((0, 1, 2, 3, 4),),
    7: ((0, 1, 2, 3, 4, 5),),
    8: ((0, 1, 2, 3), (0, 1, 4, 5)),
}


def corners(p: int) -> Array:
    """Corners of a cube, or a fraction of them in which no two products of two are confounded."""
    extra = _GENERATORS.get(p, ())
    base = np.array(list(itertools.product((-1.0, 1.0), repeat=p - len(extra))))
    more = [base[:, list(columns)].prod(axis=1) for columns in extra]
    return np.column_stack([base, *more]) if more else base


def composite(p: int) -> tuple[Array, Array]:
    """Points z (J, p) and what they weigh beside the density there, the centre being 1.

    With weights w and density exp(-z'z/2): sum w exp = c, and sum w exp z z' = c I.
    """
    # Whole corners have 2^p points, and the axes 2 p: both on one sphere.
    axes = np.sqrt(p) * np.vstack([np.eye(p), -np.eye(p)])
    sphere = _RADIUS * (np.vstack([corners(p), axes]) if p > 1 else axes)
    weight = np.exp(0.5 * p * _RADIUS**2) / (len(sphere) * (_RADIUS**2 - 1.0))
    return np.vstack([np.zeros(p), sphere]), np.append(1.0, np.full(len(sphere), weight))


def composite_mass() -> float:
    """Sum of w exp(-z'z/2) over a composite design, whatever p is."""
    return 1.0 + 1.0 / (_RADIUS**2 - 1.0)
