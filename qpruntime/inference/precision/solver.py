"""Prior of rows on a sparse precision, `qpruntime.inference.solver_protocol`: eta = o + A x."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense.cholesky import CholeskyFactor
from qpruntime.inference.parallel_updates import propose_matched
from qpruntime.inference.precision.cholesky import Factorised, filled
from qpruntime.inference.precision.pattern import SparseRows
from qpruntime.inference.precision.pattern_kernels import add_rows, squares, times
from qpruntime.inference.precision.prior import ConstraintCorrection, SparseLatent
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites, no_sites
from qpruntime.inference.solver_protocol import (
    PredictiveState,
    Prior,
    Pullback,
    SiteProblem,
    Solved,
)

__all__ = ["PrecisionPrior", "PrecisionSolved"]

# --- Prior: eta = o + A x


@restorable("precision-prior/1")
class PrecisionPrior(SparseLatent, Prior):
    """N linear functionals of K latent values with a sparse precision: see `SparseLatent`."""

    covariance = None

    @property
    def mean(self) -> Array:
        """Offsets of the rows."""
        return self.offset

    @cached_property
    def variance(self) -> Array:
        """Prior variances of the rows."""
        return self.factor(no_sites(self.offset.size)).marginals()[0]

    def factor(self, sites: Sites) -> PrecisionSolved:
        """Return the posterior of these sites."""
        return PrecisionSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        """Return eta at the rows sampled from the prior."""
        x = self.draw_latent(self.own, rng, 1)[:, 0]
        return self.offset + self.times(x[self.pattern.symbolic.order])


# --- Posterior of given sites
#
# The precision of x is P = Q + A' diag(tau) A if sites have precisions tau. The means and variances
# of the rows, which are all that sites need, lie on the pattern of P's factor.

#: Below this value 1 - tau variance has lost digits, and is computed from a posterior without the
#: site; for so many sites at once.
_STRONG, _AT_ONCE = 1e-8, 256
#: Number of new rows per solve.
_BATCH = 64
#: If weights are this much smaller than the terms of their difference, they are computed twice.
_CANCELLED = 1e6


@restorable("precision-solved/1")
class PrecisionSolved(Solved):
    """Posterior of given sites; `single` inverts large dense blocks in single precision.

    Raises
    ------
    NumericalError
        If the precision is not positive definite; the message names the column.
    ImproperPosterior
        If negative site precisions leave no posterior.
    """

    def __init__(self, prior: SparseLatent, sites: Sites, single: bool = False) -> None:
        self.prior, self.tau = prior, sites.tau
        pattern, rows = prior.pattern, prior.rows
        panels = filled(pattern.symbolic.size, pattern.lower, prior.q)
        add_rows(panels, rows.indptr, rows.values, rows.pairs, sites.tau)
        self.factor = Factorised(pattern.symbolic, panels, single)
        if self.factor.failed >= 0:
            if (sites.tau < 0.0).any():
                raise ImproperPosterior("negative site precisions leave no proper posterior")
            raise NumericalError(
                f"the posterior precision is not positive definite at column "
                f"{int(pattern.symbolic.order[self.factor.failed])}: what the term of that column "
                "leaves free, no observation tells; give it a proper prior, or a constraint and "
                "1e-9 of its mean diagonal"
            )
        self.conditioned = None
        if prior.constraint is not None:
            self.conditioned = ConstraintCorrection(self.factor, prior.constraint)
        self.relocate(sites.nu)

    def __getstate__(self) -> dict[str, object]:
        # The inverse is left out: making it again takes no longer than reading it, and it is as
        # large as the factor.
        return {name: value for name, value in vars(self).items() if name != "inverse"}

    def relocate(self, nu: Array) -> None:
        """Set the sites' precision-weighted means."""
        self._nu = nu
        self._solution: tuple[Array, Array, Array] | None = None

    def _solve(self) -> tuple[Array, Array, Array]:
        """Return `weights`, the mean at the rows, and the latent mean."""
        if self._solution is None:
            prior = self.prior
            shifted = self._nu - self.tau * prior.offset
            x, moved, weights = self._solved(shifted)
            if np.abs(shifted).max() > _CANCELLED * np.abs(weights).max():
                # The weights are a difference that cancels if sites dominate, so a second solve
                # corrects the residual.
                correction, moved_again, _ = self._solved(weights, prior.precision_times(x))
                x, moved = x + correction, moved + moved_again
                weights = shifted - self.tau * moved
            mean = prior.offset + moved
            if not np.isfinite(mean).all():
                raise NumericalError(
                    "the posterior mean is beyond double precision: rescale the columns of A"
                )
            self._solution = weights, mean, x
        return self._solution

    def _solved(self, pulls: Array, less: Array | None = None) -> tuple[Array, Array, Array]:
        """Return d = P^-1 (A' pulls - less), A d, and pulls minus tau A d."""
        right = self.prior.back(pulls)
        x = self.factor.solve(right if less is None else right - less)
        if self.conditioned is not None:
            x = self.conditioned.project(x)
        moved = self.prior.times(x)
        return x, moved, pulls - self.tau * moved

    @property
    def mean(self) -> Array:
        """Posterior mean of eta at the rows."""
        return self._solve()[1]

    @property
    def weights(self) -> Array:
        """Weights of the rows, as in `Solved`."""
        return self._solve()[0]

    @property
    def latent(self) -> Array:
        """Posterior mean of x, in the order of elimination."""
        return self._solve()[2]

    @property
    def log_det(self) -> float:
        """Log determinant of the posterior precision of x less that of the prior."""
        log_det = self.factor.log_det - self.prior.log_det
        return log_det if self.conditioned is None else log_det + self.conditioned.log_det

    @cached_property
    def inverse(self) -> Array:
        """Panels of P^-1 without the effect of constraints."""
        return self.factor.inverse()

    @cached_property
    def taken(self) -> Array:
        """Factor H (m, K) of the constraints' effect: the posterior covariance is P^-1 - H'H."""
        if self.conditioned is None:
            return np.empty((0, self.prior.pattern.k))
        return self.conditioned.half()

    def covariances(self, right: Array) -> Array:
        """Return the posterior covariance of x times columns (K, T)."""
        solution = self.factor.solve(right)
        for h in self.taken:
            solution -= h[:, None] * (h @ right)
        return solution

    def variances(self, rows: SparseRows) -> Array:
        """Return posterior variances of rows with pairs."""
        variance = np.empty(rows.indptr.size - 1)
        squares(self.inverse, rows.indptr, rows.values, rows.pairs, variance)
        projection = np.empty_like(variance)
        for h in self.taken:
            times(rows.indptr, rows.columns, rows.values, h, projection)
            variance -= projection * projection
        return variance

    def variances_at(self, A: sparse.csr_array) -> Array:
        """Return posterior variances of new rows, shape (T,): by solves if pairs have no places."""
        pattern = self.prior.pattern
        rows = pattern.new_rows(A)
        if rows.pairs.size or not A.nnz:
            return self.variances(rows)
        has_places, variance = pattern.placed(rows), np.empty(A.shape[0])
        if has_places.any():
            variance[has_places] = self.variances(pattern.new_rows(A[np.flatnonzero(has_places)]))
        others, order = np.flatnonzero(~has_places), pattern.symbolic.order
        for begin in range(0, others.size, _BATCH):
            batch = others[begin : begin + _BATCH]
            right = np.ascontiguousarray(A[batch].T.toarray()[order])
            variance[batch] = np.einsum("ij,ij->j", right, self.covariances(right))
        return variance

    def marginals(self) -> tuple[Array, Array]:
        """Return posterior variances and 1 - tau variance at the rows."""
        variance = self.variances(self.prior.rows)
        kept = 1.0 - self.tau * variance
        strong = np.flatnonzero(kept < _STRONG)
        for begin in range(0, strong.size, _AT_ONCE):
            batch = strong[begin : begin + _AT_ONCE]
            variance[batch], kept[batch] = self._without(batch)
        return variance, kept

    def _without(self, strong: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return variances and 1 - tau variance of few sites, from the posterior of all others."""
        other_tau = self.tau.copy()
        other_tau[strong] = 0.0
        others = PrecisionSolved(self.prior, Sites(other_tau, np.zeros(other_tau.size)))
        right = self.prior.dense_rows(strong)
        V = right.T @ others.covariances(right)
        few = Sites(self.tau[strong], np.zeros(strong.size))
        return CholeskyFactor(0.5 * (V + V.T), few, few.nu).marginals()

    propose = propose_matched

    def sweep(
        self,
        problem: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Raise `InputError`: sites are updated in parallel."""
        raise InputError("sites on a sparse precision are updated in parallel order only")

    def discard(self) -> None:
        """Free the memory of the inverse."""
        self._solve()
        vars(self).pop("inverse", None)

    def keep(self) -> PredictiveState:
        """Raise `NotImplementedError`: there is nothing smaller."""
        raise NotImplementedError("a finished posterior keeps all of this")

    def slope(self) -> tuple[Array, Array]:
        """Return the posterior covariance on the pattern of Q, and the mean of x."""
        pattern = self.prior.pattern
        covariance = self.inverse[pattern.entries]
        place = pattern.symbolic.place
        rows, columns = pattern.coordinates
        for h in self.taken:
            covariance -= h[place[rows]] * h[place[columns]]
        return covariance, self.latent[place]

    def pullback(self, marginals: tuple[Array, Array]) -> Pullback:
        """Raise `InputError`: there is none."""
        raise InputError("the leave-one-out objective is for dense priors")
