"""Rows of an operator: observation i sees a_i' f, not f_i."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import qr, solve_triangular

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError
from qpruntime.inference.dense import blas
from qpruntime.inference.operator.visit_kernels import quadratic_forms

__all__ = ["FunctionalFeatures", "Functionals", "root_of", "weighted_square"]

#: Largest number of values of a block of rows.
_BLOCK = 4_000_000
#: Share of the largest possible variance of a functional that rounding alone can leave.
_ROUNDED = 1e-15


@restorable("functionals/1")
class Functionals:
    """Rows a_i of an operator A, shape (N, n), as a dense array or in CSR form.

    Parameters
    ----------
    operator : array-like or scipy sparse, shape (N, n)
    n : int
        Number of latent values.

    Raises
    ------
    InputError
        If the operator has another shape, or is not finite.
    """

    def __init__(self, operator: sparse.csr_array | Array, n: int) -> None:
        self.rows: Any
        if sparse.issparse(operator):
            if operator.dtype.kind not in "fiub":
                raise InputError(f"operator must be of real numbers, got {operator.dtype}")
            rows = sparse.csr_array(operator, dtype=np.float64)
            finite(rows.data, "operator")
        else:
            rows = np.ascontiguousarray(finite(operator, "operator"))
        if rows.ndim != 2 or rows.shape[1] != n or rows.shape[0] == 0:
            raise InputError(
                f"operator must have shape (N, {n}), a row for each observation and a column for "
                f"each latent value of K; got {rows.shape}"
            )
        self.rows = rows

    def __getstate__(self) -> dict[str, object]:
        if not sparse.issparse(self.rows):
            return {"rows": self.rows}
        return {
            "entries": (self.rows.data, self.rows.indices, self.rows.indptr),
            "shape": self.rows.shape,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        if "rows" in state:
            self.rows = state["rows"]
        else:
            self.rows = sparse.csr_array(state["entries"], shape=state["shape"])
            # Indices from a file are checked, because SciPy's products read wherever they point to.
            self.rows.check_format(full_check=True)

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[0])

    @property
    def latent(self) -> int:
        """Number of latent values."""
        return int(self.rows.shape[1])

    def times(self, values: Array) -> Array:
        """Return A values, of shape (n,) or (n, p)."""
        return np.asarray(self.rows @ values)

    def seen(self, K_star: Array) -> Array:
        """Return covariances (T, N) of points with the functionals, from those (T, n) with f."""
        return np.ascontiguousarray(self.times(np.ascontiguousarray(K_star.T)).T)

    def back(self, values: Array) -> Array:
        """Return A' values, of shape (N,) or (N, p)."""
        return np.asarray(self.rows.T @ values)

    def blocks(self, root: Array) -> Iterator[tuple[slice, Array]]:
        """Yield rows of A root in blocks, each of shape (rows, r); `root` has shape (n, r)."""
        step = max(1, _BLOCK // max(root.shape[1], 1))
        for start in range(0, self.n, step):
            row_block = slice(start, min(start + step, self.n))
            yield row_block, self.rows[row_block] @ root

    def precision(self, tau: Array) -> Array:
        """Return A' diag(tau) A, shape (n, n): the precision that sites add to that of f."""
        precision: Array
        if sparse.issparse(self.rows):
            precision = (self.rows.T @ (self.rows * tau[:, None])).toarray()
        else:
            precision = weighted_square(self.rows, tau)
        return precision

    @property
    def lengths(self) -> Array:
        """Squared lengths |a_i|^2, shape (N,)."""
        if sparse.issparse(self.rows):
            return np.asarray(self.rows.power(2).sum(axis=1)).ravel()
        return np.asarray(np.einsum("ij,ij->i", self.rows, self.rows))

    def covariance(self, K: Array) -> Array:
        """Return A K A', shape (N, N), exactly symmetric.

        Raises
        ------
        InputError
            If the matrix cannot fit into memory.
        """
        what = f"the covariance of {self.n} observations along an operator"
        require(8.0 * self.n * (3.0 * self.n + self.latent), what, "pass fewer of them")
        covariance = self.times(np.ascontiguousarray(self.times(K).T))
        covariance += covariance.T.copy()
        covariance *= 0.5
        return covariance

    def require_variances(self, variance: Array, K: Array) -> None:
        """Raise `InputError` if a row has a prior variance of zero under K, up to rounding."""
        none = variance <= _ROUNDED * self.lengths * K.diagonal().max()
        if none.any():
            row = int(np.argmax(none))
            raise InputError(
                f"row {row} of the operator has prior variance {variance[row]:g} under K: its "
                "observation says nothing of f; leave it out"
            )


def weighted_square(rows: Array, weight: Array) -> Array:
    """Return rows' diag(weight) rows, as a sum of squares if no weight is negative."""
    scaled = rows * np.sqrt(np.abs(weight))[:, None]
    below = weight < 0.0
    square: Array = scaled.T @ scaled
    if below.any():
        square -= 2.0 * (scaled[below].T @ scaled[below])
    return square


def root_of(K: Array) -> Array:
    """Return L with L L' = K, (n, n): lower by Cholesky, or by eigenvalues if K is singular."""
    factor, info = blas.cholesky(K.T.copy(order="F"))
    least = factor.diagonal().min() if info == 0 else 0.0
    if least > 1e-7 * np.sqrt(K.diagonal().max()):
        return np.tril(factor)
    values, vectors = np.linalg.eigh(K)
    known = values > len(K) * np.finfo(float).eps * values[-1]
    return np.asarray(vectors[:, known] * np.sqrt(values[known]))


# --- Rows in whitened coordinates: phi_i = L' a_i with K = L L'

#: Rounding error that the sum of sparse rows may have in a matrix whose eigenvalues are at least 1.
_ROUNDED_FEATURE = 1e-9
#: The same for all rows, above which they are rotated into the factor instead.
_LOST = 1e-12
#: Number of values of Phi from which on sparse rows take their variances from a covariance of all
#: columns.
_LARGE = 8_000_000
#: Such a variance has lost digits below this share of the bound of its terms.
_CANCELLED = 1e-6


class FunctionalFeatures:
    """Features Phi = A L, shape (N, r): an array or, if A is sparse, blocks computed on demand.

    Parameters
    ----------
    functionals : Functionals
    K : ndarray, shape (n, n)
        Prior covariance of f.

    Raises
    ------
    InputError
        If an array of this shape cannot fit into memory.
    """

    def __init__(self, functionals: Functionals, K: Array) -> None:
        self.functionals, self.root = functionals, root_of(K)
        self._sparse = sparse.issparse(functionals.rows)
        self._reach = float(functionals.lengths.max()) * float(K.diagonal().max())
        if not self._sparse:
            self.rows  # noqa: B018  found once, before anything is settled

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.functionals.n

    @property
    def width(self) -> int:
        """Rank r of K."""
        return int(self.root.shape[1])

    @cached_property
    def rows(self) -> Array:
        """Features Phi, shape (N, r)."""
        what = f"{self.n} observations of {self.functionals.latent} latent values"
        require(16.0 * self.n * self.width, what, "hand over a scipy sparse operator")
        return self.functionals.times(self.root)

    def times(self, x: Array) -> Array:
        """Return Phi x, shape (N,)."""
        return self.functionals.times(self.root @ x)

    def back(self, v: Array) -> Array:
        """Return Phi' v, shape (r,)."""
        return self.root.T @ self.functionals.back(v)

    def squares(self, factor: Array | None = None) -> Array:
        """Return |factor^-1 phi_i|^2, shape (N,), as sums of squares, which do not cancel."""
        root = self.root
        if factor is not None:
            if not self._sparse:
                half = solve_triangular(factor, self.rows.T, lower=True, check_finite=False)
                return np.asarray(np.einsum("ij,ij->j", half, half))
            root = solve_triangular(factor, root.T, lower=True, check_finite=False).T
        if self.many:
            return self._by_entries(root)
        return self._by_blocks(self.functionals, root)

    @cached_property
    def many(self) -> bool:
        """True if sparse rows are so many and so short that Phi would cost most."""
        if not self._sparse or self.n * self.width < _LARGE:
            return False
        entries = np.diff(self.functionals.rows.indptr).astype(float)
        return bool((entries * entries).sum() < 0.1 * self.n * self.width)

    def _by_entries(self, root: Array) -> Array:
        """Return squares as a' S a, S = root root', where that keeps its digits."""
        S = root @ root.T
        forms, reach = quadratic_forms(self.functionals.rows, S)
        lost = np.flatnonzero(forms < _CANCELLED * reach)
        if lost.size:
            forms[lost] = self._by_blocks(Functionals(self.functionals.rows[lost], len(S)), root)
        return forms

    def _by_blocks(self, functionals: Functionals, root: Array) -> Array:
        squares = np.empty(functionals.n)
        for row_block, block in functionals.blocks(root):
            np.einsum("ij,ij->i", block, block, out=squares[row_block])
        return squares

    def precision(self, tau: Array) -> Array:
        """Return I + Phi' diag(tau) Phi, shape (r, r)."""
        if not self._sparse:
            precision = weighted_square(self.rows, tau)
        elif np.abs(tau).max() * self._reach * np.finfo(float).eps < _ROUNDED_FEATURE:
            # Rows with few entries are summed first, in time that does not grow with their number.
            precision = self.root.T @ self.functionals.precision(tau) @ self.root
            precision += precision.T.copy()
            precision *= 0.5
        else:
            precision = np.zeros((self.width, self.width))
            for row_block, block in self.functionals.blocks(self.root):
                precision += weighted_square(block, tau[row_block])
        precision.flat[:: self.width + 1] += 1.0
        return precision

    def factor(self, tau: Array, variance: Array) -> tuple[Array, int]:
        """Return the lower L with L L' = I + Phi' diag(tau) Phi, and LAPACK's status.

        If the largest of tau times the prior variances is so large that a sum would lose the
        prior's share, rows are rotated into the factor instead, the longest first.
        """
        reach = float((tau * variance).max())
        if (tau < 0.0).any() or reach * np.finfo(float).eps < _LOST:
            return blas.cholesky(np.asfortranarray(self.precision(tau)))
        rows = np.vstack([self.rows * np.sqrt(tau)[:, None], np.eye(self.width)])
        longest = np.argsort(-np.einsum("ij,ij->i", rows, rows), kind="stable")
        upper: Array = qr(rows[longest], mode="r")[0][: self.width]
        upper *= np.where(upper.diagonal() < 0.0, -1.0, 1.0)[:, None]
        return np.asfortranarray(upper.T), 0
