"""What inference on a sparse precision leaves behind: the contract's `Solution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.contract import Crossed, prior_mean
from qpruntime.inference.corrections.corrected import Points
from qpruntime.inference.observed import Observed
from qpruntime.inference.precision.gradient import evidence_slopes
from qpruntime.inference.precision.pattern import as_rows
from qpruntime.inference.precision.solver import PrecisionSolved
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.memory import require, squares

__all__ = ["PrecisionSolution"]

#: Rows of a prediction that are solved for at once.
_BATCH = 64
#: Rows up to which corrections of the dense engine may be asked for: they take covariances.
_FEW = 3000


@dataclass(frozen=True, eq=False)
class PrecisionSolution:
    """As `qpruntime.inference.contract.Solution` has it.

    Attributes
    ----------
    own : Sites
    mean_rows, variance_rows, log_z : ndarray, shape (N,)
        At the rows; the last are leave-one-out log densities.
    solved : PrecisionSolved
    y : ndarray, shape (N,)
        Encoded observations.
    likelihood : Likelihood
    exponents : ndarray, shape (N,), or None
    """

    own: Sites
    mean_rows: Array
    variance_rows: Array
    log_z: Array
    solved: PrecisionSolved
    y: Array
    likelihood: Likelihood
    exponents: Array | None

    lines = ()
    where = ("A",)
    name, corrects = "precision", True

    @property
    def words(self) -> str:
        """What a line about the posterior says."""
        return f" of {self.latent_size} latent values with a sparse precision"

    @property
    def latent_size(self) -> int:
        """Latent values, K."""
        return self.solved.prior.pattern.k

    @property
    def algebra(self) -> int:
        """No matrices that threads of BLAS would share."""
        return 0

    @property
    def held_rows(self) -> int:
        """All rows."""
        return self.mean_rows.size

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return self.latent_size

    def sites(self) -> Sites:
        """Sites at the rows."""
        return self.own

    def moments(self) -> tuple[Array, Array]:
        """Posterior means and variances of eta at the rows."""
        return self.mean_rows, self.variance_rows

    @cached_property
    def _latent(self) -> tuple[Array, Array]:
        pattern = self.solved.prior.pattern
        place = pattern.symbolic.place
        variance = self.solved.inverse[pattern.diagonal]
        for h in self.solved.taken:
            variance = variance - h[place] ** 2
        return self.solved.latent[place], variance

    def latent(self) -> tuple[Array, Array]:
        """Posterior means and variances of x, each of shape (K,)."""
        return self._latent

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Leave-one-out log densities of some rows."""
        found: Array = self.log_z.copy() if rows is None else self.log_z[rows]
        return found

    def least(self) -> tuple[float, int]:
        """The least of them, and its row."""
        row = int(np.argmin(self.log_z))
        return float(self.log_z[row]), row

    def rows_at(self, at: tuple[Any, ...]) -> sparse.csr_array:
        """Rows of A at new points."""
        found = as_rows(at[0])
        if found.shape[1] != self.latent_size:
            raise InputError(
                f"A must have {self.latent_size} columns, as that of the inference; got "
                f"{found.shape[1]}"
            )
        return found

    def predict(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Means and variances of eta at rows of A."""
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        centre = A @ self.latent()[0] + offset
        rows = self.solved.prior.pattern.new_rows(A)
        if rows.pairs.size or not A.nnz:
            return centre, self.solved.variances(rows)
        variance = np.empty(A.shape[0])
        for begin in range(0, A.shape[0], _BATCH):
            some = slice(begin, begin + _BATCH)
            right = self._columns(A[some])
            variance[some] = np.einsum("ij,ij->j", right, self.covariances(right))
        return centre, variance

    def _columns(self, A: sparse.csr_array) -> Array:
        """A', dense and in the order of elimination."""
        order = self.solved.prior.pattern.symbolic.order
        return np.ascontiguousarray(A.T.toarray()[order])

    def covariances(self, right: Array) -> Array:
        """Posterior covariance of x times columns (K, T), in the order of elimination."""
        found = self.solved.factor.solve(right)
        for h in self.solved.taken:
            found -= h[:, None] * (h @ right)
        return found

    def points(self, at: tuple[Any, ...], mean: Any) -> Points:
        """Points for corrections."""
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        both = sparse.vstack([A, self._given_rows()], format="csr")
        K = self._prior_covariance(sparse.csr_array(both), A.shape[0])
        own = K[:, : A.shape[0]].diagonal()
        return Points(K[:, A.shape[0] :], own, np.broadcast_to(offset, own.shape))

    def _given_rows(self) -> sparse.csr_array:
        rows, order = self.solved.prior.rows, self.solved.prior.pattern.symbolic.order
        shape = rows.indptr.size - 1, self.latent_size
        return sparse.csr_array((rows.values, order[rows.columns], rows.indptr), shape=shape)

    def _prior_covariance(self, A: sparse.csr_array, count: int) -> Array:
        """Prior covariances of the first rows of A with all of them, (count, N)."""
        if A.shape[0] - count * (count < A.shape[0]) > _FEW:
            raise InputError(
                f"N = {self.held_rows} rows, more than {_FEW}: marginals by corrections take their "
                "covariances; corrected_evidence and coefficient go by pairs of rows"
            )
        require(squares(1, 2.0 * count * self.latent_size), "prior covariances", "take fewer rows")
        prior = self.solved.prior
        factor = prior.own
        right = np.ascontiguousarray(A[:count].T.toarray()[factor.symbolic.order])
        seen = prior.conditioned_solve(right)
        found: Array = (A @ seen[factor.symbolic.place]).T
        return np.ascontiguousarray(found)

    def draw(self, at: tuple[Any, ...], mean: Any, count: int, rng: np.random.Generator) -> Array:
        """Joint draws of eta at rows of A, (count, T); of x where there are none, (count, K)."""
        solved = self.solved
        x = solved.prior.draw_latent(solved.factor, rng, count) + self.latent()[0][:, None]
        if not at:
            return np.ascontiguousarray(x.T)
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        return np.ascontiguousarray((A @ x).T) + offset

    def gradient(self, change: Any) -> Array | float:
        """Slope of the log evidence where the precision changes so."""
        return evidence_slopes(self.solved, change)

    def observed(self) -> Observed:
        """Data and prior covariance of the rows."""
        A = self._given_rows()
        K = self._prior_covariance(A, A.shape[0])
        K = 0.5 * (K + K.T)
        return Observed(
            K, self.y, self.solved.prior.offset, self.likelihood, weights=self.exponents
        )

    @property
    def knows_covariance(self) -> bool:
        """Whether covariances of the rows can be had."""
        return self.held_rows <= _FEW

    def facts(self) -> dict[str, Any]:
        """What this engine adds to a summary."""
        size = self.solved.prior.pattern.symbolic.size
        negative = int((self.own.tau < 0.0).sum())
        return {"n_negative": negative, "latent": self.latent_size, "factor": size}

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Any, ...]:
        """Rows of A."""
        raise InputError("a sparse precision knows no inputs: hand over rows of A")

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> PrecisionSolution:
        """The same: it does not know its inputs."""
        return self

    @property
    def usual(self) -> float | None:
        """The offset, if it is one number."""
        offset = self.solved.prior.offset
        low, high = float(offset.min()), float(offset.max())
        return low if low == high else None
