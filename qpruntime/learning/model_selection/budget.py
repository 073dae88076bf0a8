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
from qpruntime.learning.inputs import Data
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import time_left

__all__ = [
    "DENSE_ROW_LIMIT",
    "MIN_SELECTION_ROWS",
    "RUNG_ROWS",
    "Budget",
    "SelectionContext",
    "Stage",
    "StageReport",
    "Subsets",
    "class_strata",
    "dense_evaluation_cost",
    "dense_inference_cost",
    "gains_significantly",
    "local_density_cost",
    "rank_screening_applies",
    "selection_applies",
    "selection_blocker",
    "split_rows",
    "sweep_cost",
]


@restorable("stage/1")
@dataclass(frozen=True)
class Stage:
    """One stage of a fit.

    Attributes
    ----------
    rows : int
        Number of training rows, or of rows whose sites were updated.
    candidate : str
    density : float
        Mean log predictive density of the hold-out rows, NaN if the stage has none.
    operations : float
        Operations that the fit had used when the stage ended.
    """

    rows: int
    candidate: str
    density: float
    operations: float


def gains_significantly(gains: Array, standard_errors: float = 1.0) -> bool:
    """Decide whether the mean gain exceeds its standard error by the given factor."""
    if not np.isfinite(gains).all():
        return False
    error = float(np.std(gains)) / math.sqrt(gains.size)
    return float(np.mean(gains)) > standard_errors * error


# --- Cost in floating-point operations
#
# The budget counts operations instead of reading a clock, so that the same seed gives the same bits
# on any machine, however busy.

#: Operations that count as one second of one core.
OPERATIONS_PER_SECOND = 2e10
# The default budget in seconds, the number of rows it holds for, and its factor for ten times as
# many rows.
_DEFAULT_SECONDS, _DEFAULT_SECONDS_ROWS, _SECONDS_FACTOR_PER_DECADE = 30.0, 10_000, 4.0


class Budget:
    """Number of operations that a fit may use, and that it has used.

    Parameters
    ----------
    seconds : float or None
        Seconds of one core that does 2e10 operations a second. None gives 30 seconds up to 10 000
        rows, and four times as much for ten times as many rows.
    rows : int
    """

    def __init__(self, seconds: float | None, rows: int) -> None:
        if seconds is None:
            seconds = _DEFAULT_SECONDS * _SECONDS_FACTOR_PER_DECADE ** max(
                0.0, math.log10(rows / _DEFAULT_SECONDS_ROWS)
            )
        self.seconds = seconds
        self.limit = seconds * OPERATIONS_PER_SECOND
        self.used = 0.0

    def spend(self, operations: float) -> None:
        """Count operations that have been done."""
        self.used += operations

    def allows(self, operations: float, share: float = 1.0) -> bool:
        """Decide whether this many more operations stay within a share of the budget."""
        return self.used + operations <= share * self.limit


class StageReport(list[Stage]):
    """Stages of a fit in order, each reported as soon as it ends.

    Parameters
    ----------
    budget : Budget
        The remaining time is estimated from the operations left; a fit may end sooner.
    say : callable or None
        Takes the used share of the budget and a message. Nothing is reported without it.
    """

    def __init__(self, budget: Budget, say: Callable[[float, str], object] | None) -> None:
        super().__init__()
        self._budget, self._say, self._phase = budget, say, ""
        self._begun = time.perf_counter()

    def begin(self, phase: str, operations: float | None = None) -> None:
        """Enter a phase that may use this many operations, by default all that are left."""
        self._phase = phase
        self._tell(f"{phase} begins", operations)

    def append(self, stage: Stage) -> None:
        """Add and report a stage that has ended."""
        super().append(stage)
        density = "" if math.isnan(stage.density) else f", log density {stage.density:.4f} a row"
        self._tell(f"{self._phase}: {stage.candidate} on {stage.rows} rows{density}")

    def _tell(self, words: str, operations: float | None = None) -> None:
        if self._say is None:
            return
        limit, used = self._budget.limit, self._budget.used
        elapsed = time.perf_counter() - self._begun
        allowed = max(limit - used, 0.0) if operations is None else operations
        remaining = time_left(elapsed / used * allowed) if used else ""
        at_most = f"{remaining} at most" if remaining else ""
        self._say(min(used / limit, 1.0), f"{words}; {elapsed:.0f} s elapsed{at_most}")


def dense_evaluation_cost(n: int, features: int = 1) -> float:
    """Return the operations of one evidence and gradient of n rows with that many length-scales."""
    return 4.5 * float(n) ** 3 + 20.0 * float(n) ** 2 * features


