"""Refuse in words what a limit on memory (``ulimit -v``) would end in the middle.

Below some hundred megabytes the libraries that are imported do not say that memory ran out: they
wait for ever, or end the process. So the limit is looked at before.
"""

from __future__ import annotations

import math
import resource
from pathlib import Path

from qpruntime.names import size

__all__ = ["LEAST", "check", "check_limit"]

#: Bytes of address space that imports and compiling take: 522 MB measured, 640 MB allowed.
LEAST = 640_000_000
# What a build takes beside, and every thread: stack, heap, and the buffers of linear algebra.
_BUILD, _THREAD = 100_000_000, 110_000_000


def check_limit() -> None:
    """Raise `MemoryError` if this process may not have enough memory for its imports."""
    limit = _limit()
    if limit < LEAST:
        raise MemoryError(f"the limit is {size(limit)} (ulimit -v), tablegen takes {size(LEAST)}")


def check(workers: int, mapped: int) -> None:
    """Raise `MemoryError` if a build would not fit below the limit.

    Parameters
    ----------
    workers : int
        Threads.
    mapped : int
        Bytes of the finished table, which is mapped to be certified.
    """
    limit = _limit()
    if limit == math.inf:
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    needed = pages * resource.getpagesize() + _BUILD + workers * _THREAD + mapped
    if needed > limit:
        raise MemoryError(
            f"the limit is {size(limit)} (ulimit -v), this table and {workers} workers take "
            f"{size(needed)}"
        )


def _limit() -> float:
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if soft == resource.RLIM_INFINITY else soft
