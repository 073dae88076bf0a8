"""Priors x ~ N(0, Q^-1) with a sparse precision Q and linear constraints."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.precision.cholesky import Factorised, filled
from qpruntime.inference.precision.pattern import Pattern, SparseRows
from qpruntime.inference.precision.pattern_kernels import add_rows, back, entry_coordinates, times

__all__ = ["ConstraintCorrection", "Entries", "SparseLatent", "prior_entries"]

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
    def of(cls, prior: SparseLatent) -> Self:
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


# --- Latent values x ~ N(0, Q^-1) and rows that see them
#
# This class has the operations that need no sites: products with Q and A, the factor of Q alone,
# draws.


class SparseLatent:
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


def prior_entries(prior: SparseLatent) -> Array:
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
