"""The point to recommend: low where the constraints hold, or where they hold most probably."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import log_ndtr

from qpruntime.arrays import Array
from qpruntime.bayesopt.search import least_mean, maximise
from qpruntime.bayesopt.space import Space
from qpruntime.bayesopt.surrogate import Surrogate

__all__ = ["log_feasible", "recommended"]


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
        # Where all is known to be infeasible, the least violation and not the least certainty.
        u, _ = maximise(
            lambda U: log_feasible(surrogates, U, 1e-6)[None], known, known.shape[1], rng, space
        )
    return u
