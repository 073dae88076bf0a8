"""Draws of observations given latent values."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.likelihoods import Likelihood

__all__ = ["observed"]


def observed(likelihood: Likelihood, f: Array, rng: np.random.Generator) -> Array:
    """One observation for each latent value, in their shape, of a likelihood with `given`."""
    assert likelihood.given is not None
    found = likelihood.given(f, likelihood.theta).rvs(size=f.shape, random_state=rng)
    return np.asarray(found, dtype=float)
