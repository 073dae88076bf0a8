"""What `verbose` shows of training: a bar with the time left on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from qpruntime.learning.progress import drawn_bar, time_left

__all__ = ["reporting"]

_LINES = 10

Report = Callable[[int, float], Any]


@contextlib.contextmanager
def reporting(verbose: int, steps: int, processes: int) -> Iterator[Report | None]:
    """Yield what is to be called with steps done and the average energy; None if silent."""
    if not verbose:
        yield None
        return
    total, begun = steps * processes, time.perf_counter()
    before = last = 0

    def words(done: int, energy: float) -> tuple[int, str]:
        nonlocal before, last
        if done < last:  # the next process
            before += steps
        last = done
        whole = before + done
        left = (time.perf_counter() - begun) / whole * (total - whole)
        return whole, f"step {whole} of {total}, energy {energy:.6g}{time_left(left)}"

    with drawn_bar(total) if verbose == 1 else contextlib.nullcontext(None) as update:
        printed = 0

        def report(done: int, energy: float) -> None:
            nonlocal printed
            whole, said = words(done, energy)
            if update is not None:
                update(whole, said)
            elif whole * _LINES // total > printed:
                printed = whole * _LINES // total
                print(said, file=sys.stderr)

        yield report
