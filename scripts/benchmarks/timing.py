"""Clocks: the best of several runs, several functions in turns, and the memory of a process."""

from __future__ import annotations

import importlib.util
import resource
import time
from collections.abc import Callable

import numpy as np

__all__ = ["Row", "best", "has", "in_turns", "peak", "quietest"]

#: What was measured, its value and unit.
Row = tuple[str, float, str]


def peak() -> float:
    """Bytes that this process has held at most."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
