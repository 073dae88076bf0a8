"""Hyper-parameters integrated: nodes with weights, and the density between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.stats import qmc

from qpruntime.arrays import Array
from qpruntime.effects.maximum import Mode
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.effects.scales import curvature
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.learning.nodes.spread import directions, lattice, stretched
from qpruntime.validation import choice

__all__ = ["INTEGRATIONS", "Nodes", "integrate"]

INTEGRATIONS = ("auto", "mode", "grid", "ccd")
# Distance of a grid's nodes in standard deviations, and how far below the mode they end.
_SPACING, _DROP = {1: 0.5, 2: 1.0, 3: 1.0}, 6.0
# Weights of nodes that are left out.
_LIGHT = 1e-5
# Most hyper-parameters of a grid and of a composite design.
_MOST_GRID, _MOST_CCD = 3, 8
# Draws of theta by which deviations are summarised.
_DRAWS = 4096


@dataclass(frozen=True, eq=False)
class Nodes:
    """Where hyper-parameters are, and how likely.

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
    objective: Objective,
    mode: Mode,
    how: str,
    value: Callable[[Evaluation], float],
) -> tuple[Nodes, list[Evaluation]]:
    """Spread nodes around the mode.

    Parameters
    ----------
    objective : Objective
    mode : Mode
    how : {"auto", "mode", "grid", "ccd"}
        "auto" is a grid for up to two hyper-parameters, a composite design for up to eight, else
        the mode.
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
    if how == "auto":
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
        return Nodes(theta, np.ones(1), theta, np.ones(1)), [centre]
    V = directions(curvature(objective, centre))
    top = value(centre)

    def at(z: Array) -> tuple[Evaluation, float] | None:
        theta = centre.theta + V @ z
        if not ((theta >= objective.bounds[:, 0]) & (theta <= objective.bounds[:, 1])).all():
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                one = objective(theta)
        except NumericalError:
            return None
        return one, value(one) - top

    objective.nearby.add(centre.theta, centre.posterior.sites)
    if how == "grid":
        z, found, logs, base = lattice(at, p, centre, _SPACING[p], _DROP)
    else:
        z, found, logs, base = stretched(at, p, centre)
    weights = base * np.exp(logs - logs.max())
    weights = weights / weights.sum()
    # What weighs nothing would cost a factorisation in every prediction.
    kept = weights > _LIGHT
    weights = weights[kept] / weights[kept].sum()
    theta = np.array([one.theta for one, k in zip(found, kept, strict=True) if k])
    found = [one for one, k in zip(found, kept, strict=True) if k]
    draws, draw_weights = _between(z, logs, centre.theta, V, objective.bounds)
    return Nodes(theta, weights, draws, draw_weights), found


def _between(z: Array, logs: Array, centre: Array, V: Array, bounds: Array) -> tuple[Array, Array]:
    """Draws of theta and their weights, by the log density interpolated between the nodes.

    A quadratic is reproduced, so that beyond the nodes it falls as a normal density does.
    """
    p = z.shape[1]
    least = (p + 1) * (p + 2) // 2
    kept = logs > -30.0
    quantiles = qmc.Sobol(p, seed=0).random(_DRAWS)
    reach = np.abs(z[kept]).max() + 1.0
    if p == 1:
        quantiles = ((np.arange(_DRAWS) + 0.5) / _DRAWS)[:, None]
    at = reach * (2.0 * quantiles - 1.0)
    if kept.sum() > least:
        inner = RBFInterpolator(z[kept], logs[kept], kernel="cubic", degree=2 if p < 6 else 1)(at)
    else:
        inner = -0.5 * (at**2).sum(axis=1)
    theta = centre + at @ V.T
    inside = ((theta >= bounds[:, 0]) & (theta <= bounds[:, 1])).all(axis=1)
    # Not above the mode, and not where nothing is known.
    inner = np.where(inside, np.minimum(inner, 0.5), -np.inf)
    weights = np.exp(inner - inner.max())
    used = weights > 1e-9
    return theta[used], weights[used] / weights[used].sum()
