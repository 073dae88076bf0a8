"""Draws of observations given latent values."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.likelihoods import Likelihood

__all__ = ["observed"]


def observed(
    likelihood: Likelihood, f: Array, rng: np.random.Generator, trials: Array | None = None
) -> Array:
    """One observation for each latent value, in their shape, of a likelihood with `given`."""
    given: Any = likelihood.given
    own = given(f, likelihood.theta, *(() if trials is None else (trials.astype(np.int64),)))
    found = own.rvs(size=f.shape, random_state=rng)
    return np.asarray(found, dtype=float)
