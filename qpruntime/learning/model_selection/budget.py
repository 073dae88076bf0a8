"""Budget of automatic model selection: eligibility, splits, operation counts, hold-out scores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.learning.progress import time_left
from qpruntime.learning.settings import Data, Settings

__all__ = [
    "DENSE",
    "FEWEST",
    "RUNGS",
    "Budget",
    "Rest",
    "Stage",
    "StageReport",
    "Subsets",
    "acts",
    "acts_on_few",
    "better",
    "dense_evaluation",
    "dense_inference",
    "drawn",
    "local_density",
    "strata_of",
    "sweeps_of",
    "why_never",
]

# --- Hold-out log and significant gains


@restorable("stage/1")
@dataclass(frozen=True)
class Stage:
    """A step of a fit.

    Attributes
    ----------
    rows : int
        That it learnt from, or that were settled.
    candidate : str
    density : float
        Mean log predictive density of the rows that judged, NaN if none did.
    operations : float
        That the fit had taken after it.
    """

    rows: int
    candidate: str
    density: float
    operations: float


def better(gain: Array, errors: float = 1.0) -> bool:
    """Whether judges gain more than so many standard errors of their mean gain."""
    if not np.isfinite(gain).all():
        return False
    error = float(np.std(gain)) / math.sqrt(gain.size)
    return float(np.mean(gain)) > errors * error


# --- Cost in floating-point operations
#
# A budget is counted and is no clock: the same seed gives the same bits on any machine, however
# busy.

#: Operations that stand for a second of one core.
RATE = 2e10
# Seconds of a fit of so many rows, and the factor for ten times as many.
_SECONDS, _ROWS, _DECADE = 30.0, 10_000, 4.0


class Budget:
    """Operations that a fit may take, and those that it has taken.

    Parameters
    ----------
    seconds : float or None
        Of one core that does 2e10 operations a second; None is 30 up to 10 000 rows, and four times
        as many for ten times as many rows.
    rows : int
    """

    def __init__(self, seconds: float | None, rows: int) -> None:
        if seconds is None:
            seconds = _SECONDS * _DECADE ** max(0.0, math.log10(rows / _ROWS))
        self.seconds = seconds
        self.most = seconds * RATE
        self.taken = 0.0

    def take(self, operations: float) -> None:
        """Count what has been done."""
        self.taken += operations

    def allows(self, operations: float, share: float = 1.0) -> bool:
        """Whether so many more stay within a share of the budget."""
        return self.taken + operations <= share * self.most


class StageReport(list[Stage]):
    """Stages of a fit in their order, each of which is told as soon as it has ended.

    Parameters
    ----------
    budget : Budget
        The time left is estimated from what it still allows; a fit may end sooner.
    say : callable or None
        Takes the share of the budget that is used, and words. Nothing is told without it.
    """

    def __init__(self, budget: Budget, say: Callable[[float, str], object] | None) -> None:
        super().__init__()
        self._budget, self._say, self._phase = budget, say, ""
        self._begun = time.perf_counter()

    def begin(self, phase: str, operations: float | None = None) -> None:
        """Enter a phase; `operations` are left then, if not all that the budget allows."""
        self._phase = phase
        self._tell(f"{phase} begins", operations)

    def append(self, stage: Stage) -> None:
        """Add a stage that has ended."""
        super().append(stage)
        judged = "" if math.isnan(stage.density) else f", log density {stage.density:.4f} a row"
        self._tell(f"{self._phase}: {stage.candidate} on {stage.rows} rows{judged}")

    def _tell(self, words: str, operations: float | None = None) -> None:
        if self._say is None:
            return
        most, taken = self._budget.most, self._budget.taken
        elapsed = time.perf_counter() - self._begun
        allowed = max(most - taken, 0.0) if operations is None else operations
        left = time_left(elapsed / taken * allowed) if taken else ""
        at_most = f"{left} at most" if left else ""
        self._say(min(taken / most, 1.0), f"{words}; {elapsed:.0f} s elapsed{at_most}")


def dense_evaluation(n: int, features: int = 1) -> float:
    """One evidence of n rows and its gradient, with so many length-scales."""
    return 4.5 * float(n) ** 3 + 20.0 * float(n) ** 2 * features


def dense_inference(n: int) -> float:
    """Settle n rows under a kernel that is known."""
    return 8.0 * float(n) ** 3


def sweeps_of(sweeps: int, n: int, m: int) -> float:
    """Sweeps over n rows with m inducing inputs; the first also computes the features."""
    return sweeps * 3.0 * float(n) * m * m + 40.0 * float(n) * m


def local_density(rows: int, k: int, m: int) -> float:
    """Leave-one-out densities of so many rows with their k nearest."""
    return rows * (4.0 * k * k * m + 10.0 * float(k) ** 3)


# --- Conditions for automatic model selection

#: More rows than this are not fitted densely.
DENSE = 1500


def acts(data: Data, settings: Settings) -> bool:
    """Whether kernel and engine are chosen for the rows there are.

    For more rows than are fitted densely; ``inducing="judged"`` asks for it from 60 rows on.
    """
    auto = settings.auto
    fewest = FEWEST if auto is not None and auto.few else DENSE + 1
    return len(data.y) >= fewest and _free(data, settings)


def acts_on_few(data: Data, settings: Settings) -> bool:
    """Whether the features of few rows may be taken as their ranks."""
    return FEWEST <= len(data.y) <= DENSE and _free(data, settings)


def why_never(data: Data, settings: Settings) -> str:
    """Say why nothing is chosen, however many rows there are; nothing if it may be.

    Not where the user gives the kernel, its start or what is maximised. Nor where method "vb" asks
    for the dense engine, nor for one column: that is a series.
    """
    method = data.projector.method
    for why, holds in (
        ("X has one column, which is a series", int(data.X.shape[1]) <= 1 and not data.levels),
        ("the kernel is given", settings.kernel is not None),
        ("optimize=False learns no kernel", not settings.optimize),
        ("restarts are of the dense engine", settings.n_restarts > 0),
        ('optimize="loo" is of the dense engine', settings.objective != "evidence"),
        ("the solver is given", settings.solver != "auto"),
        (f'method "{method}" is of the dense engine', method not in ("ep", "qp")),
    ):
        if holds:
            return why
    return ""


def _free(data: Data, settings: Settings) -> bool:
    """Not where the user asks for something else, nor where corrections ask for the dense engine.

    A scheduler computes passes over all rows, of which few need none.
    """
    return (
        settings.auto is not None
        and not why_never(data, settings)
        and (settings.scheduler is None or len(data.y) > DENSE)
    )


# --- Training and hold-out rows

#: Below this many rows none are held out.
FEWEST = 60
#: Rows of dense fits, one after the other, where at least twice as many are there.
RUNGS = (500, 1000, 2000)
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


@dataclass(frozen=True, eq=False)
class Rest:
    """Rows of stages, what the user asked for, what is left, and of how many processes."""

    subsets: Subsets
    settings: Settings
    budget: Budget
    stages: StageReport
    rng: np.random.Generator
    processes: int

    def named(self, number: int) -> str:
        """Return words for a process in messages; nothing if there is one alone."""
        return f", process {number + 1} of {self.processes}" if self.processes > 1 else ""


def strata_of(processes: Sequence[Data]) -> Array | None:
    """Return the class of each row, None for observations that are no labels."""
    first = processes[0]
    if not first.discrete or len(np.unique(first.y[:1000])) > 2:
        return None
    if len(processes) == 1:
        return first.y
    strata: Array = np.argmax([data.y for data in processes], axis=0)
    return strata


def drawn(
    n: int,
    strata: Array | None,
    rng: np.random.Generator,
    most: int = RUNGS[-1],
    groups: NDArray[np.intp] | None = None,
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
    groups : ndarray of int, shape (n,), or None
        Rows of one group follow each other, and judges have none of those learnt from.
    """
    first = min(_FIRST, n // 2, most)
    rungs = [size for size in RUNGS if size <= min(most, n // 2)] or [n // 2]
    if n // 2 < _FIRST and rungs[-1] < 0.8 * first:
        rungs.append(first)  # between 500 and 1000 rows
    judged = slice(first, min(first + _JUDGES, n))
    if strata is None:
        order = rng.permutation(n) if groups is None else _together(groups, None, rng)
        judged = _apart(order, groups, judged)
        order = order[: max(judged.stop, rungs[-1])]
        return Subsets(order, tuple(rungs), judged, judged.stop > judged.start)
    order = _spread(strata, rng) if groups is None else _together(groups, strata, rng)
    codes = np.unique(strata, return_inverse=True)[1]
    rare = int(np.bincount(codes).min())
    needed = -(-_RARE * n // max(rare, 1))
    while rungs[0] < min(needed, n // 2) and 2 * rungs[0] <= _MOST_ROWS:
        rungs = sorted({min(2 * size, n // 2, _MOST_ROWS) for size in rungs})
    if rungs[0] > judged.start:
        judged = slice(rungs[0], min(rungs[0] + _JUDGES, n))
    judged = _apart(order, groups, judged)
    judges = codes[order[judged]]
    held = int(np.bincount(judges, minlength=int(codes.max()) + 1).min())
    enough = held >= max(1.0, min(_RARE_JUDGES, _SHARE * judges.size))
    last = max(judged.stop, rungs[-1])
    return Subsets(order[:last], tuple(rungs), judged, enough)


def _together(
    groups: NDArray[np.intp], strata: Array | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Numbers of rows, group by group, with groups by the class of their first rows spread."""
    first = np.unique(groups, return_index=True)[1]
    order = rng.permutation(first.size) if strata is None else _spread(strata[first], rng)
    place = np.empty(first.size)
    place[order] = np.arange(first.size)
    return np.argsort(place[groups], kind="stable")


def _apart(order: NDArray[np.intp], groups: NDArray[np.intp] | None, judged: slice) -> slice:
    """Judges without the rest of a group that is learnt from."""
    if groups is None:
        return judged
    codes = groups[order]
    rest = codes[judged] == codes[judged.start - 1]
    return slice(min(judged.start + int(rest.sum()), judged.stop), judged.stop)


def _spread(strata: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Numbers of rows in an order whose first parts have all classes in proportion."""
    place = np.empty(len(strata))
    for label in np.unique(strata):
        rows = np.flatnonzero(strata == label)
        place[rng.permutation(rows)] = (np.arange(rows.size) + rng.random()) / rows.size
    return np.argsort(place, kind="stable")
