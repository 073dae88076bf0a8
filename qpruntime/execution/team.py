"""Pieces of one computation shared among threads that sleep, not spin, where there is no core.

What the pieces are depends on the size of the work alone, and each is computed by one thread of
BLAS: results have the same bits with any number of threads, on an idle machine and on a busy one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

__all__ = ["hands", "set_hands", "share"]

Piece = tuple[Callable[..., Any], tuple[Any, ...]]

_of_thread = threading.local()


def hands() -> int:
    """Threads that a computation of this thread may share its pieces among, itself included."""
    return getattr(_of_thread, "hands", 1)


def set_hands(count: int) -> int:
    """Set `hands` of this thread; return what it was."""
    before = hands()
    _of_thread.hands = count
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
    left = iter(pieces)

    def work() -> None:
        try:
            for function, arguments in left:
                function(*arguments)
        finally:
            # After an error or an interrupt nothing further is begun.
            for _ in left:
                pass

    if others < 1:
        work()
        return
    begun: list[Future[None]] = [Future() for _ in range(others)]
    try:
        for one in begun:
            _pool().submit(_run, one, work)
    except RuntimeError:
        pass  # no thread can be started, at the end of Python or of a limit: there is this one
    try:
        work()
    finally:
        # Nobody writes into what the caller holds once this has returned or raised.
        running = [one for one in begun if not one.cancel()]
        errors = [error for one in running if (error := one.exception()) is not None]
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
