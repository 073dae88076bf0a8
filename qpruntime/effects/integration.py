"""Hyper-parameters integrated: nodes with weights, and the density between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator
from scipy.special import ndtri
from scipy.stats import qmc

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.effects.objective import EffectsObjective, ObjectiveValue, deviation_gains
from qpruntime.effects.optimise import Mode, curvature
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.learning.hyper_integration.designs import (
    DesignNodes,
    directions,
    half_axis_reach,
    lattice,
    stretched_composite,
)

__all__ = ["INTEGRATIONS", "HyperNodes", "Integration", "integrate"]

#: Ways to integrate hyper-parameters.
Integration = Literal["auto", "grid", "ccd", "mode"]
INTEGRATIONS = ("auto", "mode", "grid", "ccd")
# Distance of a grid's nodes in standard deviations, and how far below the mode they end. Sums over
# nodes that are one standard deviation apart are exact to 1e-8 for a normal density.
_SPACING, _DROP = {1: 0.5, 2: 1.0, 3: 1.0}, 6.0
# Tolerance of the sites at nodes by that of the mode: the evidence is stationary in the sites.
_NODE_TOL = 300.0
# Weights of nodes that are left out.
_LIGHT = 1e-5
# Most hyper-parameters of a grid and of a composite design.
_MOST_GRID, _MOST_CCD = 3, 8
# "auto": up to such standard deviations of hyper-parameters, which are logarithms, densities are
# near enough to normal ones for a composite design, a fifth of the grid, or for half a grid of one.
_KNOWN = 0.3
# Standard deviations from the mode at which a composite design looks at tails.
_TAIL = 2.5
# A deviation near zero: v at the mode, for s = c sinh v, the least number of nodes of the lattice
# below it, how far below the mode the lattice ends, and the most such deviations.
_MODE, _LEAST_BELOW, _LATTICE_DROP, _MOST_FLAT = float(np.arcsinh(2.0)), 2, 5.0, 2
# Steps of Newton's method to the mode of the others, and a distance from it that is none.
_NEWTON_STEPS, _CENTRED = 3, 0.3
# Draws of theta by which deviations are summarised.
_DRAWS = 4096
# They are normal ones of this standard deviation, as far as the nodes and this reach.
_WIDER, _FAR = 1.4, 4.0


@restorable("nodes/1")
@dataclass(frozen=True, eq=False)
class HyperNodes:
    """Nodes of the hyper-parameters, and their weights.

    Attributes
    ----------
    theta : ndarray, shape (J, p)
    weights : ndarray, shape (J,)
        They sum to 1.
    draws : ndarray, shape (D, p)
        Hyper-parameters by the density between the nodes, with weights that sum to 1.
    draw_weights : ndarray, shape (D,)
    """

    theta: Array
    weights: Array
    draws: Array
    draw_weights: Array


def integrate(
    objective: EffectsObjective,
    mode: Mode,
    how: str,
    value: Callable[[ObjectiveValue], float],
) -> tuple[HyperNodes, list[ObjectiveValue]]:
    """Spread nodes around the mode.

    Parameters
    ----------
    objective : Objective
    mode : Mode
    how : {"auto", "mode", "grid", "ccd"}
        "auto" is a grid for up to two hyper-parameters, a composite design for up to eight and for
        two that the data know well, else the mode.
    value : callable
        Log density of an evaluation, which the weights follow.

    Returns
    -------
    nodes : Nodes
    evaluations : list of Evaluation
        Of the nodes, in their order.
    """
    choice(how, "integrate", INTEGRATIONS)
    p = objective.size
    automatic = how == "auto"
    if automatic:
        how = "grid" if p <= 2 else "ccd" if p <= _MOST_CCD else "mode"
    most = {"grid": _MOST_GRID, "ccd": _MOST_CCD}.get(how, p)
    if p > most:
        raise InputError(
            f'integrate="{how}" is for {most} hyper-parameters at most, and these are {p}: use '
            f'"{"ccd" if p <= _MOST_CCD else "mode"}"'
        )
    centre = mode.evaluation
    if how == "mode" or p == 0:
        theta = centre.theta[None]
        return HyperNodes(theta, np.ones(1), theta, np.ones(1)), [centre]
    H = curvature(objective, centre)
    V = directions(H)
    spreads = np.sqrt((V**2).sum(axis=1))
    known = automatic and spreads.max() <= _KNOWN
    if known and p == 2:
        how = "ccd"
    near_zero = _near_zero(objective, centre, spreads) if how == "ccd" else np.array([], dtype=int)
    scale = _Coordinates(centre.theta, H, spreads, near_zero)
    density = _Density(objective, centre, value, scale)
    if how == "grid":
        spacing = 1.0 if known else _SPACING[p]
        z, evaluations, logs, base = lattice(density.at, p, centre, spacing, _DROP)
    else:
        z, evaluations, logs, base = _mixed_design(density, centre)
    weights = base * np.exp(logs - logs.max())
    weights = weights / weights.sum()
    # A node without weight would cost a factorisation in every prediction.
    kept = weights > _LIGHT
    weights = weights[kept] / weights[kept].sum()
    theta = np.array(
        [evaluation.theta for evaluation, k in zip(evaluations, kept, strict=True) if k]
    )
    evaluations = [evaluation for evaluation, k in zip(evaluations, kept, strict=True) if k]
    draws, draw_weights = _between(z, logs, scale, objective.bounds)
    return HyperNodes(theta, weights, draws, draw_weights), evaluations


def _near_zero(objective: EffectsObjective, centre: ObjectiveValue, spreads: Array) -> NDArray[Any]:
    """Return the deviations that may be 0, the least known ones, as indices of theta."""
    vague = np.flatnonzero(spreads > _KNOWN)
    gains = dict(deviation_gains(objective, centre, vague))
    flat = [k for k in sorted(gains, key=lambda k: -spreads[k]) if gains[k] < _DROP]
    return np.array(sorted(flat[: min(_MOST_FLAT, objective.size - 1)]), dtype=int)


class _Coordinates:
    """Coordinates x of the hyper-parameters, 0 at the mode.

    The density of a deviation s near zero is far from normal in log s, whose tail towards 0 is
    exponential, but continues as an even function through s = 0. Its coordinate is the number of
    steps from the mode on a lattice of v with s = c sinh v, which is linear near 0 and logarithmic
    far from it. The lattice has no node at 0 and ends half a step above it. The other
    hyper-parameters have theta = m + V z, where m is their mode given the deviations near zero.

    Parameters
    ----------
    mode : ndarray, shape (p,)
    H : ndarray, shape (p, p)
        Curvature at the mode.
    spreads : ndarray, shape (p,)
        Standard deviations there.
    near_zero : ndarray of int, shape (q,)
        Deviations near zero.
    """

    def __init__(self, mode: Array, H: Array, spreads: Array, near_zero: NDArray[Any]) -> None:
        self.mode, self.near_zero = mode, near_zero
        self.others = np.setdiff1d(np.arange(len(mode)), near_zero)
        self.V = directions(H[np.ix_(self.others, self.others)])
        # At the mode a step is at most one standard deviation of log s.
        steps = np.ceil(_MODE / np.tanh(_MODE) / spreads[near_zero] - 0.5)
        self.below = np.maximum(steps, _LEAST_BELOW) + 0.5
        self.centres: dict[tuple[float, ...], Array] = {(0.0,) * self.q: mode}

    @property
    def q(self) -> int:
        """Number of deviations near zero."""
        return len(self.near_zero)

    def log_deviations(self, steps: Array) -> tuple[Array, Array]:
        """Return theta of deviations near zero, (..., q), and log d theta / dx less the mode's."""
        v = _MODE * (1.0 + steps / self.below)
        with np.errstate(divide="ignore", invalid="ignore"):
            theta = self.mode[self.near_zero] + np.log(np.sinh(v) / np.sinh(_MODE))
            unit = np.log(np.tanh(_MODE) / np.tanh(v)).sum(axis=-1)
        return theta, unit

    def theta(self, x: Array) -> Array:
        """Return hyper-parameters at coordinates x (D, p), between the lattice's nodes."""
        steps, z = x[:, : self.q], x[:, self.q :]
        theta = np.empty_like(x)
        theta[:, self.near_zero] = self.log_deviations(steps)[0]
        theta[:, self.others] = self.mode[self.others] + z @ self.V.T
        if self.q:
            nodes, centres = np.array(list(self.centres)), np.array(list(self.centres.values()))
            shifts = centres[:, self.others] - self.mode[self.others]
            theta[:, self.others] += RBFInterpolator(nodes, shifts, kernel="linear")(steps)
        return theta


