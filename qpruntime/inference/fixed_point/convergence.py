"""Limits, trace and status of an iteration, and its convergence warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from qpruntime._restorable import restorable
from qpruntime.errors import ConvergenceWarning, warn
from qpruntime.inference.sites import Counts

__all__ = [
    "DEFAULT_MAX_SWEEPS",
    "DEFAULT_TOL",
    "HELD",
    "Ended",
    "Limits",
    "Status",
    "Trace",
    "warn_unsettled",
]

#: Largest change of a site, in units of its marginal, at which sweeps stop; and sweeps at most.
DEFAULT_TOL, DEFAULT_MAX_SWEEPS = 1e-6, 100

# --- Warnings


class HowItEnded(Protocol):
    """What is looked at: of an `Ended`, or of a posterior."""

    @property
    def status(self) -> str:
        """As of `Ended`."""

    @property
    def history(self) -> Sequence[float]:
        """Changes per sweep."""

    @property
    def worst(self) -> int:
        """The site that changed most."""

    @property
    def held(self) -> int:
        """Precisions held at zero."""


def warn_unsettled(
    end: HowItEnded,
    tol: float,
    n: int,
    *,
    of_estimator: bool = False,
    words: Callable[[str], str] = str,
) -> None:
    """Warn if n sites have not settled freely, or may in several ways.

    Remedies are arguments that the caller has: those of `infer`, or those `of_estimator`. `words`
    may call sites by other names than their numbers.
    """
    for text in _complaints(end, tol, n, of_estimator):
        warn(words(text), ConvergenceWarning)


def _complaints(end: HowItEnded, tol: float, n: int, of_estimator: bool) -> Iterator[str]:
    """What is to be said of the way in which sites have settled."""
    history = end.history
    unsettled = end.status == "not converged"
    if unsettled and history and history[-1] < tol:
        kept, most = getattr(end, "kept", None), ""
        if kept is not None:
            site = int(np.argmin(kept))
            share = max(float(kept[site]), 1e-300)
            most = f"; site {site} outweighs what else is known there by {1.0 / share:.2g}"
        yield (
            f"not converged after {len(history)} sweeps: the sites no longer change, but some have "
            f"no cavity left in double precision and are not updated{most}: rescale, or widen the "
            "likelihood; the evidence may be anything"
        )
    elif unsettled:
        # Changes that no longer shrink go round in circles, which damping ends.
        circling = len(history) >= 20 and min(history[-10:]) > 0.5 * min(history[:-10])
        if of_estimator:
            remedy = "raise max_sweeps,"
        elif circling:
            remedy = "the changes no longer shrink: try damping=0.3,"
        else:
            remedy = "raise max_sweeps, lower damping,"
        yield (
            f"not converged after {len(history)} sweeps: the sites still change by "
            f"{history[-1] if history else np.inf:.2g} (tol {tol:g}), most of all site "
            f"{end.worst}; "
            f"{remedy} or check that observation and the kernel; the evidence of "
            "sites that have not settled may be anything"
        )
    move = "move the prior mean away from zero or lower the prior variance"
    if of_estimator:
        move = "bound the kernel's variance further down, or move the mean away from zero if one "
        move += "can be given"
    found = getattr(end, "peaks", ())
    peaks = ", ".join(f"{value:.6g}" for value in found)
    if end.held:
        lesser = ""
        if peaks:
            lesser = f" (fixed points of lesser peaks have been found, of log evidence {peaks})"
        yield (
            f"{end.held} of {n} site precisions are held at zero: they would be "
            "negative and leave other sites without a proper cavity, because the posterior has "
            f"several peaks{lesser}; {move}"
        )
    elif len(found) > 1:
        yield (
            f"{len(found)} fixed points found, of log evidence {peaks}: the posterior has "
            f"several peaks, and this is the highest that was found; {move}"
        )


# --- Limits, trace and status

Status = Literal["converged", "held", "not converged"]

#: A site counts as held if its precision, in units of the cavity's or the posterior's, would be so
#: far below zero.
HELD = 1e-9


@restorable("limits/1")
class Limits(NamedTuple):
    """When to stop, and how much of every update to take; see `qpruntime.infer`."""

    tol: float = DEFAULT_TOL
    sweeps: int = DEFAULT_MAX_SWEEPS
    damping: float = 1.0


@dataclass
class Trace:
    """What was done for one result, over all attempts: also by those that failed.

    `counts` are lookups inside and outside a grid and updates skipped.
    """

    history: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    damped: int = 0


@dataclass(kw_only=True)
class Ended:
    """How an iteration ended.

    Attributes
    ----------
    settled : bool
        Whether the sites no longer change, held at zero or not.
    worst : int
        The site that changed most in the last sweep.
    trace : Trace
    held : int
        Sites whose precision would be negative were it not held at zero.
    peaks : tuple of float
        Log evidences of all fixed points, where there was reason to look for more than one.
    """

    settled: bool = False
    worst: int = 0
    trace: Trace = field(default_factory=Trace)
    held: int = 0
    peaks: tuple[float, ...] = ()

    @property
    def status(self) -> Status:
        """What the sites are: a fixed point, one of precisions held at zero, or neither."""
        if not self.settled:
            return "not converged"
        return "held" if self.held else "converged"

    @property
    def history(self) -> list[float]:
        """Changes per sweep, over all attempts."""
        return self.trace.history
