"""Messages about a fit: its expected duration, then the progress that `verbose` asks for.

Progress is a bar on a terminal, and otherwise one line per evaluation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._duration import announce, expected_seconds
from qpruntime._typing import Array

__all__ = [
    "Say",
    "announce_duration",
    "call_both",
    "evaluation_reports",
    "expect_selection",
    "named",
    "names_of",
    "progress_bar",
    "stage_reports",
    "time_left",
]

Report = Callable[..., Any]
#: Function of the share of the work that is done and of a message.
Say = Callable[[float, str], Any]

#: Usual number of evaluations of an optimiser run; 15 to 60 are common.
USUAL_EVALUATIONS = 30
# Time of an evaluation in Cholesky factorisations, about six iterations and the slope, for many
# rows; and the number of rows for which the quadratic part takes as long. Measured from 1000 rows
# on.
_FACTORISATIONS_PER_EVALUATION, _QUADRATIC_ROWS = 8.3, 800
# Number of steps of a bar whose work is not a number of evaluations.
_BAR_STEPS = 1000
# Number of rows from which model selection uses its whole budget; rows of its steps; and the
# operations that the budget counts for a Cholesky factorisation, over the cube of its rows.
_WHOLE_BUDGET_ROWS, _STEP_ROWS, _BUDGET_OPERATIONS = 8000, 1000, 1.0 / 3.0
# Factor of that time if sites have to be damped.
_DAMPED_FACTOR = 7.0


def announce_duration(n: int, evaluations: float, fewer: str, log_concave: bool = True) -> None:
    """Announce how long that many evaluations take, if it is long; `fewer` says what takes less."""
    of_one = _FACTORISATIONS_PER_EVALUATION * (1.0 + _QUADRATIC_ROWS / n)
    work = of_one * evaluations * (1.0 if log_concave else _DAMPED_FACTOR)
    announce(
        f"a fit of N = {n} points",
        expected_seconds(n, work),
        f"{fewer} fits in time that grows with N alone; or lower "
        "restarts or max_iter of Search(...); verbose=1 shows how far it is",
    )


def expect_selection(n: int, operations: float) -> None:
    """Say how long kernel selection and a fit take within a budget of operations, if that is long.

    Measured at 1600 and 3000 rows, fits end within about a quarter of the budget; at 6000 and more
    they use most of it.
    """
    used = operations * min(1.0, n / _WHOLE_BUDGET_ROWS)
    announce(
        f"a fit of N = {n} points",
        expected_seconds(_STEP_ROWS, used / (_BUDGET_OPERATIONS * float(_STEP_ROWS) ** 3)),
        "Inducing(budget=...) limits it in seconds; verbose=1 shows how far it is",
    )


@contextlib.contextmanager
def evaluation_reports(verbose: int, objective: str, runs: int) -> Iterator[Report | None]:
    """Yield a function of theta, value and names to call after every evaluation.

    It is None if silent; `named` turns it into a callback. If rich is installed, ``verbose=1``
    moves a bar on a terminal, which disappears when the block ends.
    """
    if not verbose:
        yield None
    elif verbose > 1:
        yield _lines(objective)
    else:
        with progress_bar(USUAL_EVALUATIONS * runs) as update:
            yield _lines(objective) if update is None else _best(objective, runs, update)


def call_both(
    first: Callable[..., Any] | None, second: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """Return a callback that calls both functions, of which each may be None."""
    if first is None or second is None:
        return first or second

    pair = first, second

    def call(done: object, value: float) -> None:
        for callback in pair:
            callback(done, value)

    return call


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


def named(report: Report | None, kernel: Kernel, learn: Iterable[str]) -> Report | None:
    """Let a report name parameters: those of the kernel, then those of a likelihood's."""
    if report is None:
        return None
    return partial(report, names=names_of(kernel, learn))


def names_of(kernel: Kernel, learn: Iterable[str]) -> tuple[str, ...]:
    """Return the names of log parameters: free ones of a kernel, then those of a likelihood."""
    names = []
    for hyperparameter in kernel.hyperparameters:
        if not hyperparameter.fixed:
            count = hyperparameter.n_elements
            names += (
                [hyperparameter.name]
                if count == 1
                else [f"{hyperparameter.name}[{i}]" for i in range(count)]
            )
    return (*names, *learn)


def _lines(objective: str) -> Report:
    def report(theta: Array, value: float, names: Sequence[str]) -> None:
        pairs = zip(names, np.exp(theta), strict=True)
        numbers = ", ".join(f"{name}={number:.4g}" for name, number in pairs)
        print(f"{objective} {value:.6f} at {numbers}", file=sys.stderr)

    return report


def seconds_left(evaluations: int, runs: int, elapsed: float) -> float:
    """Estimate the time until the usual number of evaluations is done."""
    return elapsed / evaluations * max(USUAL_EVALUATIONS * runs - evaluations, 0)


def time_left(seconds: float) -> str:
    """Return the remaining time as the end of a line, or "" below half a second."""
    remaining = round(seconds)
    return f", about {remaining // 60}:{remaining % 60:02d} left" if remaining else ""


@contextlib.contextmanager
def progress_bar(total: int) -> Iterator[Callable[[int, str], None] | None]:
    """Yield a function that moves a progress bar and sets its message.

    The bar disappears when the block ends. The function is None outside a terminal or without rich.
    """
    if not sys.stderr.isatty() or not _has_rich():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fitting", total=total, words="")

        def update(done: int, words: str) -> None:
            bar.update(task, completed=done, words=words)

        yield update


@contextlib.contextmanager
def stage_reports(verbose: int) -> Iterator[Say | None]:
    """Yield a function that shows the share of the work that is done and a message.

    If rich is installed, ``verbose=1`` shows a bar on a terminal, and otherwise lines on stderr.
    The function is None if silent.
    """

    def line(_: float, words: str) -> None:
        print(words, file=sys.stderr)

    if verbose != 1:
        yield line if verbose else None
        return
    with progress_bar(_BAR_STEPS) as update:
        yield (
            line if update is None else lambda share, words: update(int(_BAR_STEPS * share), words)
        )


def _best(objective: str, runs: int, update: Callable[[int, str], None]) -> Report:
    total = USUAL_EVALUATIONS * runs
    start_time, best, done = time.perf_counter(), -np.inf, 0

    def report(theta: Array, value: float, names: Sequence[str]) -> None:
        nonlocal best, done
        best, done = max(best, value), done + 1
        remaining = time_left(seconds_left(done, runs, time.perf_counter() - start_time))
        # A run that takes longer than usual keeps its bar nearly full.
        update(min(done, total - 1), f"{done} evaluations, {objective} {best:.6g}{remaining}")

    return report
