"""Hyper-parameters integrated: nodes with weights, and the density between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    GRID_SPACING,
    MAX_COMPOSITE_PARAMETERS,
    MAX_GRID_PARAMETERS,
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
# Log density below the mode at which a grid ends.
_DROP = 6.0
# Tolerance of the sites at nodes by that of the mode: the evidence is stationary in the sites.
_NODE_TOL = 300.0
# Weights of nodes that are left out.
_LIGHT = 1e-5
# "auto": up to such standard deviations of hyper-parameters, which are logarithms, densities are
# near enough to normal ones for a composite design, a fifth of the grid, or for half a grid of one.
_KNOWN = 0.3
# Standard deviations from the mode at which a composite design looks at tails.
_TAIL = 2.5
# Standard deviations of log s above which s may be near zero.
_VAGUE = 0.25
# A deviation near zero: v at the mode, for s = c sinh v, the longest step there in standard
# deviations of log s, and the least number of nodes of the lattice below the mode. Means of half of
# a normal density, and of normal ones that are 1.5 to 3 standard deviations from 0, are then off by
# 1 % of a standard deviation.
_MODE, _STEP, _LEAST_BELOW = float(np.arcsinh(2.0)), 1.4, 2
# The lattice ends so far below the mode.
_LATTICE_DROP = 4.0
# Nodes of a lattice by deviation, and the most nodes with those of the others: these are three
# deviations near zero of up to four hyper-parameters, and two of up to eight.
_LATTICE_NODES, _MOST_NODES = 6, 650
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
    towards_zero: bool = True,
) -> tuple[HyperNodes, list[ObjectiveValue]]:
    """Spread nodes around the mode.

    Parameters
    ----------
    objective : EffectsObjective
    mode : Mode
    how : {"auto", "mode", "grid", "ccd"}
        "auto" is a grid for up to two hyper-parameters, a composite design for up to eight and for
        two that the data know well or that may be 0, else the mode.
    value : callable
        Log density of an evaluation, which the weights follow.
    towards_zero : bool
        Whether "auto" and "ccd" follow deviations near zero by a lattice, if there are two
        hyper-parameters or more.

    Returns
    -------
    nodes : HyperNodes
    evaluations : list of ObjectiveValue
        Of the nodes, in their order.
    """
    choice(how, "integrate", INTEGRATIONS)
    p = objective.size
    automatic = how == "auto"
    if automatic:
        how = "grid" if p <= 2 else "ccd" if p <= MAX_COMPOSITE_PARAMETERS else "mode"
    most = {"grid": MAX_GRID_PARAMETERS, "ccd": MAX_COMPOSITE_PARAMETERS}.get(how, p)
    if p > most:
        raise InputError(
            f'integrate="{how}" is for {most} hyper-parameters at most, and these are {p}: use '
            f'"{"ccd" if p <= MAX_COMPOSITE_PARAMETERS else "mode"}"'
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
    near_zero = np.array([], dtype=int)
    if towards_zero and p > 1 and (automatic or how == "ccd"):
        near_zero = _near_zero(objective, centre, spreads)
        how = "ccd" if near_zero.size else how
    scale = _Coordinates(centre.theta, H, spreads, near_zero)
    density = _Density(objective, centre, value, scale)
    if how == "grid":
        spacing = 1.0 if known else GRID_SPACING[p]
        z, evaluations, logs, base = lattice(density.at, p, centre, spacing, _DROP)
    else:
        z, evaluations, logs, base = _mixed_design(density, centre)
    weights = base * np.exp(logs - logs.max())
    weights = weights / weights.sum()
    # A node without weight would cost a factorisation in every prediction.
    kept = weights > _LIGHT
    weights = weights[kept] / weights[kept].sum()
    evaluations = [evaluation for evaluation, k in zip(evaluations, kept, strict=True) if k]
    theta = np.array([evaluation.theta for evaluation in evaluations])
    draws, draw_weights = _between(z, logs, scale, objective.bounds)
    return HyperNodes(theta, weights, draws, draw_weights), evaluations


def _near_zero(objective: EffectsObjective, centre: ObjectiveValue, spreads: Array) -> NDArray[Any]:
    """Return the deviations that may be 0, the least known ones, as indices of theta."""
    p = objective.size
    vague = np.flatnonzero(spreads > _VAGUE)
    gains = dict(deviation_gains(objective, centre, vague))
    flat = [k for k in sorted(gains, key=lambda k: -spreads[k]) if gains[k] < _DROP]
    while _LATTICE_NODES ** len(flat) * (2 * (p - len(flat)) + 1) > _MOST_NODES:
        flat.pop()
    return np.array(sorted(flat), dtype=int)


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
        steps = np.ceil(_MODE / np.tanh(_MODE) / (_STEP * spreads[near_zero]) - 0.5)
        self.below = np.maximum(steps, _LEAST_BELOW) + 0.5
        self.centres: dict[tuple[float, ...], Array] = {(0.0,) * self.q: mode}

    @property
    def q(self) -> int:
        """Number of deviations near zero."""
        return len(self.near_zero)

    def _relative(self, steps: Array) -> Array:
        """Return s / c = sinh v of deviations near zero."""
        return np.asarray(np.sinh(_MODE * (1.0 + steps / self.below)))

    def log_deviations(self, steps: Array) -> tuple[Array, Array]:
        """Return theta of deviations near zero, (..., q), and log d theta / dx less the mode's."""
        relative = self._relative(steps)
        with np.errstate(divide="ignore", invalid="ignore"):
            theta = self.mode[self.near_zero] + np.log(relative / np.sinh(_MODE))
            # d log s / dv = cosh v / sinh v.
            unit = np.log(np.tanh(_MODE) * np.sqrt(1.0 + relative**2) / relative).sum(axis=-1)
        return theta, unit

    def along_lattice(self, x: Array, logs: Array) -> Callable[[Array], Array]:
        """Return the log density over steps (D, q) with the others at their mode.

        It is interpolated over s, where half of a normal density is a quadratic, and even in s.
        """
        is_centre = ~x[:, self.q :].any(axis=1)
        nodes, values = self._relative(x[is_centre, : self.q]), logs[is_centre]
        parts, more = [nodes], [values]
        for k in range(self.q):
            lowest = nodes[:, k] < np.sinh(2.0 * _MODE / self.below[k])
            parts.append(np.where(np.arange(self.q) == k, -1.0, 1.0) * nodes[lowest])
            more.append(values[lowest])
        between = RBFInterpolator(np.vstack(parts), np.concatenate(more), kernel="cubic", degree=2)
        return lambda steps: np.asarray(between(self._relative(steps)))

    def theta(self, x: Array) -> Array:
        """Return hyper-parameters at coordinates x (D, p), between the lattice's nodes."""
        steps, z = x[:, : self.q], x[:, self.q :]
        theta = np.empty_like(x)
        theta[:, self.near_zero] = self.log_deviations(steps)[0]
        theta[:, self.others] = self.mode[self.others] + z @ self.V.T
        if self.q:
            nodes, centres = np.array(list(self.centres)), np.array(list(self.centres.values()))
            shifts = centres[:, self.others] - self.mode[self.others]
            between = RBFInterpolator(self._relative(nodes), shifts, kernel="cubic")
            theta[:, self.others] += between(self._relative(steps))
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
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
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
            node = self._at(theta, steps, with_slope=scale.others.size > 0)
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

    This is a composite design if no deviation is near zero.
    """
    q, r = density.scale.q, len(density.scale.others)
    steps, evaluations, logs, _ = lattice(density.at_mode_of_others, q, centre, 1.0, _LATTICE_DROP)
    stretch = half_axis_reach(partial(_at_node, density, np.zeros(q)), r)
    designs: list[DesignNodes[ObjectiveValue]] = []
    for node, evaluation, log in zip(steps, evaluations, logs, strict=True):
        if log < -_LATTICE_DROP:
            # The others are at their mode, which has the weight of the first design.
            mass = designs[0][3] @ np.exp(designs[0][2])
            designs.append((np.zeros((1, r)), [evaluation], np.array([log]), np.array([mass])))
            continue
        density.objective.nearby.add(evaluation.theta, evaluation.posterior.sites)
        around = partial(_at_node, density, node)
        # Corners at the mode show how the others depend on each other.
        designs.append(
            stretched_composite(around, (evaluation, log), stretch, with_corners=not node.any())
        )
    counts = [len(design[0]) for design in designs]
    x = np.column_stack([np.repeat(steps, counts, axis=0), np.vstack([z for z, *_ in designs])])
    nodes = [evaluation for _, values, _, _ in designs for evaluation in values]
    logs, base = (np.concatenate([design[i] for design in designs]) for i in (2, 3))
    # The design ends where quantiles of 5 % are. Two more values on each axis, without weight,
    # show how the density falls further out.
    for point in _TAIL * np.vstack([np.eye(r), -np.eye(r)]):
        tail = np.append(np.zeros(q), point)
        end = density.at(tail)
        if end is not None:
            x, logs, base = np.vstack([x, tail]), np.append(logs, end[1]), np.append(base, 0.0)
            nodes.append(end[0])
    return x, nodes, logs, base


def _at_node(density: _Density, steps: Array, z: Array) -> tuple[ObjectiveValue, float] | None:
    return density.at(np.append(steps, z))


def _between(x: Array, logs: Array, scale: _Coordinates, bounds: Array) -> tuple[Array, Array]:
    """Draws of theta and their weights, by the log density interpolated between the nodes.

    A quadratic is reproduced, so that beyond the nodes it falls as a normal density does.
    """
    p, q = x.shape[1], scale.q
    least = (p + 1) * (p + 2) // 2
    kept = logs > -30.0
    reach = max(np.abs(x[kept, q:]).max(initial=0.0) + 1.0, _FAR if p < 6 else 0.0)
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
    x, logs = x[kept], logs[kept]
    top, inner = logs.max(), np.zeros(_DRAWS)
    if q:
        # The rest is nearly a quadratic in the other coordinates.
        profile = scale.along_lattice(x, logs)
        inner, logs = profile(at[:, :q]), logs - profile(x[:, :q])
    if len(x) > least:
        degree = 2 if p < 6 and _determine_quadratic(x) else 1
        inner += RBFInterpolator(x, logs, kernel="cubic", degree=degree)(at)
    else:
        inner -= 0.5 * (at[:, q:] ** 2).sum(axis=1)
    theta = scale.theta(at)
    inside = ((theta >= bounds[:, 0]) & (theta <= bounds[:, 1])).all(axis=1)
    inside &= ((at >= low) & (at <= high)).all(axis=1)
    # Not above the mode, and not where nothing is known.
    inner = np.where(inside, np.minimum(inner, top + 0.5) - log_normal, -np.inf)
    weights = np.exp(inner - inner.max())
    used = weights > 1e-9
    return theta[used], weights[used] / weights[used].sum()


def _determine_quadratic(x: Array) -> bool:
    """Decide whether values at x (J, p) determine a quadratic; corners may be out of bounds."""
    first, second = np.triu_indices(x.shape[1])
    terms = np.column_stack([np.ones(len(x)), x, x[:, first] * x[:, second]])
    return bool(np.linalg.matrix_rank(terms) == terms.shape[1])