def dense_inference_cost(n: int) -> float:
    """Return the operations of one EP run on n rows with a known kernel."""
    return 8.0 * float(n) ** 3


def sweep_cost(sweeps: int, n: int, m: int) -> float:
    """Return the operations of sweeps over n rows with m inducing points.

    The first sweep also computes the features.
    """
    return sweeps * 3.0 * float(n) * m * m + 40.0 * float(n) * m


def local_density_cost(rows: int, k: int, m: int) -> float:
    """Return the operations of leave-one-out densities of rows with their k nearest rows."""
    return rows * (4.0 * k * k * m + 10.0 * float(k) ** 3)


# --- Conditions for automatic model selection

#: Largest number of rows that is fitted densely.
DENSE_ROW_LIMIT = 1500


def selection_applies(data: Data, settings: Settings) -> bool:
    """Decide whether automatic model selection applies to this fit.

    It applies above `DENSE_ROW_LIMIT` rows, with ``inducing="judged"`` from 60 rows on.
    """
    auto = settings.auto
    fewest = (
        MIN_SELECTION_ROWS if auto is not None and auto.points == "judged" else DENSE_ROW_LIMIT + 1
    )
    return len(data.y) >= fewest and _is_unconstrained(data, settings)


def rank_screening_applies(data: Data, settings: Settings) -> bool:
    """Decide whether a small data set may have its features replaced by their ranks."""
    return MIN_SELECTION_ROWS <= len(data.y) <= DENSE_ROW_LIMIT and _is_unconstrained(
        data, settings
    )


def selection_blocker(data: Data, settings: Settings) -> str:
    """Return the setting that rules out model selection for any number of rows, or "" if none does.

    A given kernel, start or objective rules it out. So do method "vb", which needs the dense
    engine, and a single column, which is a series.
    """
    method = data.projector.method
    for reason, holds in (
        ("X has one column, which is a series", data.inputs.width <= 1 and not data.inputs.levels),
        ("the kernel is given", settings.kernel is not None),
        ("optimize=False learns no kernel", not settings.optimize),
        ("restarts are of the dense engine", settings.search.restarts > 0),
        ('optimize="loo" is of the dense engine', settings.search.objective != "evidence"),
        ("the solver is given", settings.solver != "auto"),
        (f'method "{method}" is of the dense engine', method not in ("ep", "qp")),
    ):
        if holds:
            return reason
    return ""


def _is_unconstrained(data: Data, settings: Settings) -> bool:
    """Decide whether the user's settings leave the kernel and the engine open.

    A scheduler distributes passes over all rows, which a small data set does not need.
    """
    return (
        settings.auto is not None
        and not selection_blocker(data, settings)
        and (settings.scheduler is None or len(data.y) > DENSE_ROW_LIMIT)
    )


# --- Training and hold-out rows

#: Smallest number of rows of which some are held out.
MIN_SELECTION_ROWS = 60
#: Training rows of successive dense fits, each used if there are at least twice as many rows.
RUNG_ROWS = (500, 1000, 2000)
# Largest number of hold-out rows, and the number of training rows that precede them.
_MAX_HOLDOUT_ROWS, _FIRST_TRAIN_ROWS = 2000, 1000
# The first rung has this many rows of the rarest class, if that takes at most
# _MAX_FIRST_RUNG_ROWS rows.
_MIN_RARE_TRAIN_ROWS, _MAX_FIRST_RUNG_ROWS = 25, 2000
# The hold-out rows are used only if they have this many rows of the rarest class, or this share of
# all hold-out rows if that is less.
_MIN_RARE_HOLDOUT_ROWS, _MIN_RARE_HOLDOUT_SHARE = 50, 0.1


@dataclass(frozen=True, eq=False)
class Subsets:
    """Split of the rows into training and hold-out rows.

    Attributes
    ----------
    order : ndarray of int
        Indices of the rows that stages may use, each class evenly spread over them.
    rungs : tuple of int
        Numbers of leading rows of `order` that kernels are learnt from.
    holdout : slice
        The hold-out part of `order`.
    has_holdout : bool
        True if every class has enough hold-out rows to compare kernels.
    """

    order: NDArray[np.intp]
    rungs: tuple[int, ...]
    holdout: slice
    has_holdout: bool


@dataclass(frozen=True, eq=False)
class SelectionContext:
    """Split, settings, budget and number of processes that all stages of a fit share."""

    subsets: Subsets
    settings: Settings
    budget: Budget
    stages: StageReport
    rng: np.random.Generator
    processes: int

    def process_label(self, number: int) -> str:
        """Return the part of a message that names a process, or "" for a single process."""
        return f", process {number + 1} of {self.processes}" if self.processes > 1 else ""


