"""Solution of inference on a sparse precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.precision.aggregation import SeenRows, left_out_rows, slopes_of_rows
from qpruntime.inference.precision.cholesky import MatrixLike, as_precision, as_rows
from qpruntime.inference.precision.corrections import PairSums, pair_sums
from qpruntime.inference.precision.solver import PrecisionSolved, prior_entries
from qpruntime.inference.problem import Observed, Problem
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed, Solution, common_value, prior_mean
from qpruntime.likelihoods import Likelihood

__all__ = [
    "MOST_CORRECTED_ROWS",
    "PrecisionSolution",
    "Slope",
    "slope_of",
]

# --- What the posterior keeps

#: Number of rows up to which corrections of the dense engine are available, because they take the
#: covariances of all rows.
MOST_CORRECTED_ROWS = 3000


@restorable("precision-solution/1")
@dataclass(frozen=True, eq=False)
class PrecisionSolution(Solution):
    """Solution of a sparse precision; see `qpruntime.inference.solution_protocol.Solution`.

    Attributes
    ----------
    sites_held : Sites
        Sites; if rows are equal there are fewer sites, S, than rows, N.
    here : Marginals
        Marginals of the sites.
    log_z : ndarray, shape (S,)
        Log density of one observation of each site without the whole site.
    solved : PrecisionSolved
    seen : SeenRows
    problem : Problem
        Problem of the sites.
    of_rows : Likelihood
        Likelihood of the rows.
    """

    sites_held: Sites
    here: Marginals
    log_z: Array
    solved: PrecisionSolved
    seen: SeenRows
    problem: Problem
    of_rows: Likelihood

    where = ("A",)
    algebra = 0
    name, corrects = "precision", True

    @property
    def words(self) -> str:
        """Words about the engine for a line of the summary."""
        return f" of {self.latent_size} latent values with a sparse precision"

    @property
    def latent_size(self) -> int:
        """Number of latent values, K."""
        return int(self.solved.prior.pattern.k)

    @property
    def held_rows(self) -> int:
        """All rows."""
        return self.seen.n

    @property
    def width(self) -> int:
        """Numbers that a prediction computes for a point."""
        return self.latent_size

    def sites(self) -> Sites:
        """Return the sites of the rows: equal rows share a site."""
        return self.seen.sites(self.sites_held)

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances of eta at the rows."""
        return self.seen.mean(self.here.mean), self.seen.spread(self.here.variance)

    @cached_property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,)."""
        if self.seen.collapsed.trivial:
            return self.seen.spread(self.here.pull)
        return self.seen.to_rows(slopes_of_rows(self.seen.collapsed, self.here))

    @cached_property
    def _left_out(self) -> Array:
        seen = self.seen
        log_densities = left_out_rows(seen.collapsed, self.here, self.log_z, self.of_rows)
        return seen.to_rows(log_densities, None if seen.alone is None else seen.alone[1])

    @cached_property
    def _latent(self) -> tuple[Array, Array]:
        pattern = self.solved.prior.pattern
        place = pattern.symbolic.place
        variance = self.solved.inverse[pattern.diagonal]
        for h in self.solved.taken:
            variance = variance - h[place] ** 2
        return self.solved.latent[place], variance

    def latent(self) -> tuple[Array, Array]:
        """Return posterior means and variances of x, each of shape (K,)."""
        return self._latent

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of chosen rows."""
        return self._left_out.copy() if rows is None else self._left_out[rows]

    def rows_at(self, at: tuple[ArrayLike, ...]) -> sparse.csr_array:
        """Return rows of A at new points."""
        rows = as_rows(at[0])
        if rows.shape[1] != self.latent_size:
            raise InputError(
                f"A must have {self.latent_size} columns, as that of the inference; got "
                f"{rows.shape[1]}"
            )
        return rows

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return means and variances of eta at rows of A."""
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        centre = A @ self.latent()[0] + offset
        return centre, self.solved.variances_at(A)

    def _columns(self, A: sparse.csr_array) -> Array:
        """Return A', dense and in the order of elimination."""
        order = self.solved.prior.pattern.symbolic.order
        return np.ascontiguousarray(A.T.toarray()[order])

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Return points for corrections."""
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        stacked = sparse.vstack([A, self.given_rows()], format="csr")
        K = self._prior_covariance(sparse.csr_array(stacked), A.shape[0])
        prior_variances = K[:, : A.shape[0]].diagonal()
        return MarginalPoints(
            K[:, A.shape[0] :], prior_variances, np.broadcast_to(offset, prior_variances.shape)
        )

    def given_rows(self) -> sparse.csr_array:
        """Return A of the sites, in the given order of columns."""
        rows, order = self.solved.prior.rows, self.solved.prior.pattern.symbolic.order
        shape = rows.indptr.size - 1, self.latent_size
        return sparse.csr_array((rows.values, order[rows.columns], rows.indptr), shape=shape)

    def all_rows(self) -> tuple[sparse.csr_array, Array]:
        """Return A and offsets of all kept rows, from those of the sites."""
        collapsed = self.seen.collapsed
        offset = (self.solved.prior.offset - collapsed.merged.shift)[collapsed.rows.site]
        return sparse.csr_array(self.given_rows()[collapsed.rows.site]), offset

    def _prior_covariance(self, A: sparse.csr_array, count: int) -> Array:
        """Return prior covariances of the first rows of A with all of them, (count, N)."""
        if A.shape[0] - count * (count < A.shape[0]) > MOST_CORRECTED_ROWS:
            raise InputError(
                f"N = {self.here.mean.size} rows, more than {MOST_CORRECTED_ROWS}: marginals by "
                "corrections take their covariances; corrected_evidence and coefficient go by "
                "pairs of rows"
            )
        require(squares(1, 2.0 * count * self.latent_size), "prior covariances", "take fewer rows")
        prior = self.solved.prior
        factor = prior.own
        right = np.ascontiguousarray(A[:count].T.toarray()[factor.symbolic.order])
        solved_columns = prior.conditioned_solve(right)
        return np.ascontiguousarray((A @ solved_columns[factor.symbolic.place]).T)

    def draw(
        self,
        at: tuple[ArrayLike, ...],
        mean: ArrayLike | None,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Draw eta jointly at rows of A, (count, T), or x if there are no rows, (count, K)."""
        solved = self.solved
        x = solved.prior.draw_latent(solved.factor, rng, count) + self.latent()[0][:, None]
        if not at:
            return np.ascontiguousarray(x.T)
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        return np.ascontiguousarray((A @ x).T) + offset

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return means (T,) and covariances (T, T) of eta at rows of A, or those of x."""
        if not at:
            at, mean = (sparse.eye_array(self.latent_size, format="csr"),), 0.0
        A = self.rows_at(at)
        n = A.shape[0]
        what, remedy = f"joint distributions at {n} points", "take fewer points"
        require(squares(1, float(n * (n + 2 * self.latent_size))), what, remedy)
        offset = prior_mean(mean, self.usual, (n,))
        right = self._columns(A)
        covariance = right.T @ self.solved.covariances(right)
        return A @ self.latent()[0] + offset, 0.5 * (covariance + covariance.T)

    def gradient(self, change: MatrixLike | Sequence[MatrixLike] | None) -> Array | float:
        """Return the slope for one change of Q, or the slopes for a sequence of changes.

        Raises
        ------
        InputError
            If there is no change, or a change has another shape or entries that Q does not have.
        """
        if change is None:
            raise InputError(
                "evidence_gradient takes dK here: a change of the precision Q, sparse (K, K), or a "
                "sequence of them"
            )
        several = change if isinstance(change, Sequence) else None
        changes = [as_precision(dQ) for dQ in ((change,) if several is None else several)]
        pattern = self.solved.prior.pattern
        slope = slope_of(self.solved)
        indptr, indices = pattern.of_q
        before = sparse.csr_array(
            (prior_entries(self.solved.prior), indices, indptr), shape=(pattern.k,) * 2
        )
        known = sparse.csr_array((np.ones(indices.size), indices, indptr), shape=before.shape)
        slopes = []
        for dQ in changes:
            if dQ.shape != before.shape:
                raise InputError(f"a change of Q has its shape {before.shape}, got {dQ.shape}")
            if known.multiply(dQ).nnz != np.count_nonzero(dQ.data):
                raise InputError(
                    "a change of Q has entries that Q has not: store them in Q, as zeros where "
                    "they are zero"
                )
            slopes.append(0.5 * (float(before.multiply(dQ).sum()) - slope.against(dQ)))
        return slopes[0] if several is None else np.array(slopes)

    def observed(self) -> Observed:
        """Return data and prior covariance of the sites."""
        A = self.given_rows()
        K = self._prior_covariance(A, A.shape[0])
        K = 0.5 * (K + K.T)
        problem = self.problem
        likelihood, offset = problem.projector.likelihood, self.solved.prior.offset
        return Observed(K, problem.y, offset, likelihood, weights=problem.weights)

    @cached_property
    def sums(self) -> PairSums:
        """Sums over pairs of sites, which correct the log evidence."""
        return pair_sums(self.problem, self.solved, self.here, self.sites_held)

    def level_sums(self) -> PairSums:
        """Return sums over pairs of sites that share a level."""
        return pair_sums(self.problem, self.solved, self.here, self.sites_held, levels=True)

    def __getstate__(self) -> dict[str, object]:
        # The problem caches addresses, which mean nothing in another process.
        return {**vars(self), "problem": replace(self.problem)}

    @property
    def knows_covariance(self) -> bool:
        """True if covariances of the rows are available."""
        return self.here.mean.size <= MOST_CORRECTED_ROWS

    def facts(self) -> dict[str, str | int | float]:
        """Return what this engine adds to a summary."""
        size = self.solved.prior.pattern.symbolic.size
        negative = int((self.sites_held.tau < 0.0).sum())
        return {"n_negative": negative, "latent": self.latent_size, "factor": size}

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return rows of A."""
        raise InputError("a sparse precision knows no inputs: hand over rows of A")

    @property
    def usual(self) -> float | None:
        """Offset, if it is one number for all rows."""
        offset = self.solved.prior.offset - self.seen.collapsed.merged.shift
        return common_value(offset)


