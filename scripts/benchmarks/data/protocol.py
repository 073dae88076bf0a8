"""The protocol of the paper's Table 1: blocks of fits, rounds and folds, and who trains or tests.

Blocks:

``main``  EP at the maximum of its evidence, and QP at the same hyper-parameters; the optimiser
          moves softplus^-1 of the parameters, as GPy does, from which the published numbers come
``log``   the same, but the optimiser moves their logarithms, as GPClassifier does
``grid``  the same QP on the paper's bounded grid, with three rules for what falls outside
``vb``    the variational Gaussian approximation at the maximum of its bound
``ard``   as ``log`` with one length-scale per feature
``loo``   EP and QP at the maximum of EP's leave-one-out log predictive density
``time``  best of three runs of EP and of QP by compact table, by the paper's grid, by quadrature
``all``   as ``main``, with folds that test every row (the paper never tests the remainder)
``corrected``  EP and QP as ``main``, and EP corrected: predictions by `Posterior.marginals`
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]

BLOCKS = ("main", "log", "vb", "grid", "time", "ard", "loo", "all", "corrected")
FOLDS = 10
#: Rounds of Table 1; a round of Mining is one split in two.
ROUNDS = {"mining": 200}
ROUNDS_OTHERWISE = 100
#: What falls outside the paper's grid: EP's deviation, the integral, or the value at the edge.
OUTSIDE = ("ep", "exact", "clamp")


class Task(NamedTuple):
    """What identifies one fit."""

    data: str
    block: str
    round: int
    fold: int


def folds(data: str) -> int:
    """Return the number of folds in a round."""
    return 1 if data == "mining" else FOLDS


def rounds(data: str) -> int:
    """Return the number of rounds in Table 1."""
    return ROUNDS.get(data, ROUNDS_OTHERWISE)


def split(task: Task, m: int) -> tuple[Rows, Rows]:
    """Rows to train on and rows to test.

    Mining: each year goes to either side with probability 1/2. Otherwise fold k of a permutation
    has floor(m/10) rows, which leaves m mod 10 rows always in training; block ``all`` spreads them.
    """
    random = np.random.RandomState(task.round)
    if task.data == "mining":
        train = random.rand(m) > 0.5
        return np.flatnonzero(train), np.flatnonzero(~train)
    order = random.permutation(m)
    if task.block == "all":
        test = np.array_split(order, FOLDS)[task.fold]
    else:
        size = m // FOLDS
        test = order[task.fold * size : (task.fold + 1) * size]
    return np.setdiff1d(order, test), test
