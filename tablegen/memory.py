"""Refuse in words what a limit on memory (``ulimit -v``) would end in the middle.

Below some hundred megabytes the libraries that are imported do not say that memory ran out: they
wait for ever, or end the process. So the limit is looked at before.
"""

from __future__ import annotations

import math

from qpruntime._formatting import size
from qpruntime._memory import address_limit, address_used

__all__ = ["LEAST", "check", "check_limit"]

#: Bytes of address space that imports and compiling take: 522 MB measured, 640 MB allowed.
LEAST = 640_000_000
# Further bytes of a build and of every thread: stack, heap, and the buffers of linear algebra.
_BUILD, _THREAD = 100_000_000, 110_000_000


def check_limit() -> None:
    """Raise `MemoryError` if this process may not have enough memory for its imports."""
    limit = address_limit()
    if limit < LEAST:
        raise MemoryError(f"the limit is {size(limit)} (ulimit -v), tablegen takes {size(LEAST)}")


def check(workers: int, mapped: int) -> None:
    """Raise `MemoryError` if a build, with `mapped` bytes to certify, is beyond the limit."""
    limit = address_limit()
    if limit == math.inf:
        return
    needed = address_used() + _BUILD + workers * _THREAD + mapped
    if needed > limit:
        raise MemoryError(
            f"the limit is {size(limit)} (ulimit -v), this table and {workers} workers take "
            f"{size(needed)}"
        )
