"""The posterior at one node of the hyper-parameters, made of its sites by one factorisation."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.precision.solver import PrecisionPrior
from qpruntime.inference.sites import Sites

__all__ = ["Node"]


class Node:
    """Effects x ~ N(0, Q^-1), C x = 0, seen through sites at the rows of A.

    Parameters
    ----------
    pattern : Pattern
        Of A and Q.
    A, Q : csr_array
    offset : ndarray, shape (N,)
    constraint : ndarray, shape (m, K), or None
    log_det : float
        Of Q off the constraint.
    sites : Sites
        Of all rows; equal ones have shares of one, which leave the same posterior.
    """

    def __init__(
        self,
        pattern: Pattern,
        A: sparse.csr_array,
        Q: sparse.csr_array,
        offset: Array,
        constraint: Array | None,
        log_det: float,
        sites: Sites,
    ) -> None:
        rows, halves = pattern.rows(A), pattern.halves(Q)
        self.prior = PrecisionPrior(pattern, rows, halves, offset, constraint, log_det)
        self.solved = PrecisionSolved(self.prior, sites)

    @cached_property
    def latent(self) -> Array:
        """Posterior mean of the effects, shape (K,)."""
        found: Array = self.solved.latent[self.prior.pattern.symbolic.place]
        return found

    def moments(self) -> tuple[Array, Array]:
        """Means and variances of the linear predictor at the rows."""
        return self.solved.mean, self.solved.marginals()[0]

    def predict(self, A: sparse.csr_array) -> tuple[Array, Array]:
        """Means and variances of A x, each of shape (T,)."""
        return A @ self.latent, self.solved.variances_at(A)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draws of x, shape (count, K)."""
        x = self.prior.draw_latent(self.solved.factor, rng, count)
        return np.ascontiguousarray((x + self.latent[:, None]).T)
