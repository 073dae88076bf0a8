"""The working store of a build: a zarr v3 array of checksummed chunks.

A chunk is there whole or not at all: zarr's LocalStore writes to a temporary name and renames
(since 3.1.2; before that, and after a power failure, the checksum tells). Every row begins with
its own number, so that a chunk under another one's name is not taken for it. A store made by
another plan is discarded.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec
from zarr.storage import LocalStore

from tablegen.grid.plan import GridChunk, Plan

__all__ = ["ChunkStore"]

#: Row numbers start again after this one: float32 holds no larger ones.
_NUMBERS = 1 << 24


class ChunkStore:
    """Chunks of one plan in the directory `path`, which is made, or taken up, or made anew.

    Parameters
    ----------
    path : Path
    plan : Plan
    check : callable, optional
        Called before every write; raises if the directory is not ours any more. zarr would make it
        anew.
    """

    def __init__(self, path: Path, plan: Plan, check: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._plan = plan
        self._check = check
        outcomes, rows, columns = plan.shape
        self._shape, self._chunk = (outcomes, rows, columns + 1), (1, plan.rows, columns + 1)
        self._array = self._existing() or self._create()

    def _existing(self) -> zarr.Array | None:
        if not self.path.exists():
            return None
        dtype = np.dtype(self._plan.dtype)
        expected = self._plan.fingerprint(), self._shape, self._chunk, dtype
        try:
            array = zarr.open_array(LocalStore(self.path), mode="r+")
            actual = (array.attrs.get("fingerprint"), array.shape, array.chunks, array.dtype)
            sound = actual == expected and np.isnan(array.fill_value)
        except Exception:
            # Whatever a damaged store makes zarr raise, the remedy is the same.
            sound = False
        if not sound:
            shutil.rmtree(self.path)
            return None
        return array

    def _create(self) -> zarr.Array:
        return zarr.create_array(
            LocalStore(self.path),
            shape=self._shape,
            chunks=self._chunk,
            dtype=np.dtype(self._plan.dtype),
            filters=None,
            compressors=[Crc32cCodec()],
            # A missing chunk reads as NaN, which no computed one contains.
            fill_value=np.nan,
            attributes={"fingerprint": self._plan.fingerprint()},
        )

    def write(self, chunk: GridChunk, values: NDArray[Any]) -> None:
        """Store one chunk, `values` of shape (rows, columns)."""
        assert values.shape == (chunk.stop - chunk.start, self._plan.shape[2])
        rows = np.column_stack([self._numbers(chunk), values])
        self._check()
        self._array[chunk.outcome, chunk.start : chunk.stop] = rows

    def read(self, chunk: GridChunk) -> NDArray[Any] | None:
        """Return a chunk, or None if it is missing, damaged, or another one."""
        try:
            rows = self._array[chunk.outcome, chunk.start : chunk.stop]
        except (ValueError, RuntimeError):
            return None
        if not np.array_equal(rows[:, 0], self._numbers(chunk)) or np.isnan(rows).any():
            return None
        return np.ascontiguousarray(rows[:, 1:])

    def _numbers(self, chunk: GridChunk) -> NDArray[Any]:
        first = chunk.outcome * self._plan.shape[1]
        numbers = np.arange(first + chunk.start, first + chunk.stop) % _NUMBERS
        return numbers.astype(self._plan.dtype)

    def missing(self) -> list[GridChunk]:
        """Return the chunks that have to be computed, in order."""
        # A new store is not read, because a missing chunk would appear as a chunk of NaN.
        if not (self.path / "c").exists():
            return list(self._plan.chunks)
        return [chunk for chunk in self._plan.chunks if self.read(chunk) is None]
