"""Rows of data in chunks, wherever they are read from; here from arrays of this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from qpruntime.arrays import Array

__all__ = [
    "CHUNK",
    "Chunk",
    "Columns",
    "Held",
    "Piece",
    "Rows",
    "chunk_count",
    "chunk_rows",
    "chunk_slice",
]

#: Rows in a chunk at most, and in one of few rows; both are powers of two.
CHUNK, _SMALL = 32_768, 1024
# Chunks there should be at least, for all cores of a machine.
_MANY = 16


class Chunk(NamedTuple):
    """Inputs X (n, d), encoded observations y, weights and prior means (n,) or None for 1 and 0."""

    X: Array
    y: Array
    weights: Array | None = None
    prior: Array | None = None

    def load(self) -> Chunk:
        """Return the arrays, which are here already."""
        return self


class Piece(Protocol):
    """What travels to whoever computes a chunk."""

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

    def others(self, some: slice) -> tuple[Array, Array | None, Array | None]:
        """Return y, weights and prior means of some rows."""

    def slice(self, number: int) -> slice:
        """Return which rows a chunk has."""


def chunk_rows(n: int) -> int:
    """Rows in a chunk of `n` rows, whoever holds them: sums over chunks have the same bits.

    Powers of two: a chunk that is stored as `CHUNK` rows is read by few.
    """
    return min(CHUNK, max(_SMALL, 1 << max(n // _MANY, 1).bit_length() - 1))


def chunk_count(n: int) -> int:
    """Number of chunks of `n` rows."""
    return -(-n // chunk_rows(n))


def chunk_slice(number: int, n: int) -> slice:
    """Rows of chunk `number` of `n` rows."""
    size = chunk_rows(n)
    return slice(number * size, min((number + 1) * size, n))


@dataclass(frozen=True, eq=False)
class Columns:
    """Inputs of N rows, encoded y (N,), weights and prior means (N,) if there are any."""

    X: Any
    y: Array
    weights: Array | None = None
    prior: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def chunks(self) -> int:
        return chunk_count(self.n)

    def others(self, some: slice) -> tuple[Array, Array | None, Array | None]:
        """y, weights and prior means of some rows."""
        weights, prior = (None if a is None else a[some] for a in (self.weights, self.prior))
        return self.y[some], weights, prior

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
