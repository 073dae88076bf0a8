"""Rows that see functionals of few inputs each, as a game between two players does.

A row a with inputs x_1, x_2, ... sees g = sum_j a_j f(x_j). With inducing inputs of f its features
are sums of theirs, its variance is exact, and what Z leaves out is taken as independent between
rows, as everywhere in this engine: of rows that share an input it is not. `AlongRows` is the kernel
that says so to the passes over rows, whose inputs are a's entries and the x_j, side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from qpruntime._memory import require
from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.sparse.checkpoint import kernel_words
from qpruntime.inference.sparse.data import inputs_of, is_lazy
from qpruntime.kernels.cross_covariance import cross_covariance, diagonal

__all__ = ["AlongRows", "along", "inputs_along"]

#: Entries of a row at most: each takes the inputs' numbers, and its square the variances'.
_ENTRIES = 32
#: Rows whose variances are taken from one square block of covariances.
_BLOCK = 64


def inputs_along(operator: Any, X: Array) -> tuple[Functionals, Array]:
    """Return the rows of an operator (N, n) on f at X (n, d), and their inputs side by side.

    Raises
    ------
    InputError
        If the operator is not usable, or a row has many entries, or none.
    """
    functionals = Functionals(operator, len(X))
    rows = functionals.rows if sparse.issparse(functionals.rows) else None
    rows = sparse.csr_array(functionals.rows) if rows is None else rows.copy()
    rows.sum_duplicates()
    rows.eliminate_zeros()
    entries = np.diff(rows.indptr)
    if entries.min() == 0:
        row = int(np.argmin(entries))
        raise InputError(f"row {row} of the operator is empty: it says nothing of f; leave it out")
    most = int(entries.max())
    if most > _ENTRIES:
        raise InputError(
            f"row {int(np.argmax(entries))} of the operator has {most} entries, and inducing "
            f"inputs take {_ENTRIES} at most: infer(kernel(X), y, operator=A) takes any"
        )
    n, d = functionals.n, X.shape[1]
    require(8.0 * n * most * (d + 1), f"the inputs of {n} rows of {most} entries", "pass fewer")
    # Entries that a row does not have are 0, at an input of its own.
    place = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], entries)
    owner = np.repeat(np.arange(n), entries)
    found = np.zeros((n, most, d + 1))
    found[:, :, 1:] = X[rows.indices[rows.indptr[:-1]]][:, None]
    found[owner, place, 0] = rows.data
    found[owner, place, 1:] = X[rows.indices]
    return functionals, found.reshape(n, most * (d + 1))


def along(operator: Any, X: Any, mean: Any, d: int) -> tuple[Array, Array, float | None]:
    """Return inputs of the rows of an operator, their prior means, and that of f if it is a number.

    Raises
    ------
    InputError
        If an argument is not usable.
    """
    if is_lazy(X):
        raise InputError("an operator takes X as an array in memory, of its columns' inputs")
    X = inputs_of(X, "X")
    if X.shape[1] != d:
        raise InputError(f"Z must have {X.shape[1]} columns like X, got {d}")
    prior = finite(mean, "mean")
    if prior.shape not in ((), (len(X),)):
        raise InputError(f"mean must be a number or have shape ({len(X)},), got {prior.shape}")
    functionals, inputs = inputs_along(operator, X)
    means = functionals.times(np.broadcast_to(prior, (len(X),)).copy())
    return inputs, means, float(prior) if prior.ndim == 0 else None


class AlongRows:
    """Covariances of functionals with inducing inputs of f.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Of f.
    d : int
        Columns of its inputs. Inputs of more are rows of `inputs_along`.
    """

    def __init__(self, kernel: Any, d: int) -> None:
        self.kernel, self.d = kernel, d

    def __repr__(self) -> str:
        """With every digit: checkpoints know their kernel by it."""
        return f"AlongRows({kernel_words(self.kernel, False)}, {self.d})"

    @property
    def theta(self) -> Array:
        """Free log parameters of the kernel of f."""
        found: Array = self.kernel.theta
        return found

    def clone_with_theta(self, theta: Array) -> AlongRows:
        """Return the same for other parameters."""
        return AlongRows(self.kernel.clone_with_theta(theta), self.d)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what makes it, as scikit-learn asks."""
        return {"kernel": clone(self.kernel), "d": self.d}

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        Z = X if Z is None else Z
        if X.shape[1] == self.d:
            found: Array = cross_covariance(self.kernel, X, Z)
            return found
        entries = self._entries(X)
        found = np.zeros((len(X), len(Z)))
        for a, x in entries:
            found += a[:, None] * cross_covariance(self.kernel, x, Z)
        return found

    def diag(self, X: Array) -> Array:
        """Prior variances of rows, exact."""
        if X.shape[1] == self.d:
            return diagonal(self.kernel, X)
        entries, found = self._entries(X), np.zeros(len(X))
        for j, (a, x) in enumerate(entries):
            found += a * a * diagonal(self.kernel, x)
            for b, z in entries[:j]:
                found += 2.0 * a * b * self._between(x, z)
        # Of inputs that coincide rounding alone is left.
        return np.maximum(found, 0.0)

    def _between(self, x: Array, z: Array) -> Array:
        """k(x_n, z_n), shape (n,), from the diagonals of small blocks."""
        found = np.empty(len(x))
        for start in range(0, len(x), _BLOCK):
            some = slice(start, start + _BLOCK)
            found[some] = cross_covariance(self.kernel, x[some], z[some]).diagonal()
        return found

    def _entries(self, X: Array) -> list[tuple[Array, Array]]:
        """Entries and inputs, each (n,) and (n, d)."""
        cut = X.reshape(len(X), -1, self.d + 1)
        return [(cut[:, j, 0], np.ascontiguousarray(cut[:, j, 1:])) for j in range(cut.shape[1])]