class _Density:
    """Log density of coordinates, less that of the mode, with the evaluations.

    A density outside the bounds, or where inference fails, is None.
    """

    def __init__(
        self,
        objective: EffectsObjective,
        centre: ObjectiveValue,
        value: Callable[[ObjectiveValue], float],
        scale: _Coordinates,
    ) -> None:
        self.objective, self.value, self.scale = objective, value, scale
        self.top = value(centre)
        objective.nearby.add(centre.theta, centre.posterior.sites)

    def at(self, x: Array) -> tuple[ObjectiveValue, float] | None:
        """Evaluate at coordinates (p,) whose deviations near zero are a node of the lattice."""
        steps, z = np.split(x, [self.scale.q])
        theta = self.scale.centres[tuple(steps)].copy()
        theta[self.scale.others] += self.scale.V @ z
        return self._at(theta, steps)

    def _at(
        self, theta: Array, steps: Array, with_slope: bool = False
    ) -> tuple[ObjectiveValue, float] | None:
        bounds = self.objective.bounds
        if not ((theta >= bounds[:, 0]) & (theta <= bounds[:, 1])).all():
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                tol = _NODE_TOL * self.objective.tol
                evaluation = self.objective(theta, tol, with_slope=with_slope)
        except NumericalError:
            return None
        unit = float(self.scale.log_deviations(steps)[1])
        return evaluation, self.value(evaluation) - self.top + unit

    def at_mode_of_others(self, steps: Array) -> tuple[ObjectiveValue, float] | None:
        """Evaluate at a node of the lattice, where the others follow by steps of Newton's method.

        They start from the nearest node.
        """
        scale = self.scale
        if not (steps > -scale.below).all():
            return None
        nearest = min(scale.centres, key=lambda node: float(np.abs(steps - node).sum()))
        theta = scale.centres[nearest].copy()
        theta[scale.near_zero] = scale.log_deviations(steps)[0]
        for _ in range(_NEWTON_STEPS):
            node = self._at(theta, steps, with_slope=True)
            if node is None:
                return None
            scale.centres[tuple(steps)] = node[0].theta
            step = scale.V.T @ node[0].slope[scale.others]
            length = float(np.linalg.norm(step))
            if length < _CENTRED:
                break
            theta[scale.others] += scale.V @ (step / max(length, 1.0))
            theta = np.clip(theta, *self.objective.bounds.T)
        return node


