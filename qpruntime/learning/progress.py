"""What is said of a fit: before it how long it will take, then what `verbose` asks for.

That is a bar on a terminal, otherwise a line per evaluation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from qpruntime._duration import announce, expected_seconds
from qpruntime._typing import Array

__all__ = [
    "Say",
    "both",
    "drawn_bar",
    "expect",
    "expect_selection",
    "named",
    "names_of",
    "reporting",
    "telling",
    "time_left",
]

Report = Callable[..., Any]
#: Takes the share of the work that is done, and words.
Say = Callable[[float, str], Any]

#: Evaluations of the objective that a run of the optimiser takes; 15 to 60 are common.
USUAL_EVALUATIONS = 30
# Time of an evaluation in Cholesky factorisations, about six iterations and the slope, of many
# rows; and at how many rows what grows with their square takes as long. Measured from 1000 on.
_PER_EVALUATION, _AS_LONG_AGAIN = 8.3, 800
# Steps of a bar whose work is no number of evaluations.
_STEPS = 1000
# Rows from which on model selection uses its whole budget; rows of its steps; and operations that
# the budget counts for a Cholesky factorisation, over the cube of its rows.
_WHOLE_BUDGET, _STEP_ROWS, _OPERATIONS = 8000, 1000, 1.0 / 3.0
# As many times that where sites have to be damped.
_DAMPED = 7.0


def expect(n: int, evaluations: float, fewer: str, log_concave: bool = True) -> None:
    """Say how long a fit of so many evaluations takes, if that is long; `fewer` takes less."""
    of_one = _PER_EVALUATION * (1.0 + _AS_LONG_AGAIN / n)
    work = of_one * evaluations * (1.0 if log_concave else _DAMPED)
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
    used = operations * min(1.0, n / _WHOLE_BUDGET)
    announce(
        f"a fit of N = {n} points",
        expected_seconds(_STEP_ROWS, used / (_OPERATIONS * float(_STEP_ROWS) ** 3)),
        "Inducing(budget=...) limits it in seconds; verbose=1 shows how far it is",
    )


@contextlib.contextmanager
def reporting(verbose: int, objective: str, runs: int) -> Iterator[Report | None]:
    """Yield what is to be called with theta, value and names after every evaluation.

    None if silent; `named` makes a callback of it. With ``verbose=1`` on a terminal that is a bar,
    gone when the block ends, if rich is installed.
    """
    if not verbose:
        yield None
    elif verbose > 1:
        yield _lines(objective)
    else:
        with drawn_bar(USUAL_EVALUATIONS * runs) as update:
            yield _lines(objective) if update is None else _best(objective, runs, update)


def both(
    first: Callable[..., Any] | None, second: Callable[..., Any] | None
) -> Callable[..., Any] | None:
    """Call what there is of both."""
    if first is None or second is None:
        return first or second

    pair = first, second

    def call(done: Any, value: float) -> None:
        for one in pair:
            one(done, value)

    return call


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


def named(report: Report | None, kernel: Any, learn: Iterable[str]) -> Report | None:
    """Let a report name parameters: those of the kernel, then those of a likelihood's."""
    if report is None:
        return None
    return partial(report, names=names_of(kernel, learn))


def names_of(kernel: Any, learn: Iterable[str]) -> tuple[str, ...]:
    """Names of log parameters: free ones of a kernel, then those of a likelihood."""
    names = []
    for one in kernel.hyperparameters:
        if not one.fixed:
            count = one.n_elements
            names += [one.name] if count == 1 else [f"{one.name}[{i}]" for i in range(count)]
    return (*names, *learn)


def _lines(objective: str) -> Report:
    def report(theta: Array, value: float, names: Sequence[str]) -> None:
        pairs = zip(names, np.exp(theta), strict=True)
        numbers = ", ".join(f"{name}={number:.4g}" for name, number in pairs)
        print(f"{objective} {value:.6f} at {numbers}", file=sys.stderr)

    return report


def seconds_left(evaluations: int, runs: int, elapsed: float) -> float:
    """Time until as many evaluations as usual are done; what takes longer may be over any time."""
    return elapsed / evaluations * max(USUAL_EVALUATIONS * runs - evaluations, 0)


def time_left(seconds: float) -> str:
    """Return words for the end of a line; empty below half a second."""
    left = round(seconds)
    return f", about {left // 60}:{left % 60:02d} left" if left else ""


@contextlib.contextmanager
def drawn_bar(total: int) -> Iterator[Callable[[int, str], None] | None]:
    """Yield what moves a bar to so many of `total`, with words behind it; gone when the block ends.

    None off a terminal, or without rich.
    """
    if not sys.stderr.isatty() or not _has_rich():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("fitting", total=total, words="")

        def update(done: int, words: str) -> None:
            drawn.update(task, completed=done, words=words)

        yield update


@contextlib.contextmanager
def telling(verbose: int) -> Iterator[Say | None]:
    """Yield what shows the share done and words: on a bar, or as lines; None if silent.

    With ``verbose=1`` on a terminal that is a bar, if rich is installed, otherwise lines on stderr.
    """

    def line(_: float, words: str) -> None:
        print(words, file=sys.stderr)

    if verbose != 1:
        yield line if verbose else None
        return
    with drawn_bar(_STEPS) as update:
        yield line if update is None else lambda share, words: update(int(_STEPS * share), words)


def _best(objective: str, runs: int, update: Callable[[int, str], None]) -> Report:
    total = USUAL_EVALUATIONS * runs
    begun, best, done = time.perf_counter(), -np.inf, 0

    def report(theta: Array, value: float, names: Sequence[str]) -> None:
        nonlocal best, done
        best, done = max(best, value), done + 1
        left = time_left(seconds_left(done, runs, time.perf_counter() - begun))
        # A run that takes longer than usual keeps its bar nearly full.
        update(min(done, total - 1), f"{done} evaluations, {objective} {best:.6g}{left}")

    return report