# --- Gradient
#
# The sites count as fixed at EP's fixed point. A change of Q changes the log evidence by (tr(S0 dQ)
# - tr(S dQ) - x' dQ x)/2, with S0 and S the prior and posterior covariance and x the posterior
# mean. All three terms are sums over the entries of Q.


class Slope(NamedTuple):
    """Slope of the log evidence by the precision.

    Attributes
    ----------
    covariance : csr_array, shape (K, K)
        Posterior covariance of x at the entries of Q.
    mean : ndarray, shape (K,)
        Posterior mean of x.

    See Also
    --------
    qpruntime.PrecisionPosterior, qpruntime.infer_precision

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> A = sparse.csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + np.arange(20) // 5 % 2, 1, -1)
    >>> slope = infer_precision(A, Q, y, "logistic").slope()
    >>> slope.mean.round(2).tolist()
    [-0.38, 0.38, -1.24, -0.38]
    >>> round(slope.against(Q), 2)
    1.32
    """

    covariance: sparse.csr_array
    mean: Array

    def against(self, dQ: sparse.csr_array) -> float:
        """Return tr(S dQ) + x' dQ x, for a change whose entries are among those of Q."""
        change = as_precision(dQ)
        return float(self.covariance.multiply(change).sum() + self.mean @ (change @ self.mean))


def slope_of(solved: PrecisionSolved) -> Slope:
    """Return the posterior covariance on the pattern of Q, and the mean of x."""
    data, mean = solved.slope()
    indptr, indices = solved.prior.pattern.of_q
    shape = (mean.size, mean.size)
    return Slope(sparse.csr_array((data, indices, indptr), shape=shape), mean)
