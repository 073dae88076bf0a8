"""Designs of nodes for the density of hyper-parameters: grids and central composite designs.

Nodes have standard coordinates z around the mode, theta = mode + V z, where V comes from the
Hessian's eigenvectors. A central composite design (Box & Wilson 1951; Rue, Martino & Chopin 2009,
6.5) has a centre, and points on the axes and corners at one radius. Its weights integrate a normal
density and its second moments exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

from qpruntime._typing import Array

__all__ = [
    "GRID_SPACING",
    "MAX_COMPOSITE_PARAMETERS",
    "MAX_GRID_PARAMETERS",
    "MAX_PARETO_K",
    "At",
    "DesignNodes",
    "composite",
    "composite_mass",
    "corners",
    "directions",
    "draws",
    "half_axis_reach",
    "lattice",
    "pareto_k",
    "pareto_shape",
    "stretched_composite",
]

#: Largest number of parameters of a grid and of a composite design.
MAX_GRID_PARAMETERS, MAX_COMPOSITE_PARAMETERS = 3, 8
#: Spacing of a grid in standard deviations, by number of parameters. Sums over nodes that are one
#: standard deviation apart are exact to 1e-8 for a normal density.
GRID_SPACING = {1: 0.5, 2: 1.0, 3: 1.0}
#: Radius of a composite design as a multiple of that of the corners, sqrt(p).
_RADIUS = 1.1
# Generators of fractional factorial designs: products of columns that give the further columns.
_GENERATORS: dict[int, tuple[tuple[int, ...], ...]] = {
    5: ((0, 1, 2, 3),),
    6: ((0, 1, 2, 3, 4),),
    7: ((0, 1, 2, 3, 4, 5),),
    8: ((0, 1, 2, 3), (0, 1, 4, 5)),
}


def corners(p: int) -> Array:
    """Return corners of a cube, or a fraction that confounds no two products of two."""
    extra = _GENERATORS.get(p, ())
    base = np.array(list(itertools.product((-1.0, 1.0), repeat=p - len(extra))))
    more = [base[:, list(columns)].prod(axis=1) for columns in extra]
    return np.column_stack([base, *more]) if more else base


def composite(p: int, with_corners: bool = True) -> tuple[Array, Array]:
    """Return points z (J, p) and the weights of their densities, relative to the centre's.

    The weights w satisfy sum w p = c and sum w p z z' = c I, where p = exp(-z'z/2), with or without
    corners.
    """
    if p == 0:
        return np.zeros((1, 0)), np.ones(1)
    # The full factorial has 2^p corners, and the axes have 2 p points, all on one sphere.
    axes = np.sqrt(p) * np.vstack([np.eye(p), -np.eye(p)])
    sphere = _RADIUS * (np.vstack([corners(p), axes]) if p > 1 and with_corners else axes)
    weight = np.exp(0.5 * p * _RADIUS**2) / (len(sphere) * (_RADIUS**2 - 1.0))
    return np.vstack([np.zeros(p), sphere]), np.append(1.0, np.full(len(sphere), weight))


def composite_mass() -> float:
    """Sum of w exp(-z'z/2) over a composite design, whatever p is."""
    return 1.0 + 1.0 / (_RADIUS**2 - 1.0)


# --- Pareto tail shape k of importance weights
#
# A generalised Pareto distribution is fitted to the largest weights. Above 0.7 more draws hardly
# help (Vehtari, Simpson, Gelman, Yao & Gabry 2024). The fit is that of Zhang & Stephens (2009).

#: Largest k for which importance weights are reliable.
MAX_PARETO_K = 0.7
# Smallest number of draws in the tail.
_MIN_TAIL_DRAWS = 5
# Prior of Zhang & Stephens, and the number of draws by which k is shrunk towards one half.
_PROFILE_POINTS, _PRIOR_SCALE, _SHRINKAGE_DRAWS = 30, 3.0, 10.0


def pareto_k(log_weights: Array) -> float:
    """Return k of S importance weights given by their logarithms; NaN of too few."""
    logs = np.sort(log_weights[np.isfinite(log_weights)])
    S = logs.size
    tail = math.ceil(min(0.2 * S, 3.0 * math.sqrt(S)))
    if tail < _MIN_TAIL_DRAWS or S - tail < 1:
        return math.nan
    largest = np.exp(logs - logs[-1])
    beyond = largest[-tail:] - largest[-tail - 1]
    # Equal weights have no tail.
    if not beyond[-1] > 1e-12:
        return -math.inf
    return pareto_shape(np.maximum(beyond, 1e-300), _SHRINKAGE_DRAWS)


def pareto_shape(x: Array, prior: float = 0.0) -> float:
    """Return the shape k of a generalised Pareto distribution from sorted positive draws (n,).

    `prior` draws at k = 1/2 are added.
    """
    n = x.size
    count = _PROFILE_POINTS + int(math.sqrt(n))
    quarter = x[int(n / 4.0 + 0.5) - 1]
    steps = np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    # theta = -k / sigma, Section 3 there.
    theta = 1.0 / x[-1] + (1.0 - steps) / (_PRIOR_SCALE * quarter)
    shapes = -np.log1p(-theta[:, None] * x).mean(axis=1)
    logs = n * (np.log(theta / shapes) + shapes - 1.0)
    weights = 1.0 / np.exp(np.minimum(logs - logs[:, None], 700.0)).sum(axis=1)
    at = float(theta @ weights / weights.sum())
    k = float(np.log1p(-at * x).mean())
    return (n * k + 0.5 * prior) / (n + prior)


# --- Importance sampling
#
# Each half axis has its own scale, from two values of the density per axis. The draws are a
# scrambled Sobol sequence.

# Degrees of freedom, few enough for heavier tails than those of evidences.
_DEGREES_OF_FREEDOM = 5.0


def draws(p: int, n: int, stretch: Array, seed: int) -> tuple[Array, Array]:
    """Return places z (n, p) and the logarithms of their density (n,).

    Parameters
    ----------
    p, n : int
    stretch : ndarray, shape (2, p)
        Scales below and above the mode along each axis.
    seed : int
    """
    uniform = qmc.Sobol(2 * p + 1, rng=np.random.default_rng(seed)).random(n)
    uniform = np.clip(uniform, 1e-12, 1.0 - 1e-12)
    share = np.sqrt(chi2.ppf(uniform[:, 0], _DEGREES_OF_FREEDOM) / _DEGREES_OF_FREEDOM)
    size = norm.ppf(0.5 + 0.5 * uniform[:, 1 : p + 1]) / share[:, None]
    above = uniform[:, p + 1 :] < stretch[1] / stretch.sum(axis=0)
    z = np.where(above, stretch[1] * size, -stretch[0] * size)
    # Density of a p-dimensional t on the positive orthant, times the chance of each side over its
    # scale.
    constant = gammaln(0.5 * (_DEGREES_OF_FREEDOM + p)) - gammaln(0.5 * _DEGREES_OF_FREEDOM)
    constant -= 0.5 * p * np.log(_DEGREES_OF_FREEDOM * np.pi)
    logs = constant - 0.5 * (_DEGREES_OF_FREEDOM + p) * np.log1p(
        (size**2).sum(axis=1) / _DEGREES_OF_FREEDOM
    )
    return z, logs + p * np.log(2.0) - np.log(stretch.sum(axis=0)).sum()


# --- Lattice and composite designs
#
# Coordinates z are relative to the mode, where the curvature is 1. The caller's ``at(z)`` returns
# the value of a node with its log density less that of the mode, or None if the density is zero.

Value = TypeVar("Value")
At = Callable[[Array], tuple[Value, float] | None]
#: Nodes (J, p), their values, log densities (J,), and weights (J,) to multiply the densities.
DesignNodes = tuple[Array, list[Value], Array, Array]

# Largest number of lattice steps from the mode.
_MAX_LATTICE_STEPS = 24
# Smallest eigenvalue of the Hessian, which limits the range of flat directions.
_MIN_EIGENVALUE = 0.04
# Limits of the factor by which half axes are stretched.
_STRETCH_LIMITS = (0.25, 2.5)


def directions(H: Array) -> Array:
    """Return V (p, p) with theta = mode + V z of unit curvature, for a negative Hessian H."""
    values, vectors = np.linalg.eigh(0.5 * (H + H.T))
    # Priors alone have a curvature of this order.
    return np.asarray(vectors / np.sqrt(np.maximum(values, _MIN_EIGENVALUE)))


def lattice(
    at: At[Value], p: int, centre: Value, spacing: float, drop: float
) -> DesignNodes[Value]:
    """Return the nodes of a lattice as far as the density reaches, from neighbour to neighbour."""
    nodes: dict[tuple[int, ...], tuple[Value, float]] = {(0,) * p: (centre, 0.0)}
    frontier, visited = [(0,) * p], {(0,) * p}
    while frontier:
        cell = frontier.pop(0)
        for k, step in itertools.product(range(p), (-1, 1)):
            neighbour = (*cell[:k], cell[k] + step, *cell[k + 1 :])
            if neighbour in visited or max(map(abs, neighbour)) > _MAX_LATTICE_STEPS:
                continue
            visited.add(neighbour)
            node = at(spacing * np.array(neighbour, dtype=float))
            if node is None:
                continue
            nodes[neighbour] = node
            if node[1] > -drop:
                frontier.append(neighbour)
    positions = spacing * np.array(list(nodes), dtype=float)
    logs = np.array([value for _, value in nodes.values()])
    return positions, [node for node, _ in nodes.values()], logs, np.ones(len(logs))


def half_axis_reach(at: At[Value], p: int) -> Array:
    """Return the reach of the density along each half axis below and above, (2, p).

    It is 1 for a normal density, and comes from two values per axis.
    """
    stretch = np.ones((2, p))
    for k, side in itertools.product(range(p), (0, 1)):
        z = np.zeros(p)
        z[k] = np.sqrt(2.0) * (2 * side - 1)
        node = at(z)
        if node is not None and node[1] < 0.0:
            # A normal density falls by 1 there.
            stretch[side, k] = np.clip((-node[1]) ** -0.5, *_STRETCH_LIMITS)
    return stretch


def stretched_composite(
    at: At[Value], centre: tuple[Value, float], stretch: Array, with_corners: bool = True
) -> DesignNodes[Value]:
    """Return the nodes of the composite design, stretched along each half axis (2, p)."""
    points, base = composite(stretch.shape[1], with_corners)
    positions, values, logs, weights = [], [], [], []
    for z, weight in zip(points, base, strict=True):
        point = np.where(z > 0.0, stretch[1], stretch[0]) * z
        scale = np.where(z > 0.0, stretch[1], np.where(z < 0.0, stretch[0], stretch.mean(axis=0)))
        node = centre if not z.any() else at(point)
        if node is not None:
            positions.append(point)
            values.append(node[0])
            logs.append(node[1])
            weights.append(weight * scale.prod())
    return np.array(positions), values, np.array(logs), np.array(weights)
