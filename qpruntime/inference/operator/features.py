"""Rows of an operator in coordinates of independent units: phi_i = L' a_i, for K = L L'."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import qr, solve_triangular

from qpruntime.arrays import Array
from qpruntime.inference.dense import tiles
from qpruntime.inference.operator.entries import quadratic_forms
from qpruntime.inference.operator.functionals import Functionals, root_of, weighted_square
from qpruntime.memory import require

__all__ = ["Features"]

#: Rounding that the sum of sparse rows may leave in a matrix whose eigenvalues are at least 1.
_ROUNDED = 1e-9
#: Likewise of all rows, before they are rotated into the factor instead.
_LOST = 1e-12
#: Numbers of Phi from which on sparse rows take their variances from a covariance of all columns.
_LARGE = 8_000_000
#: Such a variance has lost digits below this share of what its terms could come to.
_CANCELLED = 1e-6


class Features:
    """Phi = A L, shape (N, r), as an array or, where A is sparse, in blocks when asked.

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
        """r, the rank of K."""
        return int(self.root.shape[1])

    @cached_property
    def rows(self) -> Array:
        """Phi, shape (N, r)."""
        what = f"{self.n} observations of {self.functionals.latent} latent values"
        require(16.0 * self.n * self.width, what, "hand over a scipy sparse operator")
        return self.functionals.times(self.root)

    def times(self, x: Array) -> Array:
        """Phi x, shape (N,)."""
        return self.functionals.times(self.root @ x)

    def back(self, v: Array) -> Array:
        """Phi' v, shape (r,)."""
        found: Array = self.root.T @ self.functionals.back(v)
        return found

    def squares(self, factor: Array | None = None) -> Array:
        """|factor^-1 phi_i|^2, shape (N,): sums of squares, where differences would cancel."""
        root = self.root
        if factor is not None:
            if not self._sparse:
                half = solve_triangular(factor, self.rows.T, lower=True, check_finite=False)
                found: Array = np.einsum("ij,ij->j", half, half)
                return found
            root = solve_triangular(factor, root.T, lower=True, check_finite=False).T
        if self.many:
            return self._by_entries(root)
        return self._by_blocks(self.functionals, root)

    @cached_property
    def many(self) -> bool:
        """Whether sparse rows are so many, and of so few entries, that Phi costs most."""
        if not self._sparse or self.n * self.width < _LARGE:
            return False
        entries = np.diff(self.functionals.rows.indptr).astype(float)
        return bool((entries * entries).sum() < 0.1 * self.n * self.width)

    def _by_entries(self, root: Array) -> Array:
        """Squares by a' S a, S = root root', where that keeps its digits."""
        S = root @ root.T
        found, reach = quadratic_forms(self.functionals.rows, S)
        lost = np.flatnonzero(found < _CANCELLED * reach)
        if lost.size:
            found[lost] = self._by_blocks(Functionals(self.functionals.rows[lost], len(S)), root)
        return found

    def _by_blocks(self, functionals: Functionals, root: Array) -> Array:
        found = np.empty(functionals.n)
        for some, block in functionals.blocks(root):
            np.einsum("ij,ij->i", block, block, out=found[some])
        return found

    def precision(self, tau: Array) -> Array:
        """I + Phi' diag(tau) Phi, shape (r, r)."""
        if not self._sparse:
            found = weighted_square(self.rows, tau)
        elif np.abs(tau).max() * self._reach * np.finfo(float).eps < _ROUNDED:
            # Rows of few entries: their sum first, in time that does not grow with their number.
            found = self.root.T @ self.functionals.precision(tau) @ self.root
            found += found.T.copy()
            found *= 0.5
        else:
            found = np.zeros((self.width, self.width))
            for some, block in self.functionals.blocks(self.root):
                found += weighted_square(block, tau[some])
        found.flat[:: self.width + 1] += 1.0
        return found

    def factor(self, tau: Array, reach: float) -> tuple[Array, int]:
        """Lower L with L L' = I + Phi' diag(tau) Phi, and LAPACK's status.

        `reach` is the largest of tau times the prior variances. Where it is so large that a sum
        would lose the prior's share, rows are rotated into the factor instead, the longest first.
        """
        if (tau < 0.0).any() or reach * np.finfo(float).eps < _LOST:
            return tiles.cholesky(np.asfortranarray(self.precision(tau)))
        rows = np.vstack([self.rows * np.sqrt(tau)[:, None], np.eye(self.width)])
        longest = np.argsort(-np.einsum("ij,ij->i", rows, rows), kind="stable")
        upper: Array = qr(rows[longest], mode="r")[0][: self.width]
        upper *= np.where(upper.diagonal() < 0.0, -1.0, 1.0)[:, None]
        return np.asfortranarray(upper.T), 0
