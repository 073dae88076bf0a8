"""Nodes spread around a mode: on a lattice, or by a composite design stretched to the density.

In z, coordinates around the mode in which the curvature is 1. What is at a node is the caller's:
``at(z)`` returns it with the log density there, less that of the mode, or None where there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.learning.nodes.designs import composite

__all__ = ["At", "Spread", "directions", "lattice", "sides", "stretched"]

At = Callable[[Array], "tuple[Any, float] | None"]
#: Places (J, p), what is there, log densities (J,), and what nodes weigh beside their density.
Spread = tuple[Array, list[Any], Array, Array]

# Steps of a lattice from the mode at most.
_REACH = 24
# Of a Hessian: flat directions are integrated no further than this allows.
_LEAST = 0.04
# By how much half axes are stretched.
_STRETCH = (0.25, 2.5)


def directions(H: Array) -> Array:
    """V (p, p) with theta = mode + V z of unit curvature, for a negative Hessian H."""
    values, vectors = np.linalg.eigh(0.5 * (H + H.T))
    # Priors alone have a curvature of this order.
    return np.asarray(vectors / np.sqrt(np.maximum(values, _LEAST)))


def lattice(at: At, p: int, centre: Any, spacing: float, drop: float) -> Spread:
    """Nodes of a lattice as far as the density reaches, found from neighbour to neighbour."""
    found: dict[tuple[int, ...], tuple[Any, float]] = {(0,) * p: (centre, 0.0)}
    edge, seen = [(0,) * p], {(0,) * p}
    while edge:
        here = edge.pop(0)
        for k, step in itertools.product(range(p), (-1, 1)):
            there = (*here[:k], here[k] + step, *here[k + 1 :])
            if there in seen or max(map(abs, there)) > _REACH:
                continue
            seen.add(there)
            one = at(spacing * np.array(there, dtype=float))
            if one is None:
                continue
            found[there] = one
            if one[1] > -drop:
                edge.append(there)
    places = spacing * np.array(list(found), dtype=float)
    logs = np.array([value for _, value in found.values()])
    return places, [one for one, _ in found.values()], logs, np.ones(len(logs))


def sides(at: At, p: int) -> Array:
    """How far the density reaches along each half axis, (2, p) of below and above; a normal's is 1.

    By two values an axis.
    """
    stretch = np.ones((2, p))
    for k, side in itertools.product(range(p), (0, 1)):
        z = np.zeros(p)
        z[k] = np.sqrt(2.0) * (2 * side - 1)
        one = at(z)
        if one is not None and one[1] < 0.0:
            # A normal density falls by 1 there.
            stretch[side, k] = np.clip((-one[1]) ** -0.5, *_STRETCH)
    return stretch


def stretched(at: At, p: int, centre: Any) -> Spread:
    """Nodes of the composite design, stretched along each half axis to where the density ends."""
    stretch = sides(at, p)
    points, base = composite(p)
    kept, found, logs, weights = [], [], [], []
    for z, weight in zip(points, base, strict=True):
        own = np.where(z > 0.0, stretch[1], stretch[0]) * z
        wide = np.where(z > 0.0, stretch[1], np.where(z < 0.0, stretch[0], stretch.mean(axis=0)))
        one = (centre, 0.0) if not z.any() else at(own)
        if one is not None:
            kept.append(own)
            found.append(one[0])
            logs.append(one[1])
            weights.append(weight * wide.prod())
    return np.array(kept), found, np.array(logs), np.array(weights)
