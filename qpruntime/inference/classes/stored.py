"""What a joint posterior of classes keeps of its algebra: as much as predictions take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtpttr, dtrttp

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import NumericalError
from qpruntime.inference.classes.algebra import Blocks, slope_of
from qpruntime.inference.dense import tiles
from qpruntime.inference.dense.triangles import mirror_upper

__all__ = ["ClassKept"]


class ClassKept:
    """Weights and precisions of all classes; it pickles, triangles as such.

    Attributes
    ----------
    weights : ndarray, shape (N (C - 1),)
        Of sites, as `qpruntime.inference.solver.Kept` has them.
    by_class : ndarray, shape (C, N)
        K_c^-1 (posterior mean of f_c).
    E : ndarray, shape (C, N, N)
    lower : ndarray, shape (N, N)
        Those of `Blocks`.
    shared : bool
        Whether all classes have one covariance.
    """

    def __init__(self, blocks: Blocks, by_class: Array, weights: Array) -> None:
        self.E, self.lower = blocks.E, blocks.lower
        self.by_class, self.weights, self.shared = by_class, weights, len(blocks.K) == 1

    def predict(self, *new: Any) -> tuple[Array, Array]:
        """Latent means (T, C) and covariances (T, C, C), of K_star and prior variances.

        These have shape (C, T, N) or (1, T, N), and (C, T) or (1, T).
        """
        K_star, diagonal = new
        C, n = self.by_class.shape

        def moments(some: slice) -> tuple[Array, Array]:
            crossed = K_star[:, some]
            count = crossed.shape[1]
            mean, found = np.empty((count, C)), np.empty((count, C, C))
            halves = []
            with np.errstate(over="ignore", invalid="ignore"):
                for c in range(C):
                    rows = crossed[c % len(crossed)]
                    reached = rows @ self.E[c]
                    mean[:, c] = rows @ self.by_class[c]
                    found[:, c, c] = -np.einsum("ti,ti->t", rows, reached)
                    halves.append(tiles.solve_lower(self.lower, reached.T))
                for c in range(C):
                    for d in range(c):
                        both = np.einsum("it,it->t", halves[c], halves[d])
                        found[:, c, d] = found[:, d, c] = both
                    found[:, c, c] += np.einsum("it,it->t", halves[c], halves[c])
            return mean, found

        mean, covariance = in_blocks(moments, K_star.shape[1], n * C)
        for c in range(C):
            lifted = covariance[:, c, c] + diagonal[c % len(diagonal)]
            covariance[:, c, c] = np.maximum(lifted, 0.0)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise NumericalError(
                "a prediction is beyond double precision: K_star does not belong to this "
                "posterior, or the latent functions have to be rescaled"
            )
        return mean, covariance

    def slopes(self) -> Iterator[Array]:
        """Derivatives of the log evidence by each K_c, the sites being fixed, (N, N) each."""
        for E, weights in zip(self.E, self.by_class, strict=True):
            yield slope_of(E, self.lower, weights)

    def evidence_gradient(self, change: Any) -> Array | float:
        """Slope of the log evidence where the priors change so.

        By (N, N) or (N, N, p) where all classes have one, else (C, N, N) or (C, N, N, p).
        """
        by_class = change[None] if self.shared else change
        terms = [
            np.tensordot(slope, by_class[c % len(by_class)], axes=([0, 1], [0, 1]))
            for c, slope in enumerate(self.slopes())
        ]
        found = np.sum(terms, axis=0)
        return float(found) if np.ndim(found) == 0 else found

    def __getstate__(self) -> dict[str, Any]:
        packed = np.array([dtrttp(one.T, uplo="L")[0] for one in self.E])
        lower, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"E": packed, "lower": lower}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        n = self.by_class.shape[1]
        self.lower, _ = dtpttr(n, state["lower"], uplo="L")
        self.E = np.empty((len(state["E"]), n, n))
        for whole, packed in zip(self.E, state["E"], strict=True):
            whole[...] = dtpttr(n, packed, uplo="L")[0].T
            mirror_upper(whole)
