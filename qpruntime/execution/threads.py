"""Threads of BLAS, and threads and processes that work on parts."""

from __future__ import annotations

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache, lru_cache, wraps
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from threadpoolctl import LibController, ThreadpoolController

from qpruntime import _memory
from qpruntime._validation import whole
from qpruntime.errors import InputError

__all__ = [
    "BlasThreads",
    "Call",
    "Divided",
    "Executor",
    "ExecutorError",
    "Progress",
    "Stop",
    "Threads",
    "alone",
    "blas_threads",
    "cores",
    "hands",
    "one_blas_thread",
    "run",
    "set_hands",
    "share",
    "sized",
    "thread_count",
    "threads_of",
]

# --- Pieces of one computation shared among threads that sleep, not spin, where there is no core.
#
# The pieces depend on the size of the work alone, and one thread of BLAS computes each of them.
# Results therefore have the same bits for any number of threads and any load of the machine.

Piece = tuple[Callable[..., Any], tuple[Any, ...]]

_team_of_thread = threading.local()


def hands() -> int:
    """Threads that a computation of this thread may share its pieces among, itself included."""
    return getattr(_team_of_thread, "hands", 1)


def set_hands(count: int) -> int:
    """Set `hands` of this thread; return what it was."""
    before = hands()
    _team_of_thread.hands = count
    return before


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="qpruntime")


