"""Nodes of a density of hyper-parameters by each design, with weights and what they say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.special import logsumexp

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.learning.nodes.density import Density, Evaluated
from qpruntime.learning.nodes.designs import MOST_COMPOSITE, composite_mass
from qpruntime.learning.nodes.importance import draws
from qpruntime.learning.nodes.nuts import effective, nuts
from qpruntime.learning.nodes.pareto import TRUSTED, pareto_k
from qpruntime.learning.nodes.spread import lattice, sides, stretched

__all__ = ["LEAST_SHARE", "Found", "find"]

#: Most parameters of a grid and of a composite design.
_MOST = {"grid": 3, "composite": MOST_COMPOSITE}
#: Of draws fewer effective ones than this share miss something, as another mode.
LEAST_SHARE = 0.3
# Distance of a grid's nodes in standard deviations, and how far below the mode they end.
_SPACING, _DROP = {1: 0.5, 2: 1.0, 3: 1.0}, 7.0
#: Up to so many parameters "auto" is a grid.
_GRID = 2
# Draws where none are asked for, those that judge a composite design, and warm-up of a chain.
_DRAWS, _JUDGES, _WARM = 64, 32, 32
# A chain with fewer effective draws is stuck.
_MOVES = 4.0
# Draws at which the density between the nodes of a grid is looked at.
_BETWEEN = 1024


class Found(NamedTuple):
    """Nodes in some order, the logarithms of what they weigh, and what is known of them.

    `share` is how many of the draws of a Student t around the mode are effective, of as many.
    """

    design: str
    nodes: list[Evaluated]
    log_weights: Array
    log_evidence: float
    effective: float
    pareto_k: float
    share: float = 1.0

    @property
    def trusted(self) -> bool:
        """Whether the density is near enough to a Student t around the mode."""
        return not (self.pareto_k > TRUSTED or self.share < LEAST_SHARE)


class _Around:
    """The density around its mode, in coordinates of unit curvature."""

    def __init__(self, density: Density, mode: Array, V: Array) -> None:
        self.density, self.V = density, V
        self.known: dict[bytes, Evaluated] = {}
        centre = density.at(mode)
        if centre is None:
            raise InputError("the mode of the hyper-parameters is out of bounds")
        self.centre = centre

    def __call__(self, z: Array) -> tuple[Evaluated, float] | None:
        one = self.density.at(self.centre.theta + self.V @ z)
        return None if one is None else (one, one.value - self.centre.value)

    def slope(self, z: Array) -> tuple[float, Array] | None:
        """Log density and its slope by z."""
        one = self.density.at(self.centre.theta + self.V @ z)
        if one is None:
            return None
        self.known[z.tobytes()] = one
        return one.value - self.centre.value, self.V.T @ one.slope


def find(
    density: Density, mode: Array, design: str, n: int | None, rng: np.random.Generator
) -> Found:
    """Find nodes around a mode (p,) by a design, "auto" chooses one.

    Raises
    ------
    InputError
        If there are too many parameters for the design.
    """
    p = mode.size
    if p > _MOST.get(design, p):
        raise InputError(
            f'design="{design}" is for {_MOST[design]} hyper-parameters at most, and these are '
            f'{p}: use design="importance" or "nuts"'
        )
    at = _Around(density, mode, density.directions(mode))
    volume = float(np.linalg.slogdet(at.V)[1])
    count = _DRAWS if n is None else n
    if design == "grid" or (design == "auto" and p <= _GRID):
        return _by_grid(at, p, volume)
    if design == "composite":
        return _by_composite(at, p, volume, int(rng.integers(2**31)))
    if design == "nuts":
        return _by_chain(at, p, count, rng)
    found = _by_importance(at, p, volume, count, int(rng.integers(2**31)))
    if design == "importance" or found.trusted:
        return found
    chain = _by_chain(at, p, count, rng)
    # A chain that does not move says less than weights that are poor.
    return chain if chain.effective >= _MOVES else found


def _by_grid(at: _Around, p: int, volume: float) -> Found:
    z, nodes, logs, _ = lattice(at, p, at.centre, _SPACING[p], _DROP)
    cell = volume + p * math.log(_SPACING[p])
    total = at.centre.value + float(logsumexp(logs)) + cell
    return Found("grid", nodes, logs, total, _kish(logs), _k_between(z, logs))


def _by_composite(at: _Around, p: int, volume: float, seed: int) -> Found:
    _, nodes, logs, base = stretched(at, p, at.centre)
    weights = logs + np.log(base)
    scale = volume + 0.5 * p * math.log(2.0 * math.pi) - math.log(composite_mass())
    total = at.centre.value + float(logsumexp(weights)) + scale
    judged = _by_importance(at, p, volume, _JUDGES, seed)
    known = judged.pareto_k, judged.share
    return Found("composite", nodes, weights, total, _kish(weights), *known)


def _by_importance(at: _Around, p: int, volume: float, n: int, seed: int) -> Found:
    z, drawn = draws(p, n, sides(at, p), seed)
    ends: list[Any] = [at(one) for one in z]
    logs = np.array([-math.inf if one is None else one[1] for one in ends]) - drawn
    kept = [one[0] for one in ends if one is not None]
    inside = logs[np.isfinite(logs)]
    total = at.centre.value + float(logsumexp(inside)) - math.log(n) + volume
    size = _kish(inside)
    return Found("importance", kept, inside, total, size, pareto_k(logs), size / n)


def _by_chain(at: _Around, p: int, n: int, rng: np.random.Generator) -> Found:
    chain = nuts(at.slope, np.zeros(p), n, _WARM, rng)
    kept = [at.known[z.tobytes()] for z in chain.z]
    independent = effective(np.array([one.theta for one in kept]))
    return Found("nuts", kept, np.zeros(len(kept)), math.nan, independent, math.nan)


def _kish(log_weights: Array) -> float:
    """Effective number of weighted nodes."""
    w = np.exp(log_weights - logsumexp(log_weights))
    return 1.0 / float(w @ w)


def _k_between(z: Array, logs: Array) -> float:
    """Pareto k of draws of the Student t, by the density interpolated between the nodes."""
    p = z.shape[1]
    kept = logs > -30.0
    if kept.sum() <= (p + 1) * (p + 2) // 2:
        return math.nan
    at, drawn = draws(p, _BETWEEN, np.ones((2, p)), 0)
    near = np.abs(at).max(axis=1) <= np.abs(z[kept]).max() + 1.0
    inner = RBFInterpolator(z[kept], logs[kept], kernel="cubic", degree=2)(at[near])
    # Not above the mode by far, and nothing beyond the nodes.
    return pareto_k(np.minimum(inner, 0.5) - drawn[near])
