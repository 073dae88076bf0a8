"""Rows of an operator: observation i sees a_i' f, not f_i."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.dense import tiles
from qpruntime.memory import require
from qpruntime.validation import finite

__all__ = ["Functionals", "root_of", "weighted_square"]

#: Numbers of a block of rows, as columns of latent values.
_BLOCK = 4_000_000
#: Variance of a functional, relative to the largest it could have, that rounding alone may leave.
_ROUNDED = 1e-15


class Functionals:
    """The rows a_i of an operator A, shape (N, n): dense, or CSR as it was given.

    Parameters
    ----------
    operator : array-like or scipy sparse, shape (N, n)
    n : int
        Number of latent values.

    Raises
    ------
    InputError
        If it has another shape, or is not finite.
    """

    def __init__(self, operator: Any, n: int) -> None:
        self.rows: Any
        if sparse.issparse(operator):
            if operator.dtype.kind not in "fiub":
                raise InputError(f"operator must be of real numbers, got {operator.dtype}")
            found = sparse.csr_array(operator, dtype=np.float64)
            finite(found.data, "operator")
        else:
            found = np.ascontiguousarray(finite(operator, "operator"))
        if found.ndim != 2 or found.shape[1] != n or found.shape[0] == 0:
            raise InputError(
                f"operator must have shape (N, {n}), a row for each observation and a column for "
                f"each latent value of K; got {found.shape}"
            )
        self.rows = found

    def __getstate__(self) -> dict[str, Any]:
        if not sparse.issparse(self.rows):
            return {"rows": self.rows}
        return {
            "entries": (self.rows.data, self.rows.indices, self.rows.indptr),
            "shape": self.rows.shape,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "rows" in state:
            self.rows = state["rows"]
        else:
            self.rows = sparse.csr_array(state["entries"], shape=state["shape"])
            # Of a file: SciPy's products read wherever indices point to.
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
        """A values, of shape (n,) or (n, p)."""
        found: Array = self.rows @ values
        return found

    def back(self, values: Array) -> Array:
        """A' values, of shape (N,) or (N, p)."""
        found: Array = self.rows.T @ values
        return found

    def blocks(self, root: Array) -> Iterator[tuple[slice, Array]]:
        """Rows of A root in blocks, each of shape (rows, r); `root` has shape (n, r)."""
        step = max(1, _BLOCK // max(root.shape[1], 1))
        for start in range(0, self.n, step):
            some = slice(start, min(start + step, self.n))
            yield some, self.rows[some] @ root

    def precision(self, tau: Array) -> Array:
        """A' diag(tau) A, shape (n, n): what sites of these precisions add to that of f."""
        found: Array
        if sparse.issparse(self.rows):
            found = (self.rows.T @ (self.rows * tau[:, None])).toarray()
        else:
            found = weighted_square(self.rows, tau)
        return found

    @property
    def lengths(self) -> Array:
        """|a_i|^2, shape (N,)."""
        if sparse.issparse(self.rows):
            return np.asarray(self.rows.power(2).sum(axis=1)).ravel()
        found: Array = np.einsum("ij,ij->i", self.rows, self.rows)
        return found

    def covariance(self, K: Array) -> Array:
        """A K A', shape (N, N), exactly symmetric.

        Raises
        ------
        InputError
            If it cannot fit into memory.
        """
        what = f"the covariance of {self.n} observations along an operator"
        require(8.0 * self.n * (3.0 * self.n + self.latent), what, "pass fewer of them")
        found = self.times(np.ascontiguousarray(self.times(K).T))
        found += found.T.copy()
        found *= 0.5
        return found

    def require_variances(self, variance: Array, K: Array) -> None:
        """Raise `InputError` if a row has a prior variance of zero under K, to rounding."""
        none = variance <= _ROUNDED * self.lengths * K.diagonal().max()
        if none.any():
            row = int(np.argmax(none))
            raise InputError(
                f"row {row} of the operator has prior variance {variance[row]:g} under K: its "
                "observation says nothing of f; leave it out"
            )


def weighted_square(rows: Array, weight: Array) -> Array:
    """rows' diag(weight) rows; a sum of squares where no weight is negative."""
    scaled = rows * np.sqrt(np.abs(weight))[:, None]
    below = weight < 0.0
    found: Array = scaled.T @ scaled
    if below.any():
        found -= 2.0 * (scaled[below].T @ scaled[below])
    return found


def root_of(K: Array) -> Array:
    """L with L L' = K, shape (n, n): lower by Cholesky, or by eigenvalues where K is singular."""
    factor, info = tiles.cholesky(K.T.copy(order="F"))
    least = factor.diagonal().min() if info == 0 else 0.0
    if least > 1e-7 * np.sqrt(K.diagonal().max()):
        return np.tril(factor)
    values, vectors = np.linalg.eigh(K)
    known = values > len(K) * np.finfo(float).eps * values[-1]
    found: Array = vectors[:, known] * np.sqrt(values[known])
    return found