if hasattr(os, "register_at_fork"):
    # The threads of a pool are not in a new process.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def share(pieces: Sequence[Piece]) -> None:
    """Call each function with its arguments; pieces of one call must not depend on each other.

    A thread that has not found a core when the last piece is begun is not waited for.
    """
    others = min(hands(), len(pieces)) - 1
    remaining = iter(pieces)

    def work() -> None:
        try:
            for function, arguments in remaining:
                function(*arguments)
        finally:
            # After an error or an interrupt nothing further is begun.
            for _ in remaining:
                pass

    if others < 1:
        work()
        return
    begun: list[Future[None]] = [Future() for _ in range(others)]
    try:
        for future in begun:
            _pool().submit(_run, future, work)
    except RuntimeError:
        pass  # no thread can be started, at the end of Python or of a limit: there is this one
    try:
        work()
    finally:
        # Nobody writes into what the caller holds once this has returned or raised.
        running = [future for future in begun if not future.cancel()]
        errors = [error for future in running if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def _run(one: Future[None], work: Callable[[], None]) -> None:
    """Work unless `one` is cancelled by now.

    The pool's own future would be lost where it cannot start a thread, and its work begun later.
    """
    if not one.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as error:
        one.set_exception(error)
    else:
        one.set_result(None)


# --- How many threads are at work for us: one of BLAS, and `hands` for pieces of large matrices.
#
# Threads of BLAS spin while they wait for each other: where other processes are busy that is ten
# times the work and more, and products have other bits with another number of them. So BLAS has
# one, and what is large enough is cut into pieces that threads of our own share, as many as the
# size is worth; they sleep while they wait.
#
# Limits only lower what there is, by environment variables or `threadpoolctl`, and are those of a
# process: while several calls are at work, the least of theirs holds. Libraries that keep a limit
# for each thread of Python take the limit of that thread's call.

Function = TypeVar("Function", bound=Callable[..., Any])

# Up to so many rows one thread is best; beyond, two, and one for so many of them.
_ALONE = 600
_ROWS_A_HAND = 500

_lock = threading.Lock()
#: Limits of this thread outside of our own limits, in libraries that keep a limit for each thread.
_of_thread = threading.local()
#: Limits in force, and which thread asked for each.
# The weak keys drop entries that an interrupt left behind while entering or leaving.
_in_force: WeakKeyDictionary[BlasThreads, tuple[int, int]] = WeakKeyDictionary()


class _Level(NamedTuple):
    """Threads that a library has but for us, and what we have set."""

    outside: int
    last: int


#: Libraries by the paths of their files. There are more levels than one where somebody else has set
#: threads since.
_held: dict[str, tuple[LibController, list[_Level]]] = {}


def cores() -> int:
    """Cores that this process may use, by its affinity and the quota of its control group."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, int(min(available or 1, _quota())))


@cache
def _quota() -> float:
    return _memory.cpu_quota()


@lru_cache(maxsize=1)
def _libraries(modules: int) -> list[LibController]:
    """Find the libraries that are loaded, which takes milliseconds, once for so many modules."""
    libraries = ThreadpoolController().lib_controllers
    blas = [library for library in libraries if library.user_api == "blas"]
    return [library for library in blas if library.get_num_threads() is not None]


def blas_threads(n: int, callers: int = 1) -> BlasThreads:
    """One thread of BLAS, and as many hands as matrices of `n` rows are worth, in a ``with`` block.

    Parameters
    ----------
    n : int
        Rows of the largest square matrix.
    callers : int
        Threads of this process that will do so at the same time; they share the cores.
    """
    if n <= _ALONE:
        return BlasThreads(1)
    return BlasThreads(1, max(1, min(max(n // _ROWS_A_HAND, 2), cores()) // max(callers, 1)))


def one_blas_thread() -> BlasThreads:
    """One thread of BLAS: for matrices that threads of our own multiply, to the same bits."""
    return BlasThreads(1)


def sized(rows: Callable[..., int]) -> Callable[[Function], Function]:
    """Decorate a public function: `blas_threads` of ``rows(*its arguments)`` while it runs."""

    def decorated(function: Function) -> Function:
        @wraps(function)
        def limited(*args: object, **options: object) -> object:
            with blas_threads(rows(*args, **options)):
                return function(*args, **options)

        return limited  # type: ignore[return-value]

    return decorated


#: Decorate a public function: one thread of BLAS while it runs.
alone = sized(lambda *_, **__: 0)


class BlasThreads:
    """Limit of the threads of BLAS in this process, while a ``with`` block runs.

    And at most so many hands of this thread, no more than BLAS would have threads without us.
    """

    def __init__(self, most: int, hands: int = 1) -> None:
        self._most, self._hands = most, hands
        self._before: list[tuple[LibController, int]] = []
        self._hands_before, self._first = 1, False

    def __enter__(self) -> None:
        self._hands_before = hands()
        try:
            self._begin()
        except BaseException:
            # Nobody leaves a block that was interrupted before it began.
            self.__exit__(None, None, None)
            raise

    def _begin(self) -> None:
        with _lock:
            for library in _libraries(len(sys.modules)):
                if _of_each_thread(library):
                    self._before.append((library, library.get_num_threads()))
                    library.set_num_threads(min(self._before[-1][1], self._most))
                elif library.filepath not in _held:
                    threads = library.get_num_threads()
                    _held[library.filepath] = library, [_Level(threads, threads)]
            _in_force[self] = self._most, threading.get_ident()
            _apply()
            allowed = min((levels[-1].outside for _, levels in _held.values()), default=sys.maxsize)
        self._first = getattr(_of_thread, "allowed", None) is None
        if self._first:
            _of_thread.allowed = min((threads for _, threads in self._before), default=allowed)
        set_hands(min(self._hands, allowed, _of_thread.allowed))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_hands(self._hands_before)
        if self._first:
            _of_thread.allowed = None
        for library, threads in self._before:
            library.set_num_threads(threads)
        with _lock:
            _in_force.pop(self, None)
            _apply()
            if not _in_force:
                _held.clear()


def _apply() -> None:
    """Give every library the least of the limits in force, or what it had."""
    least = min((most for most, _ in _in_force.values()), default=sys.maxsize)
    for library, levels in _held.values():
        now = library.get_num_threads()
        if now != levels[-1].last and len(levels) > 1 and now == levels[-2].last:
            levels.pop()  # what somebody else had set is taken back
        if now != levels[-1].last:
            levels.append(_Level(now, now))
        limit = levels[-1].outside
        wanted = min(limit, least)
        if wanted != now:
            _set(library, wanted)
        levels[-1] = _Level(limit, wanted)


def _set(library: LibController, threads: int) -> None:
    """Set them from any thread: `threadpoolctl` lets only the first one that did."""
    free = getattr(library, "clear_controlling_thread", None)
    if free is not None:
        free(force=True)
    library.set_num_threads(threads)
    if free is not None:
        free(force=True)


def _of_each_thread(library: LibController) -> bool:
    """Decide whether every thread of Python has a number of its own, as with OpenMP in OpenBLAS."""
    return bool(
        library.internal_api == "openblas" and getattr(library, "threading_layer", None) == "openmp"
    )


def _forget_other_threads() -> None:
    """Drop the limits of other threads in a new process, which has but the thread that forked."""
    global _lock
    _lock = threading.Lock()
    current = threading.get_ident()
    for key in [key for key, (_, ident) in _in_force.items() if ident != current]:
        del _in_force[key]
    _apply()
    if not _in_force:
        _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


# --- Carry out a list of independent calls: one after the other, or by threads of this process.
#
# The serial loop is the reference; `dask` does the same on a Dask cluster. The result of a call
# does not depend on the executor.

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
