"""Rows that observe functionals of few inputs each, as a game between two players does.

A row a with inputs x_1, x_2, ... sees g = sum_j a_j f(x_j). The features of g are sums of those of
f at the inducing inputs, and its variance is exact. The part of f that Z leaves out is taken as
independent between rows, as everywhere in this engine, although it is not for rows that share an
input. `AlongRows` is the kernel of these rows; its inputs are a's entries and the x_j, side by
side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from sklearn.base import clone

from qpruntime._memory import require
from qpruntime._typing import Array, ArrayLike
from qpruntime.dataframes.lazy_rows import inputs_of, is_lazy
from qpruntime.errors import InputError
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.problem import check_mean
from qpruntime.inference.sparse.checkpoint import kernel_words
from qpruntime.kernels.cross_covariance import cross_covariance, diagonal

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = ["AlongRows", "along", "inputs_along"]

#: Most entries of a row: inputs grow with their number, and variances with its square.
_MAX_ENTRIES = 32
#: Number of rows whose variances come from one square block of covariances.
_ROWS_PER_BLOCK = 64


def inputs_along(operator: ArrayLike, X: Array) -> tuple[Functionals, Array]:
    """Return the rows of an operator (N, n) on f at X (n, d), and their inputs side by side.

    Raises
    ------
    InputError
        If the operator is not usable, or a row has many entries, or none.
    """
    functionals = Functionals(operator, len(X))
    rows = sparse.csr_array(functionals.rows, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    entries = np.diff(rows.indptr)
    if entries.min() == 0:
        row = int(np.argmin(entries))
        raise InputError(f"row {row} of the operator is empty: it says nothing of f; leave it out")
    max_entries = int(entries.max())
    if max_entries > _MAX_ENTRIES:
        raise InputError(
            f"row {int(np.argmax(entries))} of the operator has {max_entries} entries, and "
            f"inducing inputs take {_MAX_ENTRIES} at most: infer(kernel(X), y, operator=A) takes "
            "any number"
        )
    n, d = functionals.n, X.shape[1]
    require(
        8.0 * n * max_entries * (d + 1),
        f"the inputs of {n} rows of {max_entries} entries",
        "pass fewer",
    )
    # Padding entries are 0, at the first input of the row.
    place = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], entries)
    owner = np.repeat(np.arange(n), entries)
    padded = np.zeros((n, max_entries, d + 1))
    padded[:, :, 1:] = X[rows.indices[rows.indptr[:-1]]][:, None]
    padded[owner, place, 0] = rows.data
    padded[owner, place, 1:] = X[rows.indices]
    return functionals, padded.reshape(n, max_entries * (d + 1))


def along(
    operator: ArrayLike, X: ArrayLike, mean: ArrayLike, d: int
) -> tuple[Array, Array, float | None]:
    """Return inputs of an operator's rows, their prior means, and that of f if it is a number.

    Raises
    ------
    InputError
        If an argument is not usable.
    """
    if is_lazy(X):
        raise InputError("an operator takes X as an array in memory, of its columns' inputs")
    latent = np.asarray(inputs_of(X, "X"))
    if latent.shape[1] != d:
        raise InputError(f"Z must have {latent.shape[1]} columns like X, got {d}")
    n = len(latent)
    prior = check_mean(mean, (n,))
    functionals, inputs = inputs_along(operator, latent)
    means = functionals.times(np.broadcast_to(prior, (n,)).copy())
    return inputs, means, float(prior) if prior.ndim == 0 else None


class AlongRows:
    """Kernel of functionals of f and of inducing inputs.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Covariance of f.
    d : int
        Columns of its inputs. Inputs with more columns are rows of `inputs_along`.
    """

    def __init__(self, kernel: Kernel, d: int) -> None:
        self.kernel, self.d = kernel, d

    def __repr__(self) -> str:
        """Return the kernel with every digit, by which checkpoints identify it."""
        return f"AlongRows({kernel_words(self.kernel, False)}, {self.d})"

    @property
    def theta(self) -> Array:
        """Free log parameters of the kernel of f."""
        return np.asarray(self.kernel.theta)

    def clone_with_theta(self, theta: Array) -> AlongRows:
        """Return the kernel with other parameters."""
        return AlongRows(self.kernel.clone_with_theta(theta), self.d)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the constructor's arguments, as scikit-learn requires."""
        return {"kernel": clone(self.kernel), "d": self.d}

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """Return covariances of rows, or of rows with inducing inputs."""
        Z = X if Z is None else Z
        if X.shape[1] == self.d:
            return np.asarray(cross_covariance(self.kernel, X, Z))
        entries = self._entries(X)
        covariance = np.zeros((len(X), len(Z)))
        for a, x in entries:
            covariance += a[:, None] * cross_covariance(self.kernel, x, Z)
        return covariance

    def diag(self, X: Array) -> Array:
        """Return the exact prior variances of rows."""
        if X.shape[1] == self.d:
            return diagonal(self.kernel, X)
        entries, variances = self._entries(X), np.zeros(len(X))
        for j, (a, x) in enumerate(entries):
            variances += a * a * diagonal(self.kernel, x)
            for b, z in entries[:j]:
                variances += 2.0 * a * b * self._between(x, z)
        # Rounding may leave a negative variance of differences between equal inputs.
        return np.maximum(variances, 0.0)

    def _between(self, x: Array, z: Array) -> Array:
        """Return k(x_n, z_n), shape (n,), from the diagonals of small blocks."""
        values = np.empty(len(x))
        for start in range(0, len(x), _ROWS_PER_BLOCK):
            block = slice(start, start + _ROWS_PER_BLOCK)
            values[block] = cross_covariance(self.kernel, x[block], z[block]).diagonal()
        return values

    def _entries(self, X: Array) -> list[tuple[Array, Array]]:
        """Return entries (n,) and inputs (n, d) of each place."""
        cut = X.reshape(len(X), -1, self.d + 1)
        return [(cut[:, j, 0], np.ascontiguousarray(cut[:, j, 1:])) for j in range(cut.shape[1])]
