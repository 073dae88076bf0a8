"""Hyper-parameters integrated: nodes with weights, and the density between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.special import ndtri
from scipy.stats import qmc

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.effects.objective import EffectsObjective, ObjectiveValue
from qpruntime.effects.optimise import Mode, curvature
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.learning.hyper_integration.designs import directions, lattice, stretched_composite

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
    V = directions(curvature(objective, centre))
    top = value(centre)
    known = automatic and np.sqrt((V**2).sum(axis=1)).max() <= _KNOWN
    if known and p == 2:
        how = "ccd"

    def at(z: Array) -> tuple[ObjectiveValue, float] | None:
        """Return the evaluation at z and its value less the mode's, or None outside the bounds."""
        theta = centre.theta + V @ z
        if not ((theta >= objective.bounds[:, 0]) & (theta <= objective.bounds[:, 1])).all():
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                evaluation = objective(theta, _NODE_TOL * objective.tol, with_slope=False)
        except NumericalError:
            return None
        return evaluation, value(evaluation) - top

    objective.nearby.add(centre.theta, centre.posterior.sites)
    if how == "grid":
        spacing = 1.0 if known else _SPACING[p]
        z, evaluations, logs, base = lattice(at, p, centre, spacing, _DROP)
    else:
        z, evaluations, logs, base = stretched_composite(at, p, centre)
        # The design ends where quantiles of 5 % are. Two more values on each axis, without weight,
        # show how the density falls further out.
        for point in _TAIL * np.vstack([np.eye(p), -np.eye(p)]):
            node = at(point)
            if node is not None:
                z, logs, base = np.vstack([z, point]), np.append(logs, node[1]), np.append(base, 0)
                evaluations.append(node[0])
    weights = base * np.exp(logs - logs.max())
    weights = weights / weights.sum()
    # A node without weight would cost a factorisation in every prediction.
    kept = weights > _LIGHT
    weights = weights[kept] / weights[kept].sum()
    theta = np.array(
        [evaluation.theta for evaluation, k in zip(evaluations, kept, strict=True) if k]
    )
    evaluations = [evaluation for evaluation, k in zip(evaluations, kept, strict=True) if k]
    draws, draw_weights = _between(z, logs, centre.theta, V, objective.bounds)
    return HyperNodes(theta, weights, draws, draw_weights), evaluations


def _between(z: Array, logs: Array, centre: Array, V: Array, bounds: Array) -> tuple[Array, Array]:
    """Draws of theta and their weights, by the log density interpolated between the nodes.

    A quadratic is reproduced, so that beyond the nodes it falls as a normal density does.
    """
    p = z.shape[1]
    least = (p + 1) * (p + 2) // 2
    kept = logs > -30.0
    reach = max(np.abs(z[kept]).max() + 1.0, _FAR if p < 6 else 0.0)
    if p == 1:
        at = reach * (2.0 * ((np.arange(_DRAWS) + 0.5) / _DRAWS)[:, None] - 1.0)
        log_normal = np.zeros(_DRAWS)
    else:
        normal = ndtri(qmc.Sobol(p, seed=0).random(_DRAWS))
        at, log_normal = _WIDER * normal, -0.5 * (normal**2).sum(axis=1)
    if kept.sum() > least:
        inner = RBFInterpolator(z[kept], logs[kept], kernel="cubic", degree=2 if p < 6 else 1)(at)
    else:
        inner = -0.5 * (at**2).sum(axis=1)
    theta = centre + at @ V.T
    inside = ((theta >= bounds[:, 0]) & (theta <= bounds[:, 1])).all(axis=1)
    inside &= np.abs(at).max(axis=1) <= reach
    # Not above the mode, and not where nothing is known.
    inner = np.where(inside, np.minimum(inner, 0.5) - log_normal, -np.inf)
    weights = np.exp(inner - inner.max())
    used = weights > 1e-9
    return theta[used], weights[used] / weights[used].sum()
