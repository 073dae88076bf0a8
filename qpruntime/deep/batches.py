"""Sources of batches: rows of this process, or inputs that are read in windows.

Inputs that stay where they are (zarr, HDF5, memory maps, dask arrays and data frames) are read in
windows of `WINDOW` rows: blocks of `BLOCK` rows that lie together, drawn from everywhere without
repetition, whose rows are shuffled. Up to `WINDOW` rows that is the order of rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.dataframes.lazy_rows import InputRows, is_lazy, read
from qpruntime.deep.layers import Batch
from qpruntime.inference.sparse.rows import rows_of
from qpruntime.learning.scaling import Units

__all__ = ["BLOCK", "WINDOW", "Feed", "feed_of", "standard_units"]

#: Rows that are shuffled together, and rows that are read together: what is sorted in the file is
#: seen from 32 places at once.
WINDOW, BLOCK = 32_768, 1_024


def standard_units(X: InputRows, weight: Array) -> Units:
    """Return columns' means and standard deviations, 0 of a constant one, which is ignored.

    Weighted, as if rows were repeated, in one pass over inputs of any kind.
    """
    rows = rows_of(X, weight, None, None)
    width = int(X.shape[1])
    total, centre, squares, largest = 0.0, np.zeros(width), np.zeros(width), np.zeros(width)
    for number in range(rows.chunks):
        part, weights, *_ = rows.read(number)
        mean = np.average(part, axis=0, weights=weights)
        # Chan, Golub & LeVeque (1983): sums of squares about means of parts.
        before, share = total, float(weights.sum())
        total += share
        squares += (weights[:, None] * (part - mean) ** 2).sum(axis=0)
        squares += (mean - centre) ** 2 * (before * share / total)
        centre = centre + (mean - centre) * (share / total)
        largest = np.maximum(largest, np.abs(part).max(axis=0))
    spread = np.sqrt(squares / total)
    return Units(centre, np.where(spread > 1e-14 * largest, spread, 0.0))


@dataclass(frozen=True, eq=False)
class Feed:
    """All rows of one training: standardised X, y (N,) and weights (N,)."""

    data: Batch

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.data.y)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield batches: every row once before any row a second time, in turns."""
        pending: list[Array] = []
        while True:
            for window in self._windows(rng):
                if pending:
                    window = [
                        np.concatenate(pieces) for pieces in zip(pending, window, strict=True)
                    ]
                pending, start = window, 0
                while start + size <= len(pending[1]):
                    yield Batch(*(part[start : start + size] for part in pending))
                    start += size
                pending = [part[start:] for part in pending]

    def _windows(self, rng: np.random.Generator) -> Iterator[list[Array]]:
        """All rows once, in an order of their own every time."""
        order = rng.permutation(self.n)
        for start in range(0, self.n, WINDOW):
            yield [part[order[start : start + WINDOW]] for part in self.data]


@dataclass(frozen=True, eq=False)
class Streamed(Feed):
    """Rows whose inputs are read, and standardised, window by window."""

    units: Units

    def _windows(self, rng: np.random.Generator) -> Iterator[list[Array]]:
        blocks: NDArray[np.int64] = np.arange(-(-self.n // BLOCK))
        if self.n > WINDOW:
            blocks = rng.permutation(blocks)
        count = WINDOW // BLOCK
        for start in range(0, len(blocks), count):
            yield self._window(np.sort(blocks[start : start + count]), rng)

    def _window(self, blocks: NDArray[np.int64], rng: np.random.Generator) -> list[Array]:
        ranges = [slice(BLOCK * k, min(BLOCK * (k + 1), self.n)) for k in blocks.tolist()]
        X, *others = self.data
        parts = [
            self.units.scaled(np.concatenate([read(X, block) for block in ranges])),
            *(np.concatenate([array[block] for block in ranges]) for array in others),
        ]
        order = rng.permutation(len(parts[0]))
        return [part[order] for part in parts]


def feed_of(X: InputRows, y: Array, weight: Array, units: Units) -> Feed:
    """Rows of inputs of any kind, not standardised yet."""
    if is_lazy(X):
        return Streamed(Batch(X, y, weight), units)
    return Feed(Batch(units.scaled(np.asarray(X)), y, weight))
