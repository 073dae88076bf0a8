"""Rows in chunks, from memory, zarr or dask, and their features at inducing points."""

from __future__ import annotations

import copy
import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.lazy_rows import (
    InputRows,
    LazyInputs,
    chunk_count,
    chunk_slice,
    client_of,
    is_dask,
    is_lazy,
    read_block,
    sample,
)
from qpruntime.errors import NumericalError
from qpruntime.inference.dense.blas import routine
from qpruntime.kernels.cross_covariance import contract_square, cross_covariance, diagonal

if TYPE_CHECKING:
    from dask.array import Array as DaskArray
    from distributed import Client
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "MOST_JITTER",
    "Chunk",
    "ChunkTask",
    "ChunkedRows",
    "Columns",
    "Held",
    "InducingInputs",
    "Lazy",
    "Others",
    "add_outer",
    "add_square",
    "divide",
    "rows_of",
]


# --- Rows in chunks


class Chunk(NamedTuple):
    """Inputs X (n, d), encoded observations y (n,), and further columns of rows, (n,) or None.

    The defaults are weights of 1, prior means of 0 and scales of 1; a row observes `scale` times f.
    """

    X: Array
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    def load(self) -> Chunk:
        """Return the arrays, which are already in memory."""
        return self


#: y, weights, prior means and scales of rows.
Others = tuple[Array, Array | None, Array | None, Array | None]


class ChunkTask(Protocol):
    """Reference to a chunk, sent to the worker that computes it."""

    def load(self) -> Chunk:
        """Read the rows."""


class ChunkedRows(Protocol):
    """N rows in chunks."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def chunks(self) -> int:
        """Number of chunks."""

    def piece(self, number: int) -> ChunkTask:
        """Return the reference from which chunk `number` is read."""

    def read(self, number: int) -> Chunk:
        """Read a chunk in this process."""

    def others(self, block: slice) -> Others:
        """Return the columns of rows apart from X."""

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        """Read rows with these numbers, in their order, in this process."""

    def slice(self, number: int) -> slice:
        """Return the rows of a chunk."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Inputs of N rows, encoded y (N,), and optional weights, prior means and scales (N,).

    Labels y may have one byte each.
    """

    X: InputRows
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return chunk_count(self.n)

    def others(self, block: slice | NDArray[np.intp]) -> Others:
        """Return y, weights, prior means and scales of selected rows."""
        columns = self.weights, self.prior, self.scale
        weights, prior, scale = (None if a is None else a[block] for a in columns)
        return np.asarray(self.y[block], dtype=float), weights, prior, scale

    def slice(self, number: int) -> slice:
        """Return the rows of a chunk."""
        return chunk_slice(number, self.n)


@restorable("rows-in-memory/1")
class Held(Columns):
    """Rows held as arrays of this process; X has shape (N, d)."""

    X: Array

    def piece(self, number: int) -> Chunk:
        """Return a chunk."""
        block = self.slice(number)
        # Scaled columns may have Fortran's order; pickles change it, and sums would then differ.
        return Chunk(np.ascontiguousarray(self.X[block]), *self.others(block))

    read = piece

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        """Return rows with these numbers, in their order."""
        return Chunk(np.ascontiguousarray(self.X[numbers]), *self.others(numbers))


def rows_of(
    X: InputRows, y: Array, weights: Array | None, prior: Array | None, scale: Array | None = None
) -> ChunkedRows:
    """Return rows of inputs that `inputs_of` has checked."""
    return (Lazy if is_lazy(X) else Held)(X, y, weights, prior, scale)


@dataclass(frozen=True, eq=False)
class UnreadChunk:
    """Chunk of inputs that are not read yet; `home` is the client of a cluster's inputs."""

    X: InputRows
    block: slice
    first: int
    y: Array
    weights: Array | None
    prior: Array | None
    scale: Array | None
    home: Client | None = None

    def load(self) -> Chunk:
        """Read the inputs.

        Raises
        ------
        InputError
            If the inputs are not finite.
        """
        X = read_block(self.X, self.block, self.first, self.home)
        return Chunk(X, self.y, self.weights, self.prior, self.scale)

    def __reduce__(self) -> tuple[object, ...]:
        others = self.y, self.weights, self.prior, self.scale
        # Data held by another connection cannot be sent, only their values.
        if self.home is not None:
            return Chunk, tuple(self.load())
        return UnreadChunk, (self.X, self.block, self.first, *others)


