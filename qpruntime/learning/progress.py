"""What is said of a fit: before it how long it will take, then what `verbose` asks for.

That is a bar on a terminal, otherwise a line per evaluation.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.notice import announce, expected_seconds

__all__ = ["both", "expect", "reporting"]

Report = Callable[[Array, float], Any]

#: Evaluations of the objective that a run of the optimiser takes; 15 to 60 are common.
USUAL_EVALUATIONS = 30
# Cholesky factorisations per evaluation: about six iterations, and the slope.
_PER_EVALUATION = 15.0


def expect(n: int, n_restarts: int) -> None:
    """Say how long a fit will take, if that is long."""
    work = _PER_EVALUATION * USUAL_EVALUATIONS * (1 + n_restarts)
    announce(
        f"a fit of N = {n} points",
        expected_seconds(n, work),
        "fit the kernel's parameters to some of the rows and set optimize=False for all, lower "
        "n_restarts or max_iter, or use more BLAS threads; verbose=1 shows how far it is",
    )


@contextlib.contextmanager
def reporting(verbose: int, objective: str, runs: int) -> Iterator[Report | None]:
    """Yield what is to be called with theta and value after every evaluation; None if silent.

    With ``verbose=1`` on a terminal that is a bar, gone when the block ends, if rich is installed.
    """
    if not verbose:
        yield None
    elif verbose > 1 or not sys.stderr.isatty() or not _has_rich():
        yield _lines(objective)
    else:
        with _bar(objective, runs) as report:
            yield report


def both(first: Report | None, second: Report | None) -> Report | None:
    """Call what there is of both."""
    if first is None or second is None:
        return first or second

    pair = first, second

    def call(theta: Array, value: float) -> None:
        for one in pair:
            one(theta, value)

    return call


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


def _lines(objective: str) -> Report:
    def report(theta: Array, value: float) -> None:
        numbers = " ".join(f"{t:.4g}" for t in np.exp(theta))
        print(f"{objective} {value:.6f} at {numbers}", file=sys.stderr)

    return report


def seconds_left(evaluations: int, runs: int, elapsed: float) -> float:
    """Time until as many evaluations as usual are done; what takes longer may be over any time."""
    return elapsed / evaluations * max(USUAL_EVALUATIONS * runs - evaluations, 0)


@contextlib.contextmanager
def _bar(objective: str, runs: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("fitting", total=USUAL_EVALUATIONS * runs, words="")
        begun, best, done = time.perf_counter(), -np.inf, 0

        def report(theta: Array, value: float) -> None:
            nonlocal best, done
            best, done = max(best, value), done + 1
            left = round(seconds_left(done, runs, time.perf_counter() - begun))
            words = f"{done} evaluations, {objective} {best:.6g}"
            if left:
                words += f", about {left // 60}:{left % 60:02d} left"
            # A run that takes longer than usual keeps its bar nearly full.
            drawn.update(task, completed=min(done, USUAL_EVALUATIONS * runs - 1), words=words)

        yield report
