"""The notice that kernels compile: for whom, and how long that takes where nothing is cached."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator

from numba.core import event

__all__ = ["OURS", "QUIET", "Notice", "announcement"]

_LOG = logging.getLogger("qpruntime")
#: Seconds without a compilation after which the next one is announced again.
QUIET = 5.0

#: Packages whose kernels are announced, and cached by contents.
OURS = ("qpruntime", "tablegen")

# Labels and compile times by the module whose function the user has called. Seconds are those of a
# first call with an empty cache on a core of 2020. The longest matching name applies.
_CALLED = {
    "qpruntime.estimators": ("an estimator", 20),
    "qpruntime.estimators.classifier": ("GPClassifier", 12),
    "qpruntime.estimators.poisson": ("GPPoissonRegressor", 15),
    "qpruntime.estimators.robust": ("GPRobustRegressor", 12),
    "qpruntime.effects": ("a model of effects", 20),
    "qpruntime.forecasting": ("a forecast", 20),
    "qpruntime.inference": ("inference", 10),
    "qpruntime.inference.corrections": ("corrections", 12),
    "qpruntime.inference.markov": ("a series", 12),
    "qpruntime.inference.sparse": ("inducing points", 12),
    "qpruntime.persistence": ("a loaded model", 10),
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
        Folder where all that compiles is kept for the next process, None if there is none.
    """

    def __init__(self, kept: Callable[[], str | None]) -> None:
        self._kept = kept
        self._inside = 0
        self._ended = -math.inf
        self.count = 0
        self.silent = False
        self._collected = False

    def on_start(self, event: event.Event) -> None:
        """Announce a compilation that the user waits for, and stop garbage collection meanwhile."""
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

    def on_end(self, event: event.Event) -> None:
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


def announcement(module: str, more: bool, folder: str | None) -> str:
    """Return the line that says that kernels compile for a function of this module."""
    names = [name for name in _CALLED if module == name or module.startswith(f"{name}.")]
    what, takes = module, "a few seconds"
    if names:
        what, seconds = _CALLED[max(names, key=len)]
        takes = f"about {seconds} s the first time"
    elif more:
        takes = "a few seconds more"
    if folder is None:
        kept = "in every process, as no folder can be written: set NUMBA_CACHE_DIR to one"
    else:
        kept = f"kept in {folder}"
    return (
        f"qpruntime: compiling {'more ' if more else ''}kernels for {what} on this machine; takes "
        f"{takes}; {kept} (python -m qpruntime warmup compiles all beforehand)"
    )


def _called() -> str:
    """Return the module of ours whose function was called from outside of us, empty if none was."""
    frame, name = sys._getframe(1), ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.split(".")[0] in OURS and not module.startswith(_BETWEEN):
            name = module
        frame = frame.f_back  # type: ignore[assignment]
    return name


# Modules that are on the way to those that are called, or compile.
_BETWEEN = (
    "qpruntime.execution.",
    "qpruntime._compile_notice",
    "qpruntime._numba",
    "qpruntime._pointers",
)


def _own(event: event.Event) -> str:
    """Name of the module whose function compiles, if it is one of ours."""
    module = str(event.data["dispatcher"].py_func.__module__)
    return module if module.split(".")[0] in OURS else ""
