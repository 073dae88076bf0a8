"""Priors x ~ N(0, Q^-1) with a sparse precision Q and linear constraints, seen by rows o + A x."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense.solver import CholeskyFactor
from qpruntime.inference.parallel_updates import propose_matched
from qpruntime.inference.precision.cholesky import Factorised, Pattern, SparseRows, filled
from qpruntime.inference.precision.pattern_kernels import (
    add_rows,
    back,
    entry_coordinates,
    squares,
    times,
)
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites, no_sites
from qpruntime.inference.solver_protocol import (
    PredictiveState,
    Prior,
    Pullback,
    SiteProblem,
    Solved,
)

__all__ = [
    "ConstraintCorrection",
    "Entries",
    "PrecisionPrior",
    "PrecisionSolved",
    "prior_entries",
]

# --- Entries of A' diag(tau) A


class Entries(NamedTuple):
    """Places of the entries of A' diag(tau) A: pairs of rows, in the order of the panels.

    entry : (pairs,), the entry of every pair
    rows, begins : of the entries below the diagonal, as of a `csc_array`
    kept : which entries are below the diagonal
    """

    entry: NDArray[np.integer]
    rows: NDArray[np.integer]
    begins: NDArray[np.integer]
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, prior: PrecisionPrior) -> Self:
        """Return the entries of a prior's rows; the pattern keeps them."""
        cache, rows_of_prior = prior.pattern.held, prior.rows
        known = cache.get("entries")
        if known is None or known[0] is not rows_of_prior.columns:
            marked = np.zeros(prior.pattern.symbolic.size, dtype=bool)
            marked[rows_of_prior.pairs] = True
            index = (np.cumsum(marked, dtype=rows_of_prior.pairs.dtype) - 1)[rows_of_prior.pairs]
            rows, columns = (np.empty(np.count_nonzero(marked), np.int32) for _ in range(2))
            entry_coordinates(rows_of_prior.indptr, rows_of_prior.columns, index, rows, columns)
            kept = rows != columns
            begins = np.searchsorted(columns[kept], np.arange(prior.pattern.k + 1))
            known = rows_of_prior.columns, cls(index, rows[kept], begins.astype(np.int32), kept)
            cache["entries"] = known
        return known[1]

    def lower(self, rows_of_prior: SparseRows, tau: Array) -> sparse.csc_array:
        """Return A' diag(tau) A below its diagonal."""
        values, k = np.zeros(self.kept.size), self.begins.size - 1
        add_rows(values, rows_of_prior.indptr, rows_of_prior.values, self.entry, tau)
        return sparse.csc_array((values[self.kept], self.rows, self.begins), shape=(k, k))


# --- Prior: latent values x ~ N(0, Q^-1) and rows eta = o + A x that see them