class Lazy(Columns):
    """Rows whose inputs X (N, d) are read chunk by chunk."""

    X: LazyInputs

    @cached_property
    def home(self) -> Client | None:
        """Client of the cluster that holds the inputs, or None."""
        return client_of(self.X, "X")

    def piece(self, number: int) -> UnreadChunk:
        """Return the reference from which a chunk is read."""
        block = self.slice(number)
        if is_dask(self.X):
            part = self.X[block]
            if self.home is None:
                part = _optimized(part)  # send only this chunk's part of the graph
            return UnreadChunk(part, slice(None), block.start, *self.others(block), self.home)
        return UnreadChunk(self.X, block, block.start, *self.others(block))

    def read(self, number: int) -> Chunk:
        """Read a chunk in this process."""
        return self.piece(number).load()

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        """Read rows with these numbers, in their order, in this process."""
        once, where = np.unique(numbers, return_inverse=True)
        X = sample(self.X, once)[where] if len(once) else np.empty((0, self.X.shape[1]))
        return Chunk(X, *self.others(numbers))


def _optimized(part: DaskArray) -> DaskArray:
    from dask import optimize

    (optimized,) = optimize(part)
    return optimized


# --- Inducing inputs of one kernel

#: Largest jitter relative to the variance; rounding never needs more.
MOST_JITTER = 1e-4


@restorable("inducing-points/1")
class InducingInputs:
    """Inducing inputs Z (M, d) of a kernel.

    Parameters
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    jitter : float
        Smallest relative jitter on the diagonal of k(Z, Z); it grows tenfold, up to `MOST_JITTER`,
        until k(Z, Z) has a factor.
    dtype : dtype
        Type of the features of rows; the factor is computed in float64.

    Attributes
    ----------
    L : ndarray, shape (M, M)
        Lower factor of k(Z, Z) + jitter variance I, the mean variance at Z.
    jitter : float
        Relative jitter of the factor.

    Raises
    ------
    NumericalError
        If k(Z, Z) has no factor.
    """

    def __init__(
        self, kernel: Kernel, Z: Array, jitter: float = 1e-8, dtype: DTypeLike = np.float64
    ) -> None:
        self.kernel, self.Z, self.dtype = kernel, Z, np.dtype(dtype)
        self.least = jitter
        K: Array = np.asarray(cross_covariance(kernel, Z, Z), dtype=float)
        variance = float(np.mean(K.diagonal()))
        if not np.isfinite(K).all() or not variance > 0.0:
            raise NumericalError(
                f"the kernel has no finite, positive variances at the inducing inputs: {kernel}"
            )
        self.L, self.jitter = _factor(K, variance, jitter)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "rounded"}

    @property
    def size(self) -> int:
        """Number of inducing inputs."""
        return len(self.Z)

    @cached_property
    def rounded(self) -> Rows:
        """Factor in the dtype of the features."""
        return self.L.astype(self.dtype, copy=False)

    def on(self, kernel: Kernel, Z: Array) -> InducingInputs:
        """Return the inducing points in other units, given the kernel and inputs in those."""
        moved = copy.copy(self)
        moved.kernel, moved.Z = kernel, Z
        return moved

    def in_dtype(self, dtype: DTypeLike) -> InducingInputs:
        """Return the inducing points for features of another dtype."""
        moved = copy.copy(self)
        moved.__dict__.pop("rounded", None)
        moved.dtype = np.dtype(dtype)
        return moved

    def features(self, X: Array, out: Rows | None = None) -> tuple[Rows, Array]:
        """Return phi_n = L^-1 k(Z, x_n), shape (n, M), and r_n = max(k(x_n, x_n) - |phi_n|^2, 0).

        The features are written to `out`, if it is given.
        """
        phi = divide(cross_covariance(self.kernel, X, self.Z, self.dtype, out), self.rounded)
        residual = diagonal(self.kernel, X) - np.einsum("nm,nm->n", phi, phi)
        return phi, np.maximum(residual, 0.0, out=residual)

    def slopes(self, S: Array) -> tuple[Array, Array]:
        """Return sum(S * dk(Z, Z)) by theta and by Z with the jitter, for symmetric S (M, M)."""
        lifted = S + np.diag(np.full(self.size, self.jitter * np.trace(S) / self.size))
        return contract_square(self.kernel, self.Z, lifted)


