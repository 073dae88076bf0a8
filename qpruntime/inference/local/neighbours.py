"""Search for the k nearest of many points, by a tree or, for many features, in cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from qpruntime._numba import contracted, kernel
from qpruntime._typing import Array, IntArray
from qpruntime.inference.local.storage import blocks, forget, on_disk, room
from qpruntime.kernels.registry import Leaf, Multiplied, Node, Seen, read

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "MOST_FEATURES",
    "Cells",
    "Neighbours",
    "distinct",
    "metric",
    "neighbours_of",
]

# --- Equal rows of a matrix

# Number of rows that are copied at a time.
_ROWS_PER_BLOCK = 2**16


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
    for start in range(0, len(A), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        hashes[block] = _hashes((A[block] + 0.0).view(np.uint64))  # so that -0 is 0
    order = np.argsort(hashes, kind="stable")
    first, group = np.empty(len(A), np.intp), np.empty(len(A), np.intp)
    count = _grouped(A, hashes, order, first, group)
    return first[:count].copy(), group


@kernel
def _hashes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of every row (splitmix64)."""
    n, d = words.shape
    hashes = np.empty(n, np.uint64)
    for i in range(n):
        state = np.uint64(0x9E3779B97F4A7C15)
        for j in range(d):
            state = state ^ words[i, j]
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = (state ^ (state >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
        hashes[i] = state
    return hashes


@kernel
def _grouped(
    A: Array, hashes: NDArray[np.uint64], order: IntArray, first: IntArray, group: IntArray
) -> int:
    """Group rows by runs of equal hashes, and compare them, because hashes may collide."""
    n, d = A.shape
    count, begun = 0, 0
    for position in range(n):
        row = order[position]
        if position > 0 and hashes[row] != hashes[order[position - 1]]:
            begun = count
        match = -1
        for candidate in range(begun, count):
            is_equal = True
            for j in range(d):
                if A[row, j] != A[first[candidate], j]:
                    is_equal = False
                    break
            if is_equal:
                match = candidate
                break
        if match < 0:
            first[count] = row
            match = count
            count += 1
        group[row] = match
    return count


# --- Metric of a kernel


def metric(kernel: Kernel, d: int) -> Array:
    """Return the scales of inputs, shape (d,), that give distances in length-scales.

    Inverse squares of length-scales add up in products, and are averaged in sums with the
    variances of the parts as weights. A kernel without length-scales weighs all inputs alike. Codes
    of different levels are at least as far apart as their similarity implies. The distances only
    select rows, and do not enter covariances.
    """
    squares = _inverse_squares(read(kernel), d)
    scale = np.sqrt(squares) if squares is not None else np.ones(d)
    usable = np.isfinite(scale)
    return np.where(usable, scale, 0.0) if usable.any() and scale.any() else np.ones(d)


def _inverse_squares(node: Node, d: int) -> Array | None:
    """Return inverse squares of length-scales, or None for parts such as constants and noise."""
    if not isinstance(node, Leaf):
        first, second = (_inverse_squares(part, d) for part in (node.first, node.second))
        if first is None or second is None:
            return second if first is None else first
        if isinstance(node, Multiplied):
            return first + second
        first_weight, second_weight = (
            float(k.kernel.diag(np.zeros((1, d)))[0]) for k in (node.first, node.second)
        )
        return (first_weight * first + second_weight * second) / (first_weight + second_weight)
    if isinstance(node, Seen):
        inner = _inverse_squares(node.inner, len(node.kernel.columns))
        squares = np.zeros(d)
        if inner is None:
            return None
        np.add.at(squares, np.asarray(node.kernel.columns), inner)
        return squares
    if node.parts.levels:
        squares = np.zeros(d)
        # Different levels have k = exp(-w), which is exp(-r^2/2) for a distance r.
        squares[list(node.kernel.columns)] = -2.0 * np.log(
            np.maximum(node.kernel.similarity, 1e-20)
        )
        return squares
    length = getattr(node.kernel, "length_scale", None)
    if length is None:
        return None
    with np.errstate(over="ignore", divide="ignore"):
        return np.broadcast_to(np.asarray(length, dtype=float), (d,)) ** -2.0


# --- Nearest neighbours

#: Largest number of features for a tree; with more it visits nearly all points.
MOST_FEATURES = 10
# Largest number of coordinates in a tree.
_MAX_TREE_NUMBERS = 1.25e8


class Neighbours(Protocol):
    """Index of points for searches of nearest neighbours."""

    def taken(self) -> NDArray[np.intp] | None:
        """Return the order that the caller must put the points in, near ones together, or None."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        """Return the k nearest of each point (n, d), the nearest first, shape (n, k)."""


class Tree:
    """KD-tree, which is exact."""

    def __init__(self, points: Array, scale: Array) -> None:
        self._scale = scale
        self._tree = cKDTree(points * scale)

    def taken(self) -> None:
        """Return None, because points keep their order."""

    def query(self, points: Array, k: int) -> NDArray[np.intp]:
        _, nearest = self._tree.query(points * self._scale, k=np.arange(1, k + 1))
        return np.asarray(nearest, dtype=np.intp)


def neighbours_of(points: Array, centres: Array, scale: Array) -> Neighbours:
    """Return the index of points (P, d), whose distances are those of `scale` times the points.

    `centres` (M, d) are the initial centres of cells.
    """
    if points.shape[1] <= MOST_FEATURES and points.size <= _MAX_TREE_NUMBERS:
        return Tree(points, scale)
    return Cells(points, centres, scale)


# --- Inverted file
#
# Distances have single precision. They sum the features that vary most first, and the others only
# for points that are near by these. The search finds 96 % of the 30 nearest of 10^4 to 10^6 points
# if 8 of 20 features matter.

Single = NDArray[np.float32]
Numbers = NDArray[np.intp]

# Smallest number of cells that are searched; smallest number of points per neighbour, and its
# growth with the square root of the number of points.
_MIN_CELLS, _MIN_POINTS_PER_NEIGHBOUR, _POINTS_PER_NEIGHBOUR_GROWTH = 8, 96, 0.175
# Largest number of points in a cell; larger cells are halved along their widest feature.
_MAX_CELL_POINTS = 256
# Number of distances in a block.
_BLOCK_NUMBERS = 2**20
# Share of the variance in the leading features.
_LEADING_VARIANCE = 0.95
# Coordinates are clipped to this size, so that sums of squares fit into single precision.
_MAX_COORDINATE = 1e15


class Cells:
    """Inverted file of points (P, d): cells about centres (M, d), halved while they are too large.

    Distances are those of `scale` times the points, 1 by default. The searched arrays are on disk
    if the points are.

    Attributes
    ----------
    order : ndarray of int, shape (P,), or None
        Points sorted by cell; None once the caller has put them in this order.
    """

    order: Numbers | None

    def __init__(self, points: Array, centres: Array, scale: Array) -> None:
        P, d = points.shape
        self._scale = scale
        middles = centres * self._scale
        self._middle = np.median(middles, axis=0)
        spread = np.minimum(np.var(middles, axis=0), _MAX_COORDINATE)
        self._features = np.argsort(-spread, kind="stable")
        share = np.cumsum(spread[self._features])
        first = int(np.searchsorted(share, _LEADING_VARIANCE * share[-1])) + 1
        self._leading = leading = min(first, d)
        scaled_centres = self._single(centres)
        # Nearby cells are stored together.
        order_of_cells = np.concatenate(
            _cut(scaled_centres.__getitem__, np.zeros(len(scaled_centres), np.intp), 1)
        )
        nearest = np.empty(P, np.intp)
        for block in blocks(P):
            nearest[block] = _nearest(self._single(points[block]), scaled_centres[order_of_cells])
        cells = _cut(lambda some: self._single(points[some]), nearest, _MAX_CELL_POINTS)
        self.order = order = np.concatenate(cells)
        self._begin = np.concatenate([[0], np.cumsum([len(cell) for cell in cells])])
        self._centres = np.empty((len(cells), d), np.float32)
        # Each cell is stored feature by feature, so that loops over points vectorise.
        self._front = room((P * leading,), np.float32, on_disk(points))
        self._rest = room((P, d - leading), np.float32, on_disk(points))
        for number, (a, b) in enumerate(pairwise(self._begin)):
            members = self._single(points[order[a:b]])
            # The centre is a median, which a distant point does not move.
            middle = (b - a) // 2
            self._centres[number] = np.partition(members, middle, axis=0)[middle]
            self._front[a * leading : b * leading] = members[:, :leading].T.ravel()
            self._rest[a:b] = members[:, leading:]
        forget(self._front)
        forget(self._rest)

    def taken(self) -> Numbers | None:
        """Return the order that the caller must put the points in."""
        order, self.order = self.order, None
        return order

    def _single(self, points: Array) -> Single:
        """Return centred points in single precision, with the features that vary most first."""
        about = (points * self._scale - self._middle)[:, self._features]
        return np.clip(about, -_MAX_COORDINATE, _MAX_COORDINATE, out=about).astype(np.float32)

    def query(self, points: Array, k: int) -> Numbers:
        """Return the k nearest of each point (n, d) in the searched cells, shape (n, k)."""
        nearest = np.empty((len(points), k), np.intp)
        count, P = len(self._centres), int(self._begin[-1])
        enough = max(
            _MIN_POINTS_PER_NEIGHBOUR * k, int(_POINTS_PER_NEIGHBOUR_GROWTH * k * math.sqrt(P))
        )
        # Only `few` cells are sorted by distance; all are if these do not suffice.
        few = min(count, 2 * (_MIN_CELLS + enough * count // P))
        step = max(1, _BLOCK_NUMBERS // count)
        stored = self._begin, np.asarray(self._front), np.asarray(self._rest)
        for start in range(0, len(points), step):
            block = slice(start, start + step)
            scaled = self._single(points[block])
            squares = _squares(scaled, self._centres)
            # Points of one cell are queried together, so that its arrays stay in the cache.
            turn = np.argsort(np.argmin(squares, axis=1), kind="stable")
            limits = np.partition(squares, few - 1, axis=1)[:, few - 1]
            _search(
                scaled, (squares, limits, turn), stored, few, enough,
                nearest[block],
            )  # fmt: skip
        return nearest if self.order is None else self.order[nearest]


def _squares(points: Single, centres: Single) -> Single:
    """Return squared distances less the squares of the points, shape (n, M)."""
    squares: Single = points @ (-2.0 * centres.T)
    squares += np.einsum("nd,nd->n", centres, centres)
    return squares


def _nearest(points: Single, centres: Single) -> Numbers:
    """Return the nearest centre of each point."""
    nearest = np.empty(len(points), np.intp)
    step = max(1, _BLOCK_NUMBERS // len(centres))
    for start in range(0, len(points), step):
        block = slice(start, start + step)
        nearest[block] = np.argmin(_squares(points[block], centres), axis=1)
    return nearest


def _cut(points: Callable[[Numbers], Single], nearest: Numbers, most: int) -> list[Numbers]:
    """Return the points of each cell by number, after halving cells of more than `most`."""
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
def _keep(square: float, number: int, filled: int, nearest: Single, numbers: Numbers) -> int:
    """Insert a point into the sorted list of nearest ones, and return the list's length."""
    k = len(nearest)
    if filled == k and square >= nearest[k - 1]:
        return k
    place = min(filled, k - 1)
    while place > 0 and square < nearest[place - 1]:
        nearest[place] = nearest[place - 1]
        numbers[place] = numbers[place - 1]
        place -= 1
    nearest[place] = square
    numbers[place] = number
    return min(filled + 1, k)


@contracted
def _search(
    points: Single,
    ordered: tuple[NDArray[np.integer], ...],
    stored: tuple[NDArray[np.integer], ...],
    few: int,
    enough: int,
    numbers: Numbers,
) -> None:
    """Search the cells in order of distance until enough points were visited."""
    squares, limits, turn = ordered
    begin, front, remaining = stored
    k = numbers.shape[1]
    cells, leading, remaining_count = (
        len(begin) - 1,
        points.shape[1] - remaining.shape[1],
        remaining.shape[1],
    )
    nearest, room = np.empty(k, np.float32), np.empty(np.diff(begin).max(), np.float32)
    distance, order = np.empty(few, np.float32), np.empty(few, np.intp)
    for i in turn:
        listed = 0
        for cell in range(cells):
            if squares[i, cell] <= limits[i]:
                listed = _keep(squares[i, cell], cell, listed, distance, order)
        visits = order
        visited, filled, rank = 0, 0, 0
        while rank < cells and not (rank >= _MIN_CELLS and visited >= enough and filled == k):
            if rank == len(visits):
                visits = np.argsort(squares[i], kind="mergesort")
            cell = visits[rank]
            first, count = begin[cell], begin[cell + 1] - begin[cell]
            inside = room[:count]
            inside[:] = np.float32(0.0)
            for j in range(leading):
                coordinate = points[i, j]
                # This slice has no negative indices, so that the loop vectorises.
                column = front[first * leading + j * count :][:count]
                for c in range(count):
                    step = coordinate - column[c]
                    inside[c] += step * step
            limit = nearest[k - 1] if filled == k else np.float32(np.inf)
            for c in range(count):
                square = inside[c]
                if square > limit:
                    continue
                for j in range(remaining_count):
                    step = points[i, leading + j] - remaining[first + c, j]
                    square += step * step
                filled = _keep(square, first + c, filled, nearest, numbers[i])
                if filled == k:
                    limit = nearest[k - 1]
            visited += count
            rank += 1
