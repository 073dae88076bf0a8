"""Rows in chunks, from memory, zarr or dask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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

if TYPE_CHECKING:
    from dask.array import Array as DaskArray
    from distributed import Client

__all__ = [
    "Chunk",
    "ChunkTask",
    "ChunkedRows",
    "Columns",
    "Held",
    "Lazy",
    "Others",
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
