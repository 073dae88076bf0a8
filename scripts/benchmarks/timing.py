"""Clocks: the best of several runs, several functions in turns, and the memory of a process."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scripts.records import TOP

#: What was measured, its value and unit.
Row = tuple[str, float, str]


def peak() -> float:
    """Bytes that this process has held at most."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def grown(before: str, call: str, *arguments: object) -> float:
    """Most bytes that a call takes beside what there is before it, in a process of its own.

    Both are statements of Python; arguments are words in ``sys.argv``.
    """
    code = (
        f"import sys; {before}; "
        "k = lambda w: int(open('/proc/self/status').read().split(w)[1].split()[0]) * 1024; "
        f"open('/proc/self/clear_refs', 'w').write('5'); at = k('VmRSS:'); {call}; "
        "print(k('VmHWM:') - at)"
    )
    run = [sys.executable, "-c", code, *map(str, arguments)]
    return float(subprocess.run(run, check=True, capture_output=True, text=True, cwd=TOP).stdout)


class Own(threading.Thread):
    """Watches memory that is this process's own, without pages of mapped files: ``with Own()``.

    Attributes
    ----------
    most : float
        Bytes; 0 where the system does not tell.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0.0, threading.Event()

    def run(self) -> None:
        """Look every twentieth of a second."""
        while not self._over.wait(0.05):
            try:
                status = Path("/proc/self/status").read_text()
            except OSError:
                return
            own = status.split("RssAnon:")[1].split()[0]
            self.most = max(self.most, 1024.0 * float(own))

    def __enter__(self) -> Own:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def best(
    function: Callable[[], object], repeat: int = 5, clock: Callable[[], float] | None = None
) -> float:
    """Seconds of the shortest of `repeat` runs; without a clock, elapsed ones after a first run."""
    if clock is None:
        function()
        clock = time.perf_counter
    times = []
    for _ in range(repeat):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def has(module: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(module) is not None


def in_turns(functions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Shortest of `repeat` runs of each, one after the other, so that noise hits all alike.

    A function that returns a float has taken its own time.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeat + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            own = function()
            if turn:
                taken = own if isinstance(own, float) else time.perf_counter() - start
                times[name].append(taken)
    return {name: min(seconds) for name, seconds in times.items()}


def quietest(function: Callable[..., object], *columns: np.ndarray) -> float:
    """Nanoseconds per row, the best of many runs over 20 000 other rows each.

    Half a millisecond each: short enough to fall between two interruptions on a busy machine, and
    never over the same rows soon, so that a grid does not get into the cache.
    """
    size = 20_000
    function(*(column[:size] for column in columns))
    times = []
    for _ in range(3):
        for start in range(0, len(columns[0]), size):
            part = [column[start : start + size] for column in columns]
            begin = time.perf_counter()
            function(*part)
            times.append(time.perf_counter() - begin)
    return min(times) / size * 1e9
