"""Rows of data in chunks, wherever they are read from; here from arrays of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = [
    "CHUNK",
    "Chunk",
    "Columns",
    "Held",
    "Others",
    "Piece",
    "Rows",
    "chunk_count",
    "chunk_slice",
]

#: Rows in a chunk, whoever holds them: sums over chunks have the same bits everywhere. Smaller ones
#: for samples would give a second core work, and cost more than it gains.
CHUNK = 32_768


class Chunk(NamedTuple):
    """Inputs X (n, d), encoded observations y (n,), and what else rows have, (n,) or None.

    Weights are 1 by default, prior means of f 0; what is observed is `scale` times f, 1 by default.
    """

    X: Array
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    def load(self) -> Chunk:
        """Return the arrays, which are here already."""
        return self


#: y, weights, prior means and scales of some rows.
Others = tuple[Array, Array | None, Array | None, Array | None]


class Piece(Protocol):
    """What is sent to the worker that computes a chunk."""

    def load(self) -> Chunk:
        """Read the rows."""


class Rows(Protocol):
    """N rows in chunks."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def chunks(self) -> int:
        """Number of chunks."""

    def piece(self, number: int) -> Piece:
        """Return what chunk `number` is read from."""

    def read(self, number: int) -> Chunk:
        """Read a chunk in this process."""

    def others(self, some: slice) -> Others:
        """Return what some rows have beside X."""

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        """Read rows of these numbers, in their order, in this process."""

    def slice(self, number: int) -> slice:
        """Return which rows a chunk has."""


def chunk_count(n: int) -> int:
    """Number of chunks of `n` rows."""
    return -(-n // CHUNK)


def chunk_slice(number: int, n: int) -> slice:
    """Rows of chunk `number` of `n` rows."""
    return slice(number * CHUNK, min((number + 1) * CHUNK, n))


@dataclass(frozen=True, eq=False)
class Columns:
    """Inputs of N rows, encoded y (N,), weights, prior means and scales (N,) if there are any.

    Labels of one byte each are enough for y.
    """

    X: Any
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def chunks(self) -> int:
        return chunk_count(self.n)

    def others(self, some: slice | NDArray[np.intp]) -> Others:
        """y, weights, prior means and scales of some rows."""
        columns = self.weights, self.prior, self.scale
        weights, prior, scale = (None if a is None else a[some] for a in columns)
        return np.asarray(self.y[some], dtype=float), weights, prior, scale

    def slice(self, number: int) -> slice:
        return chunk_slice(number, self.n)


class Held(Columns):
    """Rows that are arrays of this process; X has shape (N, d)."""

    def piece(self, number: int) -> Chunk:
        some = self.slice(number)
        # Scaled columns may be in Fortran's order, which travel in another, and round otherwise.
        return Chunk(np.ascontiguousarray(self.X[some]), *self.others(some))

    def read(self, number: int) -> Chunk:
        return self.piece(number)

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        return Chunk(np.ascontiguousarray(self.X[numbers]), *self.others(numbers))