def _factor(K: Array, variance: float, jitter: float) -> tuple[Array, float]:
    """Return the lower factor of K + jitter variance I, and the jitter that was needed."""
    while True:
        try:
            L = np.linalg.cholesky(K + jitter * variance * np.eye(len(K)))
            if np.isfinite(L).all():
                return np.ascontiguousarray(L), jitter
        except np.linalg.LinAlgError:
            pass
        if jitter >= MOST_JITTER:
            raise NumericalError(
                f"the covariance of the {len(K)} inducing inputs is not positive definite, even "
                f"with {jitter:g} of the variance on its diagonal: the kernel is none"
            )
        jitter = min(max(10.0 * jitter, 1e-12), MOST_JITTER)


# --- Blocks of rows without the interpreter lock
#
# SciPy's wrappers hold the lock: two threads took 1.95 times as long as one. The functions below
# call BLAS by the addresses that SciPy exports to Cython. Arrays are C-ordered: rows (n, M) of
# float32 or float64, and lower triangles (M, M) of the same type.

Rows = NDArray[np.floating]
SameRows = TypeVar("SameRows", bound=Rows)

_LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
_NUMBER = {"s": ctypes.c_float, "d": ctypes.c_double}


def _call(name: str, letter: str, *args: bytes | float | NDArray[np.generic]) -> None:
    """Call a BLAS function by reference; bytes are letters, numbers scalars, the rest arrays."""
    references: list[Any] = []
    for value in args:
        if isinstance(value, bytes):
            references.append(ctypes.c_char(value))
        elif isinstance(value, int):
            references.append(ctypes.c_int(value))
        elif isinstance(value, float):
            references.append(_NUMBER[letter](value))
        else:
            references.append(value)
    addresses = [
        value.ctypes.data if isinstance(value, np.ndarray) else ctypes.addressof(value)
        for value in references
    ]
    routine(letter + name)(*addresses)


def divide(rows: SameRows, lower: Rows, transposed: bool = False) -> SameRows:
    """Replace each row x by L^-1 x, or by L^-T x if `transposed`."""
    n, m = rows.shape
    _check(rows, lower)
    if n:
        # BLAS in Fortran's order sees the columns of (M, n), and an upper triangle.
        letter, operation = _LETTER[rows.dtype], b"N" if transposed else b"T"
        _call("trsm", letter, b"L", b"U", operation, b"N", m, n, 1.0, lower, m, rows, m)
    return rows


def add_square(rows: Rows, sign: float, total: Rows) -> None:
    """Add sign rows^T rows to the lower triangle of `total`, which has the same dtype."""
    n, m = rows.shape
    _check(rows, total)
    if n:
        letter = _LETTER[rows.dtype]
        _call("syrk", letter, b"U", b"N", m, n, float(sign), rows, m, 1.0, total, m)


def add_outer(rows: Rows, left: Rows, right: Rows) -> None:
    """Add left right^T to rows; left (n,) and right (M,) have the same dtype and no strides."""
    n, m = rows.shape
    assert (left.shape, right.shape) == ((n,), (m,))
    assert left.dtype == right.dtype == rows.dtype
    for array in (rows, left, right):
        assert array.flags.c_contiguous
    if n:
        _call("ger", _LETTER[rows.dtype], m, n, 1.0, right, 1, left, 1, rows, m)


def _check(rows: Rows, square: Rows) -> None:
    """Assert the shapes, types and orders that BLAS relies on."""
    m = rows.shape[1]
    assert square.shape == (m, m)
    assert square.dtype == rows.dtype
    assert rows.flags.c_contiguous
    assert square.flags.c_contiguous