def _mixed_design(density: _Density, centre: ObjectiveValue) -> DesignNodes[ObjectiveValue]:
    """Return a lattice of the deviations near zero, with a composite design of all others at each.

    Without deviations near zero this is a composite design.
    """
    q, r = density.scale.q, len(density.scale.others)
    steps, evaluations, logs, _ = lattice(
        density.at_mode_of_others, q, centre, 1.0, _LATTICE_DROP
    )
    stretch = half_axis_reach(lambda z: density.at(np.append(np.zeros(q), z)), r)
    designs = []
    for node, evaluation, log in zip(steps, evaluations, logs, strict=True):
        here = node
        if log < -_LATTICE_DROP:
            # It shows how the density falls, and has no weight.
            designs.append((np.zeros((1, r)), [evaluation], np.array([log]), np.zeros(1)))
        else:
            density.objective.nearby.add(evaluation.theta, evaluation.posterior.sites)
            around = stretched_composite(
                lambda z, here=here: density.at(np.append(here, z)), r, (evaluation, log), stretch
            )
            designs.append(around)
    x = np.vstack([np.column_stack([np.tile(node, (len(z), 1)), z]) for node, (z, *_) in zip(steps, designs, strict=True)])
    nodes = [evaluation for _, values, _, _ in designs for evaluation in values]
    logs, base = (np.concatenate([design[i] for design in designs]) for i in (2, 3))
    # The design ends where quantiles of 5 % are. Two more values on each axis, without weight,
    # show how the density falls further out.
    for point in _TAIL * np.vstack([np.eye(r), -np.eye(r)]):
        point = np.append(np.zeros(q), point)
        node = density.at(point)
        if node is not None:
            x, logs, base = np.vstack([x, point]), np.append(logs, node[1]), np.append(base, 0.0)
            nodes.append(node[0])
    return x, nodes, logs, base


def _between(x: Array, logs: Array, scale: _Coordinates, bounds: Array) -> tuple[Array, Array]:
    """Draws of theta and their weights, by the log density interpolated between the nodes.

    A quadratic is reproduced, so that beyond the nodes it falls as a normal density does.
    """
    p, q = x.shape[1], scale.q
    least = (p + 1) * (p + 2) // 2
    kept = logs > -30.0
    reach = max(np.abs(x[kept, q:]).max() + 1.0, _FAR if p < 6 else 0.0)
    low, high = np.full(p, -reach), np.full(p, reach)
    # The lattice's nodes are in the middle of cells.
    low[:q], high[:q] = x[kept, :q].min(axis=0) - 0.5, x[kept, :q].max(axis=0) + 0.5
    if p == 1:
        at = low + (high - low) * ((np.arange(_DRAWS) + 0.5) / _DRAWS)[:, None]
        log_normal = np.zeros(_DRAWS)
    else:
        uniform = qmc.Sobol(p, seed=0).random(_DRAWS)
        normal = ndtri(uniform[:, q:])
        at = np.column_stack([low[:q] + (high - low)[:q] * uniform[:, :q], _WIDER * normal])
        log_normal = -0.5 * (normal**2).sum(axis=1)
    if kept.sum() > least:
        inner = RBFInterpolator(x[kept], logs[kept], kernel="cubic", degree=2 if p < 6 else 1)(at)
    else:
        inner = -0.5 * (at**2).sum(axis=1)
    theta = scale.theta(at)
    inside = ((theta >= bounds[:, 0]) & (theta <= bounds[:, 1])).all(axis=1)
    inside &= ((at >= low) & (at <= high)).all(axis=1)
    # Not above the mode, and not where nothing is known.
    inner = np.where(inside, np.minimum(inner, logs.max() + 0.5) - log_normal, -np.inf)
    weights = np.exp(inner - inner.max())
    used = weights > 1e-9
    return theta[used], weights[used] / weights[used].sum()
