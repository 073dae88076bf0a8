"""Evaluations that failed: whether one succeeds is a constraint that nobody has to declare.

It is 1 where an evaluation gave a value and -1 where it failed, and is modelled as any constraint
from the first failure on: minimisers are looked for where evaluations succeed, and what one is
worth counts by the probability that it does. Without failures nothing of this is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from qpruntime.arrays import Array
from qpruntime.bayesopt.history import History
from qpruntime.bayesopt.surrogate import Surrogate

__all__ = ["Failing", "failing"]


class Failing(NamedTuple):
    """Constraints of success, and whose they are.

    Attributes
    ----------
    data : list of (int, ndarray (n, variables), ndarray (n,))
        Of each constraint: the first function it is of, points tried, and 1 or -1 there.
    of : list of int or None
        Of each function, the place of its constraint among `data`.
    """

    data: list[tuple[int, Array, Array]]
    of: list[int | None]

    def rows(self, functions: set[int]) -> set[int]:
        """Functions that an evaluation tells: these, and which of them succeed."""
        own = len(self.of)
        more = {self.of[j] for j in functions} - {None}
        return functions | {own + i for i in more if i is not None}

    def expected(
        self, groups: Sequence[Sequence[Surrogate]], gains: Array, U: Array, apart: bool
    ) -> Array:
        """Gains (K + 1, T), or their sum (1, T), of evaluations that may fail.

        Parameters
        ----------
        groups : list of list of Surrogate
        gains : ndarray, shape (K + 1 + len(data), T)
            Of all functions if evaluations succeed, then of knowing whether they do.
        U : ndarray, shape (T, d)
        apart : bool
            Each function's own, not all together.
        """
        own = len(self.of)
        chances = []
        for i in range(len(self.data)):
            each = []
            for group in groups:
                mean, variance = group[own + i].predict(U)
                each.append(ndtr(mean / np.sqrt(np.maximum(variance, 1e-14))))
            chances.append(np.mean(each, axis=0))
        told = gains[:own].copy()
        for j, place in enumerate(self.of):
            if place is not None:
                told[j] *= chances[place]
                if apart:
                    told[j] += gains[own + place]
        return told if apart else told.sum(axis=0, keepdims=True) + gains[own:].sum(axis=0)


def failing(history: History) -> Failing:
    """Constraints of success of all functions that ever failed.

    Functions that failed in the same evaluations have one together: as one program that crashes.
    """
    of: list[int | None] = []
    places: dict[tuple[str, ...], int] = {}
    groups: list[list[int]] = []
    for j in range(history.outputs):
        lost = tuple(r.id for r in history.records if j in r.failed)
        if not lost:
            of.append(None)
            continue
        if lost not in places:
            places[lost] = len(groups)
            groups.append([])
        groups[places[lost]].append(j)
        of.append(places[lost])
    data = []
    for group in groups:
        tried = [r for r in history.records if any(r.known(j) or j in r.failed for j in group)]
        fine = [not r.failed & set(group) for r in tried]
        data.append((group[0], np.array([r.x for r in tried]), np.where(fine, 1.0, -1.0)))
    return Failing(data, of)
