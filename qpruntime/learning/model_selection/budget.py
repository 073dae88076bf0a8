"""Which rows kernels are learnt from, and which judge them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = ["FEWEST", "Subsets", "drawn"]

#: Below this many rows none are held out.
FEWEST = 60
#: Rows of dense fits, one after the other, where at least twice as many are there.
_RUNGS = (500, 1000, 2000)
# Rows that judge, at most, and how many rows are learnt from before those.
_JUDGES, _FIRST = 2000, 1000
# The rarer class has so many rows in the first rung, if that takes at most this many rows.
_RARE, _MOST_ROWS = 25, 2000
# Judges hold so many rows of it, or do not judge; of few judges this share is enough.
_RARE_JUDGES, _SHARE = 50, 0.1


@dataclass(frozen=True, eq=False)
class Subsets:
    """Rows in the order in which they are taken.

    Attributes
    ----------
    order : ndarray of int
        Numbers of the rows that stages may see, each class evenly spread over them.
    rungs : tuple of int
        Sizes of the first parts of `order` that kernels are learnt from.
    judged : slice
        Which of `order` judge.
    judging : bool
        Whether they can: every class has enough rows among them.
    """

    order: NDArray[np.intp]
    rungs: tuple[int, ...]
    judged: slice
    judging: bool


def drawn(
    n: int, strata: Array | None, rng: np.random.Generator, most: int = _RUNGS[-1]
) -> Subsets:
    """Draw the rows of stages.

    Parameters
    ----------
    n : int
        Rows there are, at least `FEWEST`.
    strata : ndarray, shape (n,), or None
        The class of each row; proportions are kept, never balanced.
    rng : Generator
    most : int
        Rows of a dense fit.
    """
    first = min(_FIRST, n // 2, most)
    rungs = [size for size in _RUNGS if size <= min(most, n // 2)] or [n // 2]
    if n // 2 < _FIRST and rungs[-1] < 0.8 * first:
        rungs.append(first)  # between 500 and 1000 rows
    judged = slice(first, min(first + _JUDGES, n))
    if strata is None:
        order = rng.permutation(n)[: max(judged.stop, rungs[-1])]
        return Subsets(order, tuple(rungs), judged, True)
    order = _spread(strata, rng)
    codes = np.unique(strata, return_inverse=True)[1]
    rare = int(np.bincount(codes).min())
    needed = -(-_RARE * n // max(rare, 1))
    while rungs[0] < min(needed, n // 2) and 2 * rungs[0] <= _MOST_ROWS:
        rungs = sorted({min(2 * size, n // 2, _MOST_ROWS) for size in rungs})
    if rungs[0] > judged.start:
        judged = slice(rungs[0], min(rungs[0] + _JUDGES, n))
    judges = codes[order[judged]]
    held = int(np.bincount(judges, minlength=int(codes.max()) + 1).min())
    enough = held >= max(1.0, min(_RARE_JUDGES, _SHARE * judges.size))
    last = max(judged.stop, rungs[-1])
    return Subsets(order[:last], tuple(rungs), judged, enough)


def _spread(strata: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Numbers of rows in an order whose first parts have all classes in proportion."""
    place = np.empty(len(strata))
    for label in np.unique(strata):
        rows = np.flatnonzero(strata == label)
        place[rng.permutation(rows)] = (np.arange(rows.size) + rng.random()) / rows.size
    return np.argsort(place, kind="stable")
