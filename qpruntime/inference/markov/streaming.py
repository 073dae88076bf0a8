"""Rows that come after those of a posterior: only the last ones are swept again.

A posterior is held in pieces, each with the forward messages of some of its rows. New rows are
swept together with so many before them that what these say of the state before is as it was; all
other pieces are those of the posterior before, and joined when somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.markov.evidence import Summary, require_evidence
from qpruntime.inference.markov.messages import read
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.settle import Ended, settle
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace

__all__ = ["EVERY", "Appended", "Piece", "append", "joined_pieces"]

#: Forward messages are kept of one row in so many.
EVERY = 256
#: Rows that are swept again at first; twice as many where that does not suffice.
_LEAST = 256


@dataclass(frozen=True)
class Piece:
    """Rows in order of time: what was given, what was found, sites about the prior mean.

    `index` is their place in the order they were given in, and `marks` are the forward messages at
    rows 0, `EVERY`, 2 `EVERY` and so on.
    """

    t: Array
    y: Array
    prior: Array
    weights: Array | None
    scale: Array | None
    tau: Array
    nu: Array
    mean: Array
    variance: Array
    log_z: Array
    index: Any
    marks: Array

    def cut(self, start: int, stop: int) -> Piece:
        """Rows from a marked one on."""
        found = {}
        for field in fields(self):
            values = getattr(self, field.name)
            if field.name == "marks":
                found["marks"] = values[start // EVERY : -(-stop // EVERY)]
            else:
                found[field.name] = None if values is None else values[start:stop]
        return Piece(**found)


def joined_pieces(pieces: Sequence[Piece], name: str) -> Any:
    """Return one column of all pieces."""
    columns = [getattr(piece, name) for piece in pieces]
    if len(columns) == 1:
        return columns[0]
    return None if columns[0] is None else np.concatenate(columns)


@dataclass(frozen=True)
class Appended:
    """Pieces with the new rows in, how the sweeps ended, and by how much the evidence rose.

    `swept` is how many rows were swept.
    """

    pieces: tuple[Piece, ...]
    ended: Ended
    rise: float
    swept: int


def append(
    pieces: tuple[Piece, ...], new: Piece, series: Series, space: StateSpace, limits: Limits
) -> Appended:
    """Append rows that are later than all others; `series` says how they are observed."""
    total = sum(piece.t.size for piece in pieces)
    wanted = _LEAST
    while True:
        left, window, count = _last(pieces, wanted)
        found = _append(window, new, series, space, limits, total - count)
        if found is not None:
            return replace(found, pieces=(*left, *found.pieces))
        wanted = 4 * max(count, wanted)


def _last(pieces: tuple[Piece, ...], wanted: int) -> tuple[list[Piece], list[Piece], int]:
    """Part pieces at a mark, at least so many rows before the end."""
    left, count = list(pieces), 0
    window: list[Piece] = []
    while left and count < wanted:
        piece = left.pop()
        size = piece.t.size
        start = max(size - (wanted - count), 0) // EVERY * EVERY
        window.insert(0, piece.cut(start, size))
        if start:
            left.append(piece.cut(0, start))
        count += size - start
    return left, window, count


def _append(
    window: list[Piece], new: Piece, series: Series, space: StateSpace, limits: Limits, before: int
) -> Appended | None:
    """Sweep the window and the new rows; None if what is before the window changes."""
    mark = window[0].marks[0]
    edges = np.array([mark, np.zeros_like(mark)])
    old = _rows(window, series, space, edges)
    both = _rows([*window, new], series, space, edges)
    for rows in (old, both):
        rows.refresh()
    share, behind = old.finish(), old.edges[3].copy()
    own = limits._replace(tol=0.1 * limits.tol)
    ended = settle(both, own, Trace(), warm=True)
    marks = both.marks(EVERY)
    if before:
        both.refresh()
        moved = _moved(space, mark, behind, both.edges[3])
        if not moved < limits.tol:
            return None
    require_evidence(ended.summary)
    index = np.concatenate([*(piece.index for piece in window), new.index])
    piece = _piece(both, ended.summary, index, marks)
    rise = ended.summary.log_evidence - share.log_evidence
    ended = replace(ended, worst=int(index[ended.worst]))
    return Appended((piece,), ended, rise, both.tau.size)


def _rows(window: Sequence[Piece], series: Series, space: StateSpace, edges: Array) -> Rows:
    def column(name: str) -> Any:
        return joined_pieces(window, name)

    own = replace(
        series,
        **{name: column(name) for name in ("t", "y", "prior", "weights", "scale")},
        before=None,
    )
    return Rows(own, space, Sites(column("tau"), column("nu")), edges)


def _piece(rows: Rows, found: Summary, index: Any, marks: Array) -> Piece:
    series = rows.series
    observed = series.t, series.y, series.prior, series.weights, series.scale
    return Piece(
        *observed, rows.tau, rows.nu, found.mean, found.variance, found.log_z, index, marks
    )


def _moved(space: StateSpace, mark: Array, old: Array, new: Array) -> float:
    """How far two messages from behind move the state from each other, in its own units."""
    m, P = read(space, mark, True)
    states = []
    for row in (old, new):
        eta, J = read(space, row, False)
        met = np.linalg.solve(np.eye(m.size) + P @ J, np.column_stack([m + P @ eta, P]))
        states.append((met[:, 0], np.diag(met[:, 1:])))
    (mean, variance), (other, width) = states
    known = variance > 1e-300
    if not known.any():
        return 0.0
    with np.errstate(over="ignore"):  # what overflows has moved
        off = np.abs(other - mean)[known] / np.sqrt(variance[known])
        wider = np.abs(width[known] / variance[known] - 1.0)
    return float(max(off.max(), wider.max()))
