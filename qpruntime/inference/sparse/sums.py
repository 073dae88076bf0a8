"""Sums over chunks by a binary tree over their numbers: the same bits in whatever order they come.

Chunk 2k is added to chunk 2k + 1, pairs to pairs, and so on. No more partial sums are held than the
chunks that are out of order.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = ["Sums", "Tree", "add", "packed", "unpacked"]

#: Named sums. "worst" is no sum: (size, row) of the row that changed most.
Sums = dict[str, Any]


def add(left: Sums, right: Sums) -> Sums:
    """Add two sums of the same names."""
    total = {name: left[name] + right[name] for name in left if name != "worst"}
    if "worst" in left:
        total["worst"] = right["worst"] if right["worst"][0] > left["worst"][0] else left["worst"]
    return total


class Tree:
    """Takes the sums of `count` chunks, from any thread and in any order."""

    def __init__(self, count: int) -> None:
        self._waiting: dict[tuple[int, int], Sums] = {}
        self._counts = [count]
        while self._counts[-1] > 1:
            self._counts.append((self._counts[-1] + 1) // 2)
        self._lock = threading.Lock()

    def put(self, number: int, sums: Sums) -> None:
        """Add the sums of one chunk."""
        level = 0
        with self._lock:
            while level < len(self._counts) - 1:
                other = number ^ 1
                if other < self._counts[level]:
                    found = self._waiting.pop((level, other), None)
                    if found is None:
                        break
                    sums = add(found, sums) if other < number else add(sums, found)
                level, number = level + 1, number // 2
            self._waiting[level, number] = sums

    def total(self) -> Sums:
        """Return the sum of all chunks."""
        (((level, _), total),) = self._waiting.items()
        assert level == len(self._counts) - 1, "chunks are missing"
        return total


@lru_cache(maxsize=4)
def _lower(size: int) -> NDArray[np.intp]:
    """Where the lower triangle of (M, M) is among its numbers."""
    return np.flatnonzero(np.tri(size, dtype=bool))


def packed(square: Array) -> Array:
    """Return the lower triangle of (M, M) as a vector."""
    return np.take(square, _lower(len(square)))


def unpacked(vector: Array, size: int) -> Array:
    """Return the lower triangle (M, M) that was `packed`; zeros above."""
    square = np.zeros((size, size))
    square.flat[_lower(size)] = vector
    return square
