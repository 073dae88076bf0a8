"""What inference on a sparse precision leaves behind: the contract's `Solution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from qpruntime.inference.precision.evidence import pair_sums
from qpruntime.inference.precision.gradient import evidence_slopes
from qpruntime.inference.precision.observed_rows import SeenRows
from qpruntime.inference.precision.pairs import PairSums
from qpruntime.inference.precision.pattern import as_rows
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.precision.spread import left_out_rows, slopes_of_rows
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.memory import require, squares

__all__ = ["PrecisionSolution"]

#: Rows up to which corrections of the dense engine may be asked for: they take covariances.
_FEW = 3000


@dataclass(frozen=True, eq=False)
class PrecisionSolution:
    """As `qpruntime.inference.contract.Solution` has it.

    Attributes
    ----------
    sites_held : Sites
        Of the sites; where rows are equal there are fewer, S, than rows, N.
    here : Marginals
        Of the sites.
    log_z : ndarray, shape (S,)
        Log density of one observation of each site without the whole site.
    solved : PrecisionSolved
    seen : SeenRows
    problem : Problem
        Of the sites.
    of_rows : Likelihood
        Of the rows.
    """

    sites_held: Sites
    here: Marginals
    log_z: Array
    solved: PrecisionSolved
    seen: SeenRows
    problem: Problem
    of_rows: Likelihood

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
        return self.seen.n

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return self.latent_size

    def sites(self) -> Sites:
        """Sites of the rows: shares of the site of equal ones."""
        return self.seen.sites(self.sites_held)

    def moments(self) -> tuple[Array, Array]:
        """Posterior means and variances of eta at the rows."""
        return self.seen.mean(self.here.mean), self.seen.spread(self.here.variance)

    @cached_property
    def weights(self) -> Array:
        """Slope of the log evidence by the offset of every row, shape (N,)."""
        if self.seen.collapsed.trivial:
            return self.seen.spread(self.here.pull)
        return self.seen.to_rows(slopes_of_rows(self.seen.collapsed, self.here))

    @cached_property
    def _left_out(self) -> Array:
        of_rows = self.of_rows
        found = left_out_rows(self.seen.collapsed, self.here, self.log_z, of_rows)
        return self.seen.left_out(found)

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
        found: Array = self._left_out.copy() if rows is None else self._left_out[rows]
        return found

    def least(self) -> tuple[float, int]:
        """The least of them, and its row."""
        row = int(np.argmin(self._left_out))
        return float(self._left_out[row]), row

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
        return centre, self.solved.variances_at(A)

    def _columns(self, A: sparse.csr_array) -> Array:
        """A', dense and in the order of elimination."""
        order = self.solved.prior.pattern.symbolic.order
        return np.ascontiguousarray(A.T.toarray()[order])

    def points(self, at: tuple[Any, ...], mean: Any) -> Points:
        """Points for corrections."""
        A = self.rows_at(at)
        offset = prior_mean(mean, self.usual, (A.shape[0],))
        both = sparse.vstack([A, self.given_rows()], format="csr")
        K = self._prior_covariance(sparse.csr_array(both), A.shape[0])
        own = K[:, : A.shape[0]].diagonal()
        return Points(K[:, A.shape[0] :], own, np.broadcast_to(offset, own.shape))

    def given_rows(self) -> sparse.csr_array:
        """A of the sites, in the order of columns that was given."""
        rows, order = self.solved.prior.rows, self.solved.prior.pattern.symbolic.order
        shape = rows.indptr.size - 1, self.latent_size
        return sparse.csr_array((rows.values, order[rows.columns], rows.indptr), shape=shape)

    def all_rows(self) -> tuple[sparse.csr_array, Array]:
        """A and offsets of all rows that were kept, from those of the sites."""
        collapsed = self.seen.collapsed
        offset = (self.solved.prior.offset - collapsed.merged.shift)[collapsed.rows.site]
        return sparse.csr_array(self.given_rows()[collapsed.rows.site]), offset

    def _prior_covariance(self, A: sparse.csr_array, count: int) -> Array:
        """Prior covariances of the first rows of A with all of them, (count, N)."""
        if A.shape[0] - count * (count < A.shape[0]) > _FEW:
            raise InputError(
                f"N = {self.here.mean.size} rows, more than {_FEW}: marginals by corrections take "
                "their covariances; corrected_evidence and coefficient go by pairs of rows"
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

    def joint(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Means (T,) and covariances (T, T) of eta at rows of A; of x where there are none."""
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

    def gradient(self, change: Any) -> Array | float:
        """Slope of the log evidence where the precision changes so."""
        return evidence_slopes(self.solved, change)

    def observed(self) -> Observed:
        """Data and prior covariance of the sites."""
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
        """The same over pairs that share a level."""
        return pair_sums(self.problem, self.solved, self.here, self.sites_held, levels=True)

    def __getstate__(self) -> dict[str, Any]:
        # What the problem has cached are addresses, which mean nothing in another process.
        return {**vars(self), "problem": replace(self.problem)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def knows_covariance(self) -> bool:
        """Whether covariances of the rows can be had."""
        return self.here.mean.size <= _FEW

    def facts(self) -> dict[str, Any]:
        """What this engine adds to a summary."""
        size = self.solved.prior.pattern.symbolic.size
        negative = int((self.sites_held.tau < 0.0).sum())
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
        offset = self.solved.prior.offset - self.seen.collapsed.merged.shift
        low, high = float(offset.min()), float(offset.max())
        return low if low == high else None
