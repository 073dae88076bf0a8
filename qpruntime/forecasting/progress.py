"""How many of many series are done, said on a line of stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qpruntime.validation import whole

__all__ = ["counted"]

#: Seconds between two lines.
_EVERY = 2.0


@contextmanager
def counted(verbose: int, what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """Give what an executor tells (done, total), or None if nothing is to be said."""
    if not whole(int(verbose), "verbose", 0):
        yield None
        return
    begun = said = time.monotonic()

    def report(done: int, of: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said < _EVERY and done < of:
            return
        said = now
        left = (now - begun) * (of - done) / max(done, 1)
        print(
            f"{what}: {done * total // max(of, 1)} of {total}, {left:.0f} s left", file=sys.stderr
        )

    yield report
