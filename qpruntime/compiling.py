"""Say that kernels compile, for whom, and how long that takes where nothing is cached.

A message of the logger "qpruntime", as those of `qpruntime.notice`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

__all__ = ["Notice", "announcement"]

_LOG = logging.getLogger("qpruntime")
#: Seconds without a compilation after which the next one is announced again.
QUIET = 5.0

_OWN = ("qpruntime", "tablegen")

# By the module whose function the user has called: its name, and the seconds of a first call on an
# empty cache, a core of 2020. The longest name that fits holds.
_CALLED = {
    "qpruntime.estimators": ("an estimator", 30),
    "qpruntime.estimators.classifier": ("GPClassifier", 25),
    "qpruntime.estimators.poisson": ("GPPoissonRegressor", 30),
    "qpruntime.estimators.robust": ("GPRobustRegressor", 55),
    "qpruntime.inference": ("inference", 15),
    "qpruntime.inference.corrections": ("corrections", 12),
    "qpruntime.inference.markov": ("a series", 12),
    "qpruntime.inference.sparse": ("inducing points", 12),
    "qpruntime.projection": ("projections", 8),
    "qpruntime.bayesopt": ("the optimiser", 10),
    "tablegen": ("tables", 20),
}


class Notice(event.Listener):
    """Say which kernels compile, which takes seconds when nothing is cached, and how many did.

    Once for what compiles together, and again for what does so later: some parts compile at
    their first use, minutes after the others.

    Parameters
    ----------
    kept : function
        Whether all that compiles is kept for the next process.
    """

    def __init__(self, kept: Callable[[], bool]) -> None:
        self._kept = kept
        self._inside = 0
        self._ended = -math.inf
        self.count = 0
        self.silent = False
        self._collected = False

    def on_start(self, event: Any) -> None:
        module = _own(event)
        if not module:
            return
        if not (self._inside or self.silent) and time.monotonic() - self._ended > QUIET:
            more = self._ended > -math.inf
            _LOG.warning("%s", announcement(_called() or module, more, self._kept()))
        if not self._inside:
            # Compilers make many small objects, and a fifth of the time would go into walks over
            # all that there are.
            self._collected = gc.isenabled()
            gc.disable()
        self._inside += 1

    def on_end(self, event: Any) -> None:
        if _own(event):
            self._inside -= 1
            if self._collected and not self._inside:
                gc.enable()
            self.count += 1
            self._ended = time.monotonic()

    @contextlib.contextmanager
    def silenced(self) -> Iterator[None]:
        """Compile without a word."""
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before


def announcement(module: str, more: bool, kept: bool) -> str:
    """Return the line that says that kernels compile for a function of this module."""
    found = [name for name in _CALLED if module == name or module.startswith(f"{name}.")]
    what, takes = f"{module}", "a few seconds"
    if found:
        what, seconds = _CALLED[max(found, key=len)]
        takes = f"about {seconds} s the first time"
    elif more:
        takes = "a few seconds more"
    often = "" if kept else ", in every process: set NUMBA_CACHE_DIR to a folder"
    return (
        f"qpruntime: compiling {'more ' if more else ''}kernels for {what} on this machine; takes "
        f"{takes}{often} (python -m qpruntime warmup compiles all beforehand)"
    )


def _called() -> str:
    """Module of ours whose function was called from outside of us, empty if none was."""
    frame, found = sys._getframe(1), ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] in _OWN and not module.startswith(_BETWEEN):
            found = module
        frame = frame.f_back  # type: ignore[assignment]
    return found


# Modules that are on the way to those that are called, or compile.
_BETWEEN = ("qpruntime.execution.", "qpruntime.jit", "qpruntime.compiling")


def _own(event: Any) -> str:
    """Name of the module whose function compiles, if it is one of ours."""
    module = str(event.data["dispatcher"].py_func.__module__)
    return module if module.split(".")[0] in _OWN else ""
