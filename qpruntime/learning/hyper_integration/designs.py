"""Where the density of hyper-parameters is looked at: grids, and central composite designs.

In z, standard coordinates around the mode: theta = mode + V z with the Hessian's eigenvectors. A
central composite design (Box & Wilson 1951; Rue, Martino & Chopin 2009, 6.5) has the centre, points
on the axes and corners, all of the latter at one radius, whose weights integrate a normal density
and its second moments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

from qpruntime._typing import Array

__all__ = [
    "MOST_COMPOSITE",
    "TRUSTED",
    "At",
    "Spread",
    "composite",
    "composite_mass",
    "corners",
    "directions",
    "draws",
    "lattice",
    "pareto_k",
    "pareto_shape",
    "sides",
    "stretched",
]

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


# --- Pareto tail shape k of importance weights
#
# A generalised Pareto distribution is fitted to the largest weights; beyond 0.7 more draws hardly
# help (Vehtari, Simpson, Gelman, Yao & Gabry 2024). The fit is that of Zhang & Stephens (2009).

#: Weights whose k is above this are not relied on.
TRUSTED = 0.7
# Draws of the tail at least.
_FEWEST = 5
# The prior of Zhang & Stephens, and how much k is drawn to one half, in draws.
_GRID, _PRIOR, _DRAWN = 30, 3.0, 10.0


def pareto_k(log_weights: Array) -> float:
    """Return k of S importance weights given by their logarithms; NaN of too few."""
    logs = np.sort(log_weights[np.isfinite(log_weights)])
    S = logs.size
    tail = math.ceil(min(0.2 * S, 3.0 * math.sqrt(S)))
    if tail < _FEWEST or S - tail < 1:
        return math.nan
    largest = np.exp(logs - logs[-1])
    beyond = largest[-tail:] - largest[-tail - 1]
    # Equal weights have no tail.
    if not beyond[-1] > 1e-12:
        return -math.inf
    return pareto_shape(np.maximum(beyond, 1e-300), _DRAWN)


def pareto_shape(x: Array, prior: float = 0.0) -> float:
    """Shape k of a generalised Pareto distribution from sorted positive draws (n,).

    `prior` draws at k = 1/2 are added.
    """
    n = x.size
    count = _GRID + int(math.sqrt(n))
    quarter = x[int(n / 4.0 + 0.5) - 1]
    steps = np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    # theta = -k / sigma, Section 3 there.
    theta = 1.0 / x[-1] + (1.0 - steps) / (_PRIOR * quarter)
    shapes = -np.log1p(-theta[:, None] * x).mean(axis=1)
    logs = n * (np.log(theta / shapes) + shapes - 1.0)
    weights = 1.0 / np.exp(np.minimum(logs - logs[:, None], 700.0)).sum(axis=1)
    at = float(theta @ weights / weights.sum())
    k = float(np.log1p(-at * x).mean())
    return (n * k + 0.5 * prior) / (n + prior)


# --- Importance sampling
#
# Each half axis has a scale of its own, by two values of the density an axis; draws are those of a
# scrambled Sobol sequence.

# Degrees of freedom: tails that are heavier than those of evidences.
_FREEDOM = 5.0


def draws(p: int, n: int, stretch: Array, seed: int) -> tuple[Array, Array]:
    """Places z (n, p) and the logarithms of their density (n,).

    Parameters
    ----------
    p, n : int
    stretch : ndarray, shape (2, p)
        Scales below and above the mode along each axis.
    seed : int
    """
    uniform = qmc.Sobol(2 * p + 1, rng=np.random.default_rng(seed)).random(n)
    uniform = np.clip(uniform, 1e-12, 1.0 - 1e-12)
    share = np.sqrt(chi2.ppf(uniform[:, 0], _FREEDOM) / _FREEDOM)
    size = norm.ppf(0.5 + 0.5 * uniform[:, 1 : p + 1]) / share[:, None]
    above = uniform[:, p + 1 :] < stretch[1] / stretch.sum(axis=0)
    z = np.where(above, stretch[1] * size, -stretch[0] * size)
    # Of a t of p dimensions on the positive orthant, times the chance of each side over its scale.
    constant = gammaln(0.5 * (_FREEDOM + p)) - gammaln(0.5 * _FREEDOM)
    constant -= 0.5 * p * np.log(_FREEDOM * np.pi)
    logs = constant - 0.5 * (_FREEDOM + p) * np.log1p((size**2).sum(axis=1) / _FREEDOM)
    return z, logs + p * np.log(2.0) - np.log(stretch.sum(axis=0)).sum()


# --- Lattice and composite designs
#
# In z, coordinates around the mode in which the curvature is 1. What is at a node is the caller's:
# ``at(z)`` returns it with the log density there, less that of the mode, or None where there is
# none.

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
