"""Hyper-parameters integrated: nodes with weights, and the density between them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.stats import qmc

from qpruntime.arrays import Array
from qpruntime.effects.designs import composite
from qpruntime.effects.maximum import Mode
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.validation import choice

__all__ = ["INTEGRATIONS", "Nodes", "integrate"]

INTEGRATIONS = ("auto", "mode", "grid", "ccd")
# Distance of a grid's nodes in standard deviations, and how far below the mode they end.
_SPACING, _DROP = {1: 0.5, 2: 1.0, 3: 1.0}, 6.0
# Weights of nodes that are left out.
_LIGHT = 1e-5
# Steps of a grid from the mode at most.
_REACH = 24
# Most hyper-parameters of a grid and of a composite design.
_MOST_GRID, _MOST_CCD = 3, 8
# Step of differences of slopes: relative errors of the Hessian of about 1e-4.
_STEP = 1e-2
# Of a Hessian, beside its largest: flat directions are integrated no further than this allows.
_LEAST = 0.04
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
    V = _directions(objective, centre)
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
        z, found, logs = _grid(at, p, centre)
        weights = np.exp(logs - logs.max())
    else:
        z, found, logs, base = _composite(at, p, centre)
        weights = base * np.exp(logs - logs.max())
    weights = weights / weights.sum()
    # What weighs nothing would cost a factorisation in every prediction.
    kept = weights > _LIGHT
    weights = weights[kept] / weights[kept].sum()
    theta = np.array([one.theta for one, k in zip(found, kept, strict=True) if k])
    found = [one for one, k in zip(found, kept, strict=True) if k]
    draws, draw_weights = _between(z, logs, centre.theta, V, objective.bounds)
    return Nodes(theta, weights, draws, draw_weights), found


def _directions(objective: Objective, centre: Evaluation) -> Array:
    """V (p, p) with theta = mode + V z of unit curvature, by differences of the slopes."""
    p = objective.size
    H = np.empty((p, p))
    low, high = objective.bounds.T
    for k in range(p):
        ends = []
        for sign in (-1.0, 1.0):
            theta = centre.theta.copy()
            theta[k] = np.clip(theta[k] + sign * _STEP, low[k], high[k])
            ends.append(objective(theta))
        gap = ends[1].theta[k] - ends[0].theta[k]
        H[:, k] = -(ends[1].slope - ends[0].slope) / gap
    values, vectors = np.linalg.eigh(0.5 * (H + H.T))
    # Priors alone have a curvature of this order.
    return np.asarray(vectors / np.sqrt(np.maximum(values, _LEAST)))


def _grid(at: Callable, p: int, centre: Evaluation) -> tuple[Array, list[Evaluation], Array]:
    """Nodes of a lattice as far as the density reaches, found from neighbour to neighbour."""
    spacing = _SPACING[p]
    found: dict[tuple[int, ...], tuple[Evaluation, float]] = {(0,) * p: (centre, 0.0)}
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
            if one[1] > -_DROP:
                edge.append(there)
    places = spacing * np.array(list(found), dtype=float)
    return places, [one for one, _ in found.values()], np.array([v for _, v in found.values()])


def _composite(
    at: Callable, p: int, centre: Evaluation
) -> tuple[Array, list[Evaluation], Array, Array]:
    """Nodes of the design, stretched along each half axis to how far the density reaches."""
    stretch = np.ones((2, p))
    for k, side in itertools.product(range(p), (0, 1)):
        z = np.zeros(p)
        z[k] = np.sqrt(2.0) * (2 * side - 1)
        one = at(z)
        if one is not None and one[1] < 0.0:
            # A normal density falls by 1 there.
            stretch[side, k] = np.clip((-one[1]) ** -0.5, 0.25, 2.5)
    points, base = composite(p)
    kept, found, logs, weights = [], [], [], []
    for z, weight in zip(points, base, strict=True):
        own = np.where(z > 0.0, stretch[1], stretch[0]) * z
        sides = np.where(z > 0.0, stretch[1], np.where(z < 0.0, stretch[0], stretch.mean(axis=0)))
        one = (centre, 0.0) if not z.any() else at(own)
        if one is not None:
            kept.append(own)
            found.append(one[0])
            logs.append(one[1])
            weights.append(weight * sides.prod())
    return np.array(kept), found, np.array(logs), np.array(weights)


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