def class_strata(processes: Sequence[Data]) -> Array | None:
    """Return the class of each row, or None for observations that are not labels."""
    first = processes[0]
    if not first.discrete or len(np.unique(first.y[:1000])) > 2:
        return None
    if len(processes) == 1:
        return first.y
    return np.asarray(np.argmax([data.y for data in processes], axis=0))


def split_rows(
    n: int,
    strata: Array | None,
    rng: np.random.Generator,
    max_rows: int = RUNG_ROWS[-1],
    groups: NDArray[np.intp] | None = None,
) -> Subsets:
    """Split the rows at random into training and hold-out rows.

    Parameters
    ----------
    n : int
        Number of rows, at least `MIN_SELECTION_ROWS`.
    strata : ndarray, shape (n,), or None
        Class of each row. The split keeps the proportions of the classes.
    rng : Generator
    max_rows : int
        Largest number of training rows.
    groups : ndarray of int, shape (n,), or None
        Group of each row. No group has both training and hold-out rows.
    """
    first = min(_FIRST_TRAIN_ROWS, n // 2, max_rows)
    rungs = [size for size in RUNG_ROWS if size <= min(max_rows, n // 2)] or [n // 2]
    if n // 2 < _FIRST_TRAIN_ROWS and rungs[-1] < 0.8 * first:
        rungs.append(first)  # between 500 and 1000 rows
    holdout = slice(first, min(first + _MAX_HOLDOUT_ROWS, n))
    if strata is None:
        order = rng.permutation(n) if groups is None else _group_order(groups, None, rng)
        holdout = _drop_shared_group(order, groups, holdout)
        order = order[: max(holdout.stop, rungs[-1])]
        return Subsets(order, tuple(rungs), holdout, holdout.stop > holdout.start)
    order = _stratified_order(strata, rng) if groups is None else _group_order(groups, strata, rng)
    codes = np.unique(strata, return_inverse=True)[1]
    rarest_count = int(np.bincount(codes).min())
    needed_rows = -(-_MIN_RARE_TRAIN_ROWS * n // max(rarest_count, 1))
    while rungs[0] < min(needed_rows, n // 2) and 2 * rungs[0] <= _MAX_FIRST_RUNG_ROWS:
        rungs = sorted({min(2 * size, n // 2, _MAX_FIRST_RUNG_ROWS) for size in rungs})
    if rungs[0] > holdout.start:
        holdout = slice(rungs[0], min(rungs[0] + _MAX_HOLDOUT_ROWS, n))
    holdout = _drop_shared_group(order, groups, holdout)
    holdout_codes = codes[order[holdout]]
    rarest_holdout = int(np.bincount(holdout_codes, minlength=int(codes.max()) + 1).min())
    is_usable = rarest_holdout >= max(
        1.0, min(_MIN_RARE_HOLDOUT_ROWS, _MIN_RARE_HOLDOUT_SHARE * holdout_codes.size)
    )
    last = max(holdout.stop, rungs[-1])
    return Subsets(order[:last], tuple(rungs), holdout, is_usable)


def _group_order(
    groups: NDArray[np.intp], strata: Array | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return row indices group by group.

    Leading parts have groups of all sizes, and of all classes of the first row, in proportion.
    """
    _, first, rows = np.unique(groups, return_index=True, return_counts=True)
    log_size = np.log2(rows).astype(np.intp)
    classes = np.zeros_like(first) if strata is None else strata[first]
    kinds = np.unique(np.column_stack([classes, log_size]), axis=0, return_inverse=True)[1]
    order = _stratified_order(np.ravel(kinds), rng)
    position = np.empty(first.size)
    position[order] = np.arange(first.size)
    return np.argsort(position[groups], kind="stable")


def _drop_shared_group(
    order: NDArray[np.intp], groups: NDArray[np.intp] | None, holdout: slice
) -> slice:
    """Return the hold-out slice without rows of the group that the training rows end with."""
    if groups is None:
        return holdout
    codes = groups[order]
    shared = codes[holdout] == codes[holdout.start - 1]
    return slice(min(holdout.start + int(shared.sum()), holdout.stop), holdout.stop)


def _stratified_order(strata: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return row indices in an order whose leading parts have all classes in proportion."""
    position = np.empty(len(strata))
    for label in np.unique(strata):
        rows = np.flatnonzero(strata == label)
        position[rng.permutation(rows)] = (np.arange(rows.size) + rng.random()) / rows.size
    return np.argsort(position, kind="stable")