@restorable("precision-prior/1")
class PrecisionPrior(Prior):
    """K latent values with a sparse precision, and N sparse rows that see them.

    Parameters
    ----------
    pattern : Pattern
    rows : SparseRows
        Rows of A.
    q : ndarray
        Lower triangle of the precision at the places `pattern.lower`.
    offset : ndarray, shape (N,)
    constraint : ndarray, shape (m, K), or None
    log_det : float or None
        log |Q| of the prior, with the constraint's log |C Q^-1 C'|; computed when it is None.
    """

    covariance = None

    def __init__(
        self,
        pattern: Pattern,
        rows: SparseRows,
        q: Array,
        offset: Array,
        constraint: Array | None,
        log_det: float | None,
    ) -> None:
        self.pattern, self.rows, self.q = pattern, rows, q
        self.offset, self.constraint = offset, constraint
        if log_det is not None:
            self.log_det = log_det

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

    @cached_property
    def own(self) -> Factorised:
        """Factor of Q alone."""
        symbolic, at = self.pattern.of_prior
        factor = Factorised(symbolic, filled(symbolic.size, at, self.q))
        if factor.failed >= 0:
            raise NumericalError(
                f"the precision Q is not positive definite at column "
                f"{int(symbolic.order[factor.failed])}: the prior of its term is improper; add "
                "1e-9 of its mean diagonal to it, and constrain what it leaves free"
            )
        return factor

    def conditioned_solve(self, right: Array) -> Array:
        """Return the prior covariance of x times columns (K, T), in the order of `own`."""
        solution = self.own.solve(right)
        if self.constraint is not None:
            for h in ConstraintCorrection(self.own, self.constraint).half():
                solution -= h[:, None] * (h @ right)
        return solution

    @cached_property
    def log_det(self) -> float:
        """Log determinant log |Q| of the prior, plus log |C Q^-1 C'| with a constraint."""
        factor = self.own
        if self.constraint is None:
            return factor.log_det
        return factor.log_det + ConstraintCorrection(factor, self.constraint).log_det

    def draw_latent(self, factor: Factorised, rng: np.random.Generator, count: int) -> Array:
        """Return draws of x about its mean by a factor of its precision, shape (K, count)."""
        deviations = factor.root(rng.standard_normal((self.pattern.k, count)))
        if self.constraint is not None:
            deviations = ConstraintCorrection(factor, self.constraint).project(deviations)
        return deviations[factor.symbolic.place]

    def precision(self) -> sparse.csr_array:
        """Return Q, in the given order of columns."""
        pattern = self.pattern
        indptr, indices = pattern.of_q
        data = np.empty(indices.size)
        data[pattern.lower_entries] = self.q
        data[pattern.mirrored_entries] = self.q
        return sparse.csr_array((data, indices, indptr), shape=(pattern.k, pattern.k))

    def precision_times(self, x: Array) -> Array:
        """Return Q x, for x in the order of elimination."""
        symbolic = self.pattern.symbolic
        return np.asarray((self.precision() @ x[symbolic.place])[symbolic.order])

    def times(self, x: Array) -> Array:
        """Return A x, for x in the order of elimination."""
        out = np.empty(self.rows.indptr.size - 1)
        times(self.rows.indptr, self.rows.columns, self.rows.values, x, out)
        return out

    def dense_rows(self, indices: NDArray[np.integer]) -> Array:
        """Return chosen columns of A', dense, (K, T)."""
        rows = self.rows
        begins = rows.indptr[indices]
        widths = rows.indptr[indices + 1] - begins
        ends = np.cumsum(widths)
        entries = np.arange(widths.sum()) + np.repeat(begins - ends + widths, widths)
        columns = np.zeros((self.pattern.k, indices.size))
        places = rows.columns[entries], np.repeat(np.arange(indices.size), widths)
        columns[places] = rows.values[entries]
        return columns

    def back(self, w: Array) -> Array:
        """Return A' w, in the order of elimination."""
        out = np.empty(self.pattern.k)
        back(self.rows.indptr, self.rows.columns, self.rows.values, w, out)
        return out


def prior_entries(prior: PrecisionPrior) -> Array:
    """Return the prior covariance on the pattern of Q, also if the prior is constrained."""
    factor, pattern = prior.own, prior.pattern
    symbolic, at = pattern.of_prior
    panels = factor.inverse()
    entries = np.empty(pattern.entries.size)
    entries[pattern.lower_entries] = panels[at]
    entries[pattern.mirrored_entries] = panels[at]
    if prior.constraint is not None:
        place = symbolic.place
        rows, columns = pattern.coordinates
        for h in ConstraintCorrection(factor, prior.constraint).half():
            entries -= h[place[rows]] * h[place[columns]]
    return entries


# --- Constraints C x = 0


@restorable("conditioned/1")
class ConstraintCorrection:
    """Correction of the inverse of a factorised matrix by a constraint.

    Parameters
    ----------
    factor : Factorised
    C : ndarray, shape (m, K)

    Raises
    ------
    NumericalError
        If constraints are linearly dependent.
    """

    def __init__(self, factor: Factorised, C: Array) -> None:
        self.C = C[:, factor.symbolic.order]
        self.W = factor.solve(self.C.T)
        inner = self.C @ self.W
        try:
            self._inner = cho_factor(0.5 * (inner + inner.T), lower=True)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                f"the {len(C)} constraints repeat each other, or leave no room: drop those that "
                "follow from others"
            ) from error
        self.log_det = 2.0 * float(np.log(self._inner[0].diagonal()).sum())

    def project(self, x: Array) -> Array:
        """Return x (K,) or (K, T) moved to C x = 0, in the factor's order of elimination."""
        return x - self.W @ cho_solve(self._inner, self.C @ x)

    def half(self) -> Array:
        """Return H (m, K) with H'H = W (C W)^-1 W', in the order of elimination."""
        return np.ascontiguousarray(solve_triangular(self._inner[0], self.W.T, lower=True))


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

    def __init__(self, prior: PrecisionPrior, sites: Sites, single: bool = False) -> None:
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
