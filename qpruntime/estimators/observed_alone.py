"""Where a latent function begins: its mean and spread if rows had nothing to do with each other.

Then each observation has the normaliser Z(mean, spread) of its likelihood, and the two numbers with
the highest product of them are about where f is and how much it varies: whatever the link is.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.projection.kernel import project_many
from qpruntime.projection.projector import Projector

__all__ = ["mean_and_spread"]

# Rows that are looked at, evaluations at most, and how far spreads may go from the best of a few.
_ROWS, _EVALUATIONS, _FACTOR = 150, 60, 5.0
_SPREADS = (0.3, 1.0, 3.0)
_FAILED = 1e100


def mean_and_spread(
    projector: Projector, y: Array, weights: Array | None, shift: Array | float = 0.0
) -> tuple[float, float]:
    """Mean and standard deviation of latent values, which observations alone make likely.

    Parameters
    ----------
    projector : Projector
        Of EP; with the rows of observations of several numbers.
    y : ndarray, shape (N,)
        As kernels take them.
    weights : ndarray, shape (N,), or None
    shift : float or ndarray, shape (N,)
        What is added to latent values, logarithms of exposures.
    """
    some = np.random.default_rng(0).permutation(len(y))[:_ROWS]
    besides = np.broadcast_to(shift, y.shape)[some]
    seen, shares = y[some], np.ones(len(some)) if weights is None else weights[some]

    def loss(place: Array) -> float:
        mu, log_spread = place
        if not (abs(mu) < 1e100 and abs(log_spread) < 200.0):
            return _FAILED
        sigma = np.full(len(seen), math.exp(log_spread))
        args = projector.likelihood, projector.source, mu + besides, sigma, seen
        try:
            log_z = project_many(*args).log_z
        except NumericalError as error:
            if error.__cause__ is not None:  # a user's own exception
                raise
            return _FAILED
        found = -float(shares @ log_z)
        return found if math.isfinite(found) else _FAILED

    places = _places(projector, seen if np.ndim(shift) == 0 else seen / np.exp(besides))
    tried = [np.array([mu, math.log(s)]) for mu in places for s in _SPREADS]
    spread = _spread(projector, seen)
    if spread > 0.0:
        tried += [np.array([float(np.median(seen)), math.log(spread)])]
    begin = min(tried, key=loss)
    simplex = begin + np.array([[0.0, 0.0], [0.5 * math.exp(begin[1]), 0.0], [0.0, 0.5]])
    options = {"maxfev": _EVALUATIONS, "initial_simplex": simplex, "fatol": 1e-3, "xatol": 1e-3}
    end = minimize(loss, begin, method="Nelder-Mead", options=options).x
    low, high = begin[1] - math.log(_FACTOR), begin[1] + math.log(_FACTOR)
    return float(end[0]), math.exp(float(np.clip(end[1], low, high)))


def _places(projector: Projector, y: Array) -> list[float]:
    """Means that links in use make of observations: f, e^f and shares."""
    rows = projector.likelihood.rows
    values = y if rows is None else rows[y.astype(int)][:, 0]
    values = values[np.isfinite(values)]
    middle = float(np.median(values)) if values.size else 0.0
    found = [0.0, middle]
    if middle > 0.0:
        found += [math.log(middle), math.sqrt(middle)]
    if 0.0 < middle < 1.0:
        found.append(math.log(middle / (1.0 - middle)))
    return found


def _spread(projector: Projector, y: Array) -> float:
    return 0.0 if projector.likelihood.rows is not None else float(np.std(y))
