"""Pieces of one computation shared among threads that sleep, not spin, where there is no core.

What the pieces are depends on the size of the work alone, and each is computed by one thread of
BLAS: results have the same bits with any number of threads, on an idle machine and on a busy one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    pool = _pool()
    begun = [pool.submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for one in begun:
            if not one.cancel():
                one.result()
