"""The k nearest of many points: by a tree, or in the nearest cells where features are many."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from qpruntime._numba import contracted, kernel
from qpruntime._typing import Array, IntArray
from qpruntime.inference.local.storage import blocks, forget, on_disk, room
from qpruntime.kernels.expression import Leaf, Multiplied, Node, Seen, read

__all__ = [
    "MOST_FEATURES",
    "Cells",
    "Neighbours",
    "distinct",
    "metric",
    "neighbours_of",
]

# --- Equal rows of a matrix

# Rows that are copied at a time.
_ROWS = 2**16


def distinct(A: Array) -> tuple[Numbers, Numbers]:
    """Return the first row of each set of equal rows of A (N, d), and the set of every row.

    Sets are ordered by a hash of their numbers. ``np.unique(axis=0)`` compares records field by
    field, and takes 20 times as long.

    Returns
    -------
    first : ndarray of int, shape (P,)
    group : ndarray of int, shape (N,)
    """
    A = np.asarray(np.ascontiguousarray(A))
    hashes = np.empty(len(A), np.uint64)
    for start in range(0, len(A), _ROWS):
        some = slice(start, start + _ROWS)
        hashes[some] = _hashes((A[some] + 0.0).view(np.uint64))  # so that -0 is 0
    order = np.argsort(hashes, kind="stable")
    first, group = np.empty(len(A), np.intp), np.empty(len(A), np.intp)
    count = _grouped(A, hashes, order, first, group)
    return first[:count].copy(), group


@kernel
def _hashes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of every row (splitmix64)."""
    n, d = words.shape
    found = np.empty(n, np.uint64)
    for i in range(n):
        state = np.uint64(0x9E3779B97F4A7C15)
        for j in range(d):
            state = state ^ words[i, j]
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = (state ^ (state >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
        found[i] = state
    return found


@kernel
def _grouped(
    A: Array, hashes: NDArray[np.uint64], order: IntArray, first: IntArray, group: IntArray
) -> int:
    """Go through runs of equal hashes; rows that share one by chance are told apart."""
    n, d = A.shape
    count, begun = 0, 0
    for at in range(n):
        row = order[at]
        if at > 0 and hashes[row] != hashes[order[at - 1]]:
            begun = count
        found = -1
        for other in range(begun, count):
            same = True
            for j in range(d):
                if A[row, j] != A[first[other], j]:
                    same = False
                    break
            if same:
                found = other
                break
        if found < 0:
            first[count] = row
            found = count
            count += 1
        group[row] = found
    return count


# --- Metric of a kernel


def metric(kernel: Any, d: int) -> Array:
    """Return what inputs (n, d) are multiplied by, shape (d,), for distances in length-scales.

    Inverse squares of length-scales add up in products; in sums they are averages, weighted by
    the variances of the parts. A kernel without length-scales has all inputs count alike. Codes of
    levels that differ are at least as far as their similarity says; this only says which rows are
    near, and not how they are related.
    """
    squares = _inverse_squares(read(kernel), d)
    scale = np.sqrt(squares) if squares is not None else np.ones(d)
    usable = np.isfinite(scale)
    return np.where(usable, scale, 0.0) if usable.any() and scale.any() else np.ones(d)


def _inverse_squares(node: Node, d: int) -> Array | None:
    """None for parts that are the same everywhere, as constants and noise are."""
    if not isinstance(node, Leaf):
        one, two = (_inverse_squares(each, d) for each in (node.one, node.two))
        if one is None or two is None:
            return two if one is None else one
        if isinstance(node, Multiplied):
            return one + two
        left, right = (float(k.kernel.diag(np.zeros((1, d)))[0]) for k in (node.one, node.two))
        return (left * one + right * two) / (left + right)
    if isinstance(node, Seen):
        inner = _inverse_squares(node.inner, len(node.kernel.columns))
        found = np.zeros(d)
        if inner is None:
            return None
        np.add.at(found, np.asarray(node.kernel.columns), inner)
        return found
    if node.parts.levels:
        found = np.zeros(d)
        # k = exp(-w) where levels differ, as exp(-r^2/2) of a distance.
        found[list(node.kernel.columns)] = -2.0 * np.log(np.maximum(node.kernel.similarity, 1e-20))
        return found
    length = getattr(node.kernel, "length_scale", None)
    if length is None:
        return None
    with np.errstate(over="ignore", divide="ignore"):
        return np.broadcast_to(np.asarray(length, dtype=float), (d,)) ** -2.0


# --- Nearest neighbours

#: With more features a tree looks at nearly all points.
MOST_FEATURES = 10
# Numbers that a tree holds, at most.
_MOST = 1.25e8


class Neighbours(Protocol):
    """Points that are searched among."""

    def taken(self) -> NDArray[np.intp] | None:
        """Return an order that the points are put in from now on, near ones together, or None."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        """Return which k are the nearest of each point (n, d), the nearest first, (n, k)."""


class Tree:
    """A KD-tree: exact."""

    def __init__(self, points: Array, scale: Array) -> None:
        self._scale = scale
        self._tree: Any = cKDTree(points * scale)

    def taken(self) -> None:
        """Points stay where they are."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        _, found = self._tree.query(points * self._scale, k=np.arange(1, k + 1))
        return np.asarray(found, dtype=np.intp)


def neighbours_of(points: Array, centres: Array, scale: Array) -> Neighbours:
    """Return what searches among points (P, d), in units of which they are `scale` times as many.

    `centres` (M, d) are where cells begin.
    """
    if points.shape[1] <= MOST_FEATURES and points.size <= _MOST:
        return Tree(points, scale)
    return Cells(points, centres, scale)


# --- Inverted file
#
# Distances are of single precision, the features that vary most first: only points that are near by
# these are looked at further. Of the 30 nearest of 10^4 to 10^6 points, 8 of 20 features counting,
# 96 in 100 are found.

Single = NDArray[np.float32]
Numbers = NDArray[np.intp]

# Cells that are looked through, and on to so many points for each neighbour asked for: these at
# least, and the last one times the square root of the number of points.
_CELLS, _FEWEST, _ENOUGH = 8, 96, 0.175
# Larger cells are cut in two at the middle of their widest feature.
_LARGEST = 256
# Numbers of a block of distances.
_NUMBERS = 2**20
# The leading features hold this share of the variance.
_LEADING = 0.95
# Squares of larger numbers, added up, are none of single precision.
_FAR = 1e15


class Cells:
    """Points (P, d) in cells about centres (M, d), which are cut where they are too large.

    Distances are of `scale` times the points, 1 by default. What is searched is on the disk where
    points are.

    Attributes
    ----------
    order : ndarray of int, shape (P,), or None
        Points by cell; None once they have been put in this order.
    """

    order: Numbers | None

    def __init__(self, points: Array, centres: Array, scale: Array | None = None) -> None:
        P, d = points.shape
        self._scale = np.ones(d) if scale is None else scale
        middles = centres * self._scale
        self._middle = np.median(middles, axis=0)
        spread = np.minimum(np.var(middles, axis=0), _FAR)
        self._features = np.argsort(-spread, kind="stable")
        share = np.cumsum(spread[self._features])
        first = int(np.searchsorted(share, _LEADING * share[-1])) + 1
        self._leading = leading = min(first, d)
        begun = self._single(centres)
        # Cells that are near each other come one after the other.
        turn = np.concatenate(_cut(begun.__getitem__, np.zeros(len(begun), np.intp), 1))
        nearest = np.empty(P, np.intp)
        for some in blocks(P):
            nearest[some] = _nearest(self._single(points[some]), begun[turn])
        cells = _cut(lambda some: self._single(points[some]), nearest, _LARGEST)
        self.order = order = np.concatenate(cells)
        self._begin = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])])
        self._centres = np.empty((len(cells), d), np.float32)
        # Feature by feature in each cell, where processors take several points at once.
        self._front: Any = room((P * leading,), np.float32, on_disk(points))
        self._rest: Any = room((P, d - leading), np.float32, on_disk(points))
        for number, (a, b) in enumerate(pairwise(self._begin)):
            inside = self._single(points[order[a:b]])
            # Medians: a point far away does not move them.
            middle = (b - a) // 2
            self._centres[number] = np.partition(inside, middle, axis=0)[middle]
            self._front[a * leading : b * leading] = inside[:, :leading].T.ravel()
            self._rest[a:b] = inside[:, leading:]
        forget(self._front)
        forget(self._rest)

    def taken(self) -> Numbers | None:
        """Return the order, in which the points are put from now on."""
        order, self.order = self.order, None
        return order

    def _single(self, points: Array) -> Single:
        """Points about the middle of the centres, the features that vary most first."""
        about = (points * self._scale - self._middle)[:, self._features]
        return np.clip(about, -_FAR, _FAR, out=about).astype(np.float32)

    def query(self, points: Array, k: int) -> Numbers:
        """Return which k are the nearest of each point (n, d), as far as its cells know, (n, k)."""
        found = np.empty((len(points), k), np.intp)
        count, P = len(self._centres), int(self._begin[-1])
        enough = max(_FEWEST * k, int(_ENOUGH * k * math.sqrt(P)))
        # So many cells are ordered by distance; where they do not suffice all are.
        few = min(count, 2 * (_CELLS + enough * count // P))
        step = max(1, _NUMBERS // count)
        stored = self._begin, np.asarray(self._front), np.asarray(self._rest)
        for start in range(0, len(points), step):
            some = slice(start, start + step)
            here = self._single(points[some])
            squares = _squares(here, self._centres)
            # One after the other in a cell: what they look at is in the cache.
            turn = np.argsort(np.argmin(squares, axis=1), kind="stable")
            limits = np.partition(squares, few - 1, axis=1)[:, few - 1]
            _search(
                here, (squares, limits, turn), stored, few, enough,
                found[some],
            )  # fmt: skip
        return found if self.order is None else self.order[found]


def _squares(points: Single, centres: Single) -> Single:
    """Squared distances less the squares of the points, (n, M)."""
    found: Single = points @ (-2.0 * centres.T)
    found += np.einsum("nd,nd->n", centres, centres)
    return found


def _nearest(points: Single, centres: Single) -> Numbers:
    """Return which centre is the nearest of each point."""
    found = np.empty(len(points), np.intp)
    step = max(1, _NUMBERS // len(centres))
    for start in range(0, len(points), step):
        some = slice(start, start + step)
        found[some] = np.argmin(_squares(points[some], centres), axis=1)
    return found


def _cut(points: Callable[[Numbers], Single], nearest: Numbers, most: int) -> list[Numbers]:
    """Return the numbers of the points of each cell, which is cut where they are too many."""
    order = np.argsort(nearest, kind="stable")
    ends = np.searchsorted(nearest[order], np.arange(nearest.max() + 2))
    pieces = [order[a:b] for a, b in pairwise(ends) if b > a][::-1]
    cells: list[Numbers] = []
    while pieces:
        piece = pieces.pop()
        if len(piece) <= most:
            cells.append(piece)
            continue
        inside = points(piece)
        widest = np.argmax(inside.max(axis=0) - inside.min(axis=0))
        half = np.argsort(inside[:, widest], kind="stable")
        middle = len(piece) // 2
        pieces += [piece[half[middle:]], piece[half[:middle]]]
    return cells


@contracted
def _keep(square: float, at: int, filled: int, nearest: Single, found: Numbers) -> int:
    """Keep the nearest so far in order, and put a nearer one where it belongs; say how many."""
    k = len(nearest)
    if filled == k and square >= nearest[k - 1]:
        return k
    place = min(filled, k - 1)
    while place > 0 and square < nearest[place - 1]:
        nearest[place] = nearest[place - 1]
        found[place] = found[place - 1]
        place -= 1
    nearest[place] = square
    found[place] = at
    return min(filled + 1, k)


@contracted
def _search(
    points: Single,
    ordered: tuple[NDArray[Any], ...],
    stored: tuple[NDArray[Any], ...],
    few: int,
    enough: int,
    found: Numbers,
) -> None:
    """Go through the cells, the nearest first, until there are points enough."""
    squares, limits, turn = ordered
    begin, front, rest = stored
    k = found.shape[1]
    cells, leading, others = len(begin) - 1, points.shape[1] - rest.shape[1], rest.shape[1]
    nearest, room = np.empty(k, np.float32), np.empty(np.diff(begin).max(), np.float32)
    distance, order = np.empty(few, np.float32), np.empty(few, np.intp)
    for i in turn:
        listed = 0
        for cell in range(cells):
            if squares[i, cell] <= limits[i]:
                listed = _keep(squares[i, cell], cell, listed, distance, order)
        visits = order
        seen, filled, rank = 0, 0, 0
        while rank < cells and not (rank >= _CELLS and seen >= enough and filled == k):
            if rank == len(visits):
                visits = np.argsort(squares[i], kind="mergesort")
            cell = visits[rank]
            first, count = begin[cell], begin[cell + 1] - begin[cell]
            inside = room[:count]
            inside[:] = np.float32(0.0)
            for j in range(leading):
                at = points[i, j]
                # A part of its own: indices that cannot be negative are taken several at once.
                column = front[first * leading + j * count :][:count]
                for c in range(count):
                    step = at - column[c]
                    inside[c] += step * step
            limit = nearest[k - 1] if filled == k else np.float32(np.inf)
            for c in range(count):
                square = inside[c]
                if square > limit:
                    continue
                for j in range(others):
                    step = points[i, leading + j] - rest[first + c, j]
                    square += step * step
                filled = _keep(square, first + c, filled, nearest, found[i])
                if filled == k:
                    limit = nearest[k - 1]
            seen += count
            rank += 1
