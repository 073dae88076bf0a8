"""Few inducing points settle the rows under each of some kernels, and rows left out choose.

A thousand rows find the length-scales, and the variance of rough functions only to a factor of ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.learning.policy.inducing import FURTHER, Ground
from qpruntime.learning.policy.judged import better
from qpruntime.learning.policy.operations import sweeps_of
from qpruntime.learning.policy.settled import Settled
from qpruntime.projection.projector import Projector

__all__ = ["FIRST", "ROWS", "Case", "contest", "moved"]

#: Inducing points to begin with.
FIRST = 300
#: Of more rows so many are settled.
ROWS = 10_000
# All cases are settled within this share of the budget, and variances moved within the next.
_SHARE, _MOVING = 0.6, 0.7
# By these factors, at most so often; and how many of the best cases are.
_FACTOR, _STEPS, _BEST = 3.0, 3, 2
# Rows left out are sure of a loss of so many standard errors.
_SURE = 2.0


class Case(NamedTuple):
    """A kernel of all rows, with inputs in its units, and words for its stages."""

    ground: Ground
    kernel: Kernel
    projector: Projector
    words: str


def contest(
    cases: list[Case], combined: Callable[[dict[int, Array]], Case | None] = lambda _: None
) -> tuple[int, Kernel, Settled]:
    """Settle the same rows in each of some cases; the first is preferred.

    Parameters
    ----------
    cases : list of Case
        Appended to.
    combined : callable
        Makes another case of those that have been settled, by the densities of their rows.

    Returns
    -------
    int, Kernel, Settled
        Which one was chosen, its kernel and its sites.
    """
    m = min(FIRST, max(1, len(cases[0].ground.data.y) // 4))
    found: dict[int, tuple[Kernel, Settled]] = {}

    def settle(number: int) -> None:
        case = cases[number]
        settled = case.ground.settle(case.kernel, case.projector, m, case.words, None)
        settled.engine.release()
        found[number] = case.kernel, settled

    for number, case in enumerate(cases):
        if number and not _room(case.ground, m, _SHARE):
            break
        settle(number)
    if _room(cases[0].ground, m, _SHARE):
        further = combined({number: settled.densities for number, (_, settled) in found.items()})
        if further is not None:
            cases.append(further)
            settle(len(cases) - 1)
    best = _best(found)
    top = found[best][1].densities
    near = [n for n in found if not better(top - found[n][1].densities, _SURE)]
    near.sort(key=lambda n: (n != best, -found[n][1].score))
    for number in near[:_BEST]:
        found[number] = moved(cases[number], found[number][1])
    best = _best({number: found[number] for number in sorted(near)})
    return best, *found[best]


def moved(case: Case, settled: Settled) -> tuple[Kernel, Settled]:
    """Move the variance of the function while rows left out gain by it."""
    ground, kernel = case.ground, case.kernel
    step = np.zeros(kernel.n_dims)
    step[1] = math.log(_FACTOR)
    for direction in (step, -step):
        begun = settled
        for _ in range(_STEPS):
            theta = kernel.theta + direction
            inside = (theta >= kernel.bounds[:, 0]) & (theta <= kernel.bounds[:, 1])
            if not inside.all() or not _room(ground, settled.m, _MOVING):
                break
            other = kernel.clone_with_theta(theta)
            further = ground.settle(other, case.projector, settled.m, case.words, settled)
            further.engine.release()
            if not better(further.densities - settled.densities):
                break
            kernel, settled = other, further
        if settled is not begun:
            break
    return kernel, settled


def _best(found: dict[int, tuple[Kernel, Settled]]) -> int:
    """Return the first one, or one that rows left out gain by."""
    first, *others = found
    for number in others:
        if better(found[number][1].densities - found[first][1].densities):
            first = number
    return first


def _room(ground: Ground, m: int, share: float) -> bool:
    return ground.budget.allows(sweeps_of(2 * FURTHER, len(ground.data.y), m), share)
