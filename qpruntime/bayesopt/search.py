"""Searches in the unit cube: the best of an acquisition, and the least mean that is feasible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.bayesopt.minimisers import sobol

__all__ = ["least_mean", "maximise"]

_CANDIDATES = 1024
#: Of the local search: points that it starts from, new points a round, and their spreads.
_BEST, _ROUND, _SPREADS = 4, 96, (0.08, 0.025, 0.008, 0.002)


def maximise(
    worth: Callable[[Array], Array], near: Array, d: int, rng: np.random.Generator
) -> tuple[Array, int]:
    """Point and row of the largest of worth(U), shape (rows, T); `near` are good guesses."""
    U = np.vstack([sobol(_CANDIDATES, d, rng), np.clip(near, 0.0, 1.0)])
    values = worth(U)
    for spread in _SPREADS:
        best = U[np.argsort(-values.max(axis=0), kind="stable")[:_BEST]]
        centres = best[rng.integers(0, len(best), _ROUND)]
        new = np.clip(centres + spread * rng.standard_normal(centres.shape), 0.0, 1.0)
        U, values = np.vstack([best, new]), worth(np.vstack([best, new]))
    row, at = np.unravel_index(int(np.argmax(values)), values.shape)
    return U[at], int(row)


def least_mean(
    mean: Callable[[Array], Array],
    log_feasible: Callable[[Array], Array],
    wanted: float,
    known: Array,
    rng: np.random.Generator,
) -> Array:
    """Least mean where log_feasible >= wanted, or where the latter is largest if it is nowhere."""
    d = known.shape[1]
    U = np.vstack([sobol(2 * _CANDIDATES, d, rng), np.clip(known, 0.0, 1.0)])
    for spread in _SPREADS:
        good = _order(mean(U), log_feasible(U), wanted)
        best = U[good[:_BEST]]
        centres = best[rng.integers(0, len(best), 4 * _ROUND)]
        new = np.clip(centres + spread * rng.standard_normal(centres.shape), 0.0, 1.0)
        U = np.vstack([best, new])
    best = U[_order(mean(U), log_feasible(U), wanted)[0]]
    end = minimize(
        lambda u: mean(u[None])[0],
        best,
        bounds=[(0.0, 1.0)] * d,
        constraints=[{"type": "ineq", "fun": lambda u: log_feasible(u[None])[0] - wanted}],
        method="SLSQP",
        options={"maxiter": 50, "ftol": 1e-9, "eps": 1e-6},
    ).x
    if np.isfinite(end).all():
        two = np.vstack([best, np.clip(end, 0.0, 1.0)])
        best = two[_order(mean(two), log_feasible(two), wanted - 1e-9)[0]]
    return np.asarray(best)


def _order(mean: Array, log_feasible: Array, wanted: float) -> NDArray[np.intp]:
    """Indices from best to worst: feasible ones by their mean, then the others by feasibility."""
    fine = log_feasible >= wanted
    return np.lexsort((np.where(fine, mean, -log_feasible), ~fine))
