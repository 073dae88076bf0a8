"""Say before long work how long it will take, from its size and this machine's own speed.

A message of the logger "qpruntime", which prints it on stderr unless it is told otherwise:
``logging.getLogger("qpruntime").setLevel("ERROR")`` silences it.
"""

from __future__ import annotations

import logging
import time
from functools import cache

import numpy as np
from scipy.linalg.lapack import dpotrf

__all__ = ["announce", "expected_seconds"]

# Work that is shorter is not announced.
_LONG = 10.0
# Of the matrix that is factorised to learn this machine's speed: a millisecond or two.
_PROBE = 300
# Below this size nothing takes long enough to be worth a probe.
_SMALL = 700

_LOG = logging.getLogger("qpruntime")


@cache
def _rate() -> float:
    """Seconds per N^3 of a Cholesky factorisation; the best of three, measured once per process."""
    best = np.inf
    for _ in range(3):
        matrix = np.eye(_PROBE, order="F")
        begun = time.perf_counter()
        dpotrf(matrix, lower=1, overwrite_a=1)
        best = min(best, time.perf_counter() - begun)
    return float(best) / _PROBE**3


def expected_seconds(n: int, factorisations: float) -> float:
    """Time of so many Cholesky factorisations of size n and their company; 0 for a small n."""
    return 0.0 if n < _SMALL else factorisations * _rate() * float(n) ** 3


def announce(what: str, seconds: float, remedy: str) -> None:
    """Say how long it will take, if that is long, and what would shorten it."""
    if seconds > _LONG:
        minutes = f"{seconds / 60:.0f} minutes" if seconds > 100.0 else f"{seconds:.0f} s"
        _LOG.warning("qpruntime: %s will take about %s; %s", what, minutes, remedy)
