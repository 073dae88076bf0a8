"""Carry out a list of independent tasks: the serial loop is the reference, dask does the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from qpruntime.errors import InputError

__all__ = ["Progress", "run", "thread_count"]

#: ``progress(stage, done, total)``: stages are "integrate", "fill", "export", "certify", "scan".
Progress = Callable[[str, int, int], None]

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count(workers: int | None) -> int:
    """Return `workers`, by default the number of cores this process may use.

    Raises
    ------
    InputError
        If `workers` is less than 1.
    """
    if workers is None:
        return len(os.sched_getaffinity(0))
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    return workers


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int,
    cancel: Callable[[], None] | None = None,
) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by `workers` threads.

    Results do not depend on `workers`: tasks share nothing, and results keep the order of `items`.
    When a task fails or the user interrupts, waiting tasks are dropped, `cancel` is called so that
    running ones can stop early, and these are awaited.
    """
    if workers == 1 or len(items) < 2:
        return [function(item) for item in items]
    import dask

    # A fixed key keeps dask from hashing what the function carries.
    tasks = [
        dask.delayed(function, pure=False)(item, dask_key_name=f"task-{i}")
        for i, item in enumerate(items)
    ]
    pool = ThreadPoolExecutor(workers)
    try:
        return list(dask.compute(*tasks, scheduler="threads", pool=pool, optimize_graph=False))
    except BaseException:
        if cancel is not None:
            cancel()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
