"""Points of the unit cube: those that come first, before anything is modelled, and the best.

The best of an acquisition, and the least mean that is feasible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr

from qpruntime._typing import Array
from qpruntime.bayesopt.minimisers import check_coordinates, sobol
from qpruntime.bayesopt.space import Space
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import InputError

__all__ = ["design", "largest_design", "least_mean", "log_feasible", "maximise", "recommended"]

#: Points of a design are kept in memory, 128 MB at most.
_NUMBERS = 2**24
_CANDIDATES = 1024
#: Settings of the local search: number of starts, new points a round, and their spreads.
_BEST, _ROUND, _SPREADS = 4, 96, (0.08, 0.025, 0.008, 0.002)


def largest_design(space: Space, n: int) -> None:
    """Raise `InputError` if there is no design of n points."""
    check_coordinates(space.d)
    most = max(_NUMBERS // space.d, space.d + 1)
    if n > most:
        raise InputError(f"n_initial must be at most {most} in {space.d} coordinates, got {n}")


def design(space: Space, n: int, rng: np.random.Generator) -> Array:
    """Return n points of the cube that the space has, different ones while there are any."""
    if space.loose.any():
        return space.snap(sobol(n, space.d, rng))
    U = space.snap(sobol(8 * n, space.d, rng))
    _, first = np.unique(U, axis=0, return_index=True)
    order = np.sort(first)
    return U[order[np.arange(n) % len(order)]]


def maximise(
    worth: Callable[[Array], Array], near: Array, rng: np.random.Generator, space: Space
) -> tuple[Array, int]:
    """Point and row of the largest of worth(U), shape (rows, T); `near` are good guesses.

    Integers and categories are rounded before points are judged.
    """
    U = space.snap(np.vstack([sobol(_CANDIDATES, space.d, rng), np.clip(near, 0.0, 1.0)]))
    values = worth(U)
    for spread in _SPREADS:
        best = U[np.argsort(-values.max(axis=0), kind="stable")[:_BEST]]
        centres = best[rng.integers(0, len(best), _ROUND)]
        new = _around(centres, spread, rng, space)
        U, values = np.vstack([best, new]), worth(np.vstack([best, new]))
    row, at = np.unravel_index(int(np.argmax(values)), values.shape)
    return U[at], int(row)


def least_mean(
    mean: Callable[[Array], Array],
    log_feasible: Callable[[Array], Array],
    wanted: float,
    known: Array,
    rng: np.random.Generator,
    space: Space,
) -> Array:
    """Least mean where log_feasible >= wanted, or where the latter is largest if it is nowhere."""
    U = space.snap(np.vstack([sobol(2 * _CANDIDATES, space.d, rng), np.clip(known, 0.0, 1.0)]))
    for spread in _SPREADS:
        good = _order(mean(U), log_feasible(U), wanted)
        best = U[good[:_BEST]]
        centres = best[rng.integers(0, len(best), 4 * _ROUND)]
        new = _around(centres, spread, rng, space)
        U = np.vstack([best, new])
    best = U[_order(mean(U), log_feasible(U), wanted)[0]]
    if not space.loose.any():
        return np.asarray(best)
    end = minimize(
        lambda u: mean(u[None])[0],
        best,
        bounds=space.held(best),
        constraints=[{"type": "ineq", "fun": lambda u: log_feasible(u[None])[0] - wanted}],
        method="SLSQP",
        options={"maxiter": 50, "ftol": 1e-9, "eps": 1e-6},
    ).x
    if np.isfinite(end).all():
        two = space.snap(np.vstack([best, np.clip(end, 0.0, 1.0)]))
        best = two[_order(mean(two), log_feasible(two), wanted - 1e-9)[0]]
    return np.asarray(best)


def _around(centres: Array, spread: float, rng: np.random.Generator, space: Space) -> Array:
    """Points of the space that are near these, and some that are elsewhere in what is rounded."""
    new = np.clip(centres + spread * rng.standard_normal(centres.shape), 0.0, 1.0)
    return space.snap(space.stirred(new, rng))


def _order(mean: Array, log_feasible: Array, wanted: float) -> NDArray[np.intp]:
    """Return indices, best first: feasible ones by mean, then the others by feasibility."""
    fine = log_feasible >= wanted
    return np.lexsort((np.where(fine, mean, -log_feasible), ~fine))


# --- The point to recommend: low where the constraints hold, or where they hold most probably.


def log_feasible(surrogates: Sequence[Surrogate], U: Array, least: float = 1e-14) -> Array:
    """Log probability that all constraints hold; `least` is of variances, in prior ones."""
    total = np.zeros(len(U))
    for s in surrogates[1:]:
        mean, variance = s.predict(U)
        total += log_ndtr(mean / np.sqrt(np.maximum(variance, least * s.scale + 1e-300)))
    return total


def recommended(
    surrogates: Sequence[Surrogate],
    known: Array,
    confidence: float,
    rng: np.random.Generator,
    space: Space,
) -> Array:
    """Point of the unit cube with the least mean whose constraints hold with this probability.

    If there is none, where they hold most probably; it is a point that the space has, and `known`
    (T, d) are points to begin from.
    """
    wanted = float(np.log(confidence))
    u = least_mean(
        lambda U: surrogates[0].posterior_mean(U),
        lambda U: log_feasible(surrogates, U),
        wanted,
        known,
        rng,
        space,
    )
    if log_feasible(surrogates, u[None])[0] < wanted - 1e-6:
        # If all is known to be infeasible, the least violation counts, not the least certainty.
        u, _ = maximise(lambda U: log_feasible(surrogates, U, 1e-6)[None], known, rng, space)
    return u
