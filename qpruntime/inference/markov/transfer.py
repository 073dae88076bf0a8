"""What a part of a series does to messages that go through it, at the sites it has.

A part takes the state before it to the state behind it as x' = A x + b + N(0, C), and has said
exp(eta' x - x' J x / 2) of the state before: (A, b, C, eta, J), whose size is that of the state. It
is folded row by row from (I, 0, 0, 0, 0); messages at all borders follow part by part, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.markov.fold import fold, pair_fold
from qpruntime.inference.markov.messages import opening, read, written
from qpruntime.inference.markov.rows import Rows
from qpruntime.kernels.state_space import StateSpace

__all__ = ["Transfer", "folded", "messages_between"]


class Transfer(NamedTuple):
    """A part of a series as it is to messages; the first is the matrix A."""

    move: Array
    b: Array
    C: Array
    eta: Array
    J: Array


def folded(rows: Rows) -> Transfer:
    """Return what these rows, and the step that leads to them, are to messages."""
    series, d = rows.series, rows.space.dimension
    short = rows.space.pair is not None
    size = 2 if short else d
    zero = np.zeros((size, size))
    found = Transfer(np.eye(size), np.zeros(size), zero, np.zeros(size), zero.copy())
    chain = rows.chain if short else rows.space.arrays(float(series.t[0]))
    given = chain, series.steps, (rows.noise, series.scales), (rows.tau, rows.nu)
    (pair_fold if short else fold)(*given, tuple(found))
    return Transfer(*(part[:d, :d] if part.ndim == 2 else part[:d] for part in found))


def messages_between(space: StateSpace, begin: float, parts: Sequence[Transfer]) -> list[Array]:
    """Messages that every part begins with, (2, width): from before it, and from behind it."""
    first, last = opening(space, begin)
    one = np.eye(space.dimension)
    ahead, behind = [first], [last]
    m, P = read(space, first, True)
    for move, b, C, eta, J in parts[:-1]:
        met = np.linalg.solve(one + P @ J, np.column_stack([m + P @ eta, P]))
        m = move @ met[:, 0] + b
        P = move @ met[:, 1:] @ move.T + C
        P = 0.5 * (P + P.T)
        ahead.append(written(space, m, P, True))
    n, K = read(space, last, False)
    for move, b, C, eta, J in parts[:0:-1]:
        met = np.linalg.solve(one + K @ C, np.column_stack([n - K @ b, K]))
        n = move.T @ met[:, 0] + eta
        K = move.T @ met[:, 1:] @ move + J
        K = 0.5 * (K + K.T)
        behind.append(written(space, n, K, False))
    return [np.array(pair) for pair in zip(ahead, behind[::-1], strict=True)]
