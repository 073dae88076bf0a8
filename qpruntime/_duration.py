"""Say before long work how long it will take, from its operations and this machine's own speed.

A message of the logger "qpruntime", which prints it on stderr unless it is told otherwise:
``logging.getLogger("qpruntime").setLevel("ERROR")`` silences it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from functools import cache

import numpy as np
from scipy.linalg.lapack import dpotrf

from qpruntime.execution.threads import hands, one_blas_thread

__all__ = ["announce", "expected_seconds"]

# Work that is shorter is not announced.
_LONG = 10.0
# Rows of the matrix whose factorisation measures this machine's speed in a few milliseconds, and
# the overhead of a call in rows.
_PROBE, _BESIDE = 700, 250
# Below this size nothing takes long enough to be worth a probe.
_SMALL = 700
# CPU seconds of work that is worth a look at how busy the machine is, and of that look: long enough
# for the scheduler to have given others their turns.
_WORTH, _LOOK = 3.0, 0.05
# Up to this a machine counts as idle; and, by processes for each core, is not looked at.
_IDLE, _QUIET = 1.2, 0.5

_LOG = logging.getLogger("qpruntime")


def _factorise() -> tuple[float, float]:
    """CPU seconds of this thread, and seconds, of a Cholesky factorisation of the probe."""
    matrix = np.full((_PROBE, _PROBE), 0.5, order="F")
    matrix.flat[:: _PROBE + 1] = 1.0
    with one_blas_thread():
        begun, used = time.perf_counter(), time.thread_time()
        dpotrf(matrix, lower=1, overwrite_a=1)
        return time.thread_time() - used, time.perf_counter() - begun


@cache
def _rate() -> float:
    """CPU seconds per N^3 of a Cholesky factorisation; the best of four, once per process.

    Seconds by the clock would have the turns of other processes among them.
    """
    return min(_factorise()[0] for _ in range(4)) / _PROBE**3


def _load() -> float:
    """Return processes at work for each core in the last minute; infinite if unknown."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return math.inf


def _busy() -> float:
    """Seconds by the clock for one of CPU: 1 on an idle machine, measured now."""
    if _load() < _QUIET:
        return 1.0
    cpu = clock = 0.0
    while cpu < _LOOK and clock < 10.0 * _LOOK:
        times = _factorise()
        cpu, clock = cpu + times[0], clock + times[1]
    return max(clock / max(cpu, 1e-9), 1.0)


def expected_seconds(n: int, factorisations: float) -> float:
    """Time of work that takes as long as so many Cholesky factorisations of size n.

    0 for a small n. The estimate assumes the machine's present load and number of threads.
    """
    if n < _SMALL:
        return 0.0
    larger = (1.0 + _BESIDE / n) / (1.0 + _BESIDE / _PROBE)
    seconds = factorisations * _rate() * larger * float(n) ** 3
    if seconds <= _WORTH:
        return seconds
    busy = _busy()
    # Threads that find a core save between nothing and all but their share: the middle of that.
    gain = math.sqrt(hands()) if busy < _IDLE else 1.0
    return seconds * busy / gain


def announce(what: str, seconds: float, remedy: str) -> None:
    """Say how long it will take, if that is long, and what would shorten it."""
    if seconds > _LONG:
        minutes = f"{seconds / 60:.0f} minutes" if seconds > 100.0 else f"{seconds:.0f} s"
        _LOG.warning("qpruntime: %s will take about %s; %s", what, minutes, remedy)
