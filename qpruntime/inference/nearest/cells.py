"""An inverted file: points in cells about centres, and the nearest cells of a point looked through.

Searching among some thousand points of 8 cells finds nearly all of the nearest of a million.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.sparse.squares import squared_distances
from qpruntime.jit import kernel

__all__ = ["Cells"]

# Cells that are looked through, and on to so many points for each neighbour asked for.
_CELLS, _ENOUGH = 8, 64
# Larger cells are cut in two at the middle of their widest feature.
_LARGEST = 1024
# Numbers of a block of distances.
_NUMBERS = 2**20


class Cells:
    """Points (P, d) in cells about centres (M, d), which are cut where they are too large."""

    def __init__(self, points: Array, centres: Array) -> None:
        nearest = np.empty(len(points), np.intp)
        step = max(1, _NUMBERS // len(centres))
        for start in range(0, len(points), step):
            some = slice(start, start + step)
            nearest[some] = np.argmin(squared_distances(points[some], centres), axis=1)
        order = np.argsort(nearest, kind="stable")
        ends = np.searchsorted(nearest[order], np.arange(len(centres) + 1))
        pieces = [order[a:b] for a, b in pairwise(ends) if b > a]
        cells: list[NDArray[np.intp]] = []
        while pieces:
            piece = pieces.pop()
            if len(piece) <= _LARGEST:
                cells.append(piece)
                continue
            inside = points[piece]
            widest = np.argmax(inside.max(axis=0) - inside.min(axis=0))
            half = np.argsort(inside[:, widest], kind="stable")
            middle = len(piece) // 2
            pieces += [piece[half[:middle]], piece[half[middle:]]]
        self._order = np.concatenate(cells)
        self._begin = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])])
        self._points = points[self._order]
        means = np.add.reduceat(self._points, self._begin[:-1], axis=0)
        self._centres = means / np.diff(self._begin)[:, None]

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        """Return which k are the nearest of each point (n, d), as far as its cells know, (n, k)."""
        found = np.empty((len(points), k), np.intp)
        step = max(1, _NUMBERS // len(self._centres))
        for start in range(0, len(points), step):
            some = slice(start, start + step)
            order = np.argsort(squared_distances(points[some], self._centres), axis=1)
            here = np.ascontiguousarray(points[some])
            _search(here, order, self._begin, self._points, _ENOUGH * k, found[some])
        return self._order[found]


@kernel
def _search(points, order, begin, among, enough, found):
    """Keep the k nearest so far in order, and put each nearer one where it belongs."""
    n, k = found.shape
    d = points.shape[1]
    nearest = np.empty(k)
    for i in range(n):
        nearest[:] = np.inf
        found[i, :] = -1
        seen, filled = 0, 0
        for rank in range(order.shape[1]):
            if rank >= _CELLS and seen >= enough and filled == k:
                break
            cell = order[i, rank]
            seen += begin[cell + 1] - begin[cell]
            for at in range(begin[cell], begin[cell + 1]):
                square = 0.0
                for j in range(d):
                    step = points[i, j] - among[at, j]
                    square += step * step
                if filled < k or square < nearest[k - 1]:
                    place = min(filled, k - 1)
                    filled = min(filled + 1, k)
                    while place > 0 and square < nearest[place - 1]:
                        nearest[place] = nearest[place - 1]
                        found[i, place] = found[i, place - 1]
                        place -= 1
                    nearest[place] = square
                    found[i, place] = at
