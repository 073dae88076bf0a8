"""Carry out a list of independent calls: one after the other, or by threads of this process.

The serial loop is the reference; `dask` does the same on a Dask cluster. The result of a call does
not depend on the executor.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from qpruntime._validation import whole
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import cores

__all__ = [
    "Call",
    "Divided",
    "Executor",
    "ExecutorError",
    "Progress",
    "Stop",
    "Threads",
    "run",
    "thread_count",
    "threads_of",
]

#: ``progress(stage, done, total)``: stages are "connect", "integrate", "fill", "export", "certify"
#: and "scan".
Progress = Callable[[str, int, int], None]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: A function of one argument, and the argument. Calls that share a function should follow each
#: other: a cluster gets it once.
Call = tuple[Callable[[Any], Any], Any]


class Divided(NamedTuple):
    """An argument in two parts, handed over as (lasting, remainder).

    The lasting part is what calls to come with the same `owner` and `number` have as well: a
    cluster gets it once, and keeps it until another owner comes.
    """

    owner: object
    number: int
    make: Callable[[int], Any]
    remainder: Any


#: More threads than this are a slip of the keyboard.
MOST_THREADS = 4096


class ExecutorError(Exception):
    """Calls could not be carried out, for reasons that lie outside of them."""


def threads_of(n_jobs: int | None) -> int | None:
    """Return how many threads users ask for, counted from all where negative, as joblib has it."""
    if n_jobs is None:
        return None
    threads = whole(n_jobs, "n_jobs", -MOST_THREADS)
    if threads == 0 or threads > MOST_THREADS:
        raise InputError(
            f"n_jobs must be None or a number of threads, at most {MOST_THREADS}, got {threads}"
        )
    return threads if threads > 0 else max(1, thread_count(None) + 1 + threads)


def thread_count(workers: int | None) -> int:
    """Return `workers`, by default the cores of this process, by its affinity and CPU quota.

    Raises
    ------
    InputError
        If `workers` is less than 1.
    """
    if workers is None:
        return cores()
    if isinstance(workers, int) and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    workers = whole(workers, "workers", 1)
    if workers > MOST_THREADS:
        raise InputError(f"workers must be at most {MOST_THREADS}, got {workers}")
    return workers


class Stop:
    """A flag that long calls look at. It does not travel: a copy in another process stays down."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Return True if the flag is up."""
        return self._event.is_set()

    def set(self) -> None:
        """Put the flag up."""
        self._event.set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, ()


class Executor(ABC):
    """Carries out calls, in any order.

    Attributes
    ----------
    stop : Stop
        Up once a call failed or the user interrupted; calls that see it may end early.
    """

    def __init__(self) -> None:
        self.stop = Stop()

    @abstractmethod
    def each(self, calls: Iterable[Call], take: Callable[[int, Any], None]) -> None:
        """Call ``take(number, function(item))`` for every call, its number counted from 0.

        `calls` is consumed as calls are carried out, and no more results are held than there are
        workers. `take` runs in this process, from several threads at a time. If a call fails, those
        that wait are dropped and the error is raised.
        """

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Result]:
        """Return ``[function(item) for item in items]``; `progress` is told (done, total)."""
        results: dict[int, Result] = {}
        lock = threading.Lock()

        def take(number: int, result: Result) -> None:
            with lock:
                results[number] = result
                if progress is not None:
                    progress(len(results), len(items))

        self.each(((function, item) for item in items), take)
        return [results[number] for number in range(len(items))]

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None


class Threads(Executor):
    """Threads of this process: kernels do not hold the interpreter lock.

    Parameters
    ----------
    workers : int, optional
        By default the number of cores this process may use; 1 is a plain loop.

    Raises
    ------
    InputError
        If `workers` is less than 1.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self.workers = thread_count(workers)

    def each(self, calls: Iterable[Call], take: Callable[[int, Any], None]) -> None:
        """Run the calls in this process, on one thread or several."""
        if self.workers == 1:
            for number, (function, item) in enumerate(calls):
                take(number, function(item))
            return

        def one(number: int, function: Callable[[Any], Any], item: object) -> None:
            if self.stop():
                return
            try:
                take(number, function(item))
            except BaseException:
                self.stop.set()
                raise

        pool = ThreadPoolExecutor(self.workers)
        pending: set[Future[None]] = set()
        try:
            for number, (function, item) in enumerate(calls):
                pending.add(pool.submit(one, number, function, item))
                if len(pending) > 2 * self.workers:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in pending:
                future.result()
        except BaseException:
            self.stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None
) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by `workers` threads."""
    return Threads(workers).run(function, items)
