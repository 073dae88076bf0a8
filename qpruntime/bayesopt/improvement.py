"""Constrained expected improvement (Gardner et al., ICML 2014), by its logarithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from qpruntime.arrays import Array
from qpruntime.bayesopt.surrogate import Surrogate

__all__ = ["least_feasible", "log_improvement", "log_mean"]

#: Added to variances, in units of the observations' spread.
_LEAST = 1e-12


def least_feasible(surrogates: Sequence[Surrogate]) -> float | None:
    """Least mean of the objective where it was observed and means of constraints hold, if any."""
    objective = surrogates[0]
    fine = np.ones(len(objective.X), dtype=bool)
    for s in surrogates[1:]:
        # Means at data are those data but for rounding.
        fine &= s.posterior_mean(objective.X) >= -1e-8 * np.sqrt(s.scale)
    return float(objective.posterior_mean(objective.X)[fine].min()) if fine.any() else None


def log_improvement(
    surrogates: Sequence[Surrogate], best: float | None = None
) -> Callable[[Array], Array]:
    """Log of expected improvement times the probability of feasibility, a function of points.

    Parameters
    ----------
    surrogates : list of Surrogate
        The objective first, then the constraints.
    best : float, optional
        What is to be improved on; by default `least_feasible`. Where there is none, points are
        worth the probability of feasibility alone.
    """
    best = least_feasible(surrogates) if best is None else best

    def worths(U: Array) -> Array:
        total = np.zeros(len(U))
        for s in surrogates[1:]:
            mean, variance = s.predict(U)
            total += log_ndtr(mean / np.sqrt(variance + _LEAST))
        if best is not None:
            mean, variance = surrogates[0].predict(U)
            sd = np.sqrt(variance + _LEAST)
            z = (best - mean) / sd
            density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
            total += np.log(np.maximum(sd * (z * ndtr(z) + density), 1e-300))
        return total

    return worths


def log_mean(logs: Sequence[Array]) -> Array:
    """Logarithm of the mean of what has these logarithms."""
    if len(logs) == 1:
        return logs[0]
    return np.asarray(logsumexp(np.array(logs), axis=0) - np.log(len(logs)))
