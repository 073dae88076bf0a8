"""Limits, trace and status of an iteration, and its convergence warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from qpruntime._restorable import restorable
from qpruntime._validation import number, whole
from qpruntime.errors import ConvergenceWarning, NumericalError, warn
from qpruntime.inference.sites import Counts, no_counts

__all__ = [
    "DEFAULT_MAX_SWEEPS",
    "DEFAULT_TOL",
    "HELD",
    "Ended",
    "Limits",
    "Status",
    "Trace",
    "finite_evidence",
    "unbounded",
    "warn_unsettled",
]

#: Largest change of a site, in units of its marginal, at which sweeps stop; and sweeps at most.
DEFAULT_TOL, DEFAULT_MAX_SWEEPS = 1e-6, 100

# --- Errors and warnings


def unbounded(site: str) -> NumericalError:
    """Return the error about sites that grow without bound, `site` the fastest."""
    return NumericalError(
        f"the sites grow without bound, {site} first: observations that the kernel ties together "
        "contradict each other, as equal points with opposite labels do under the heaviside; use "
        'likelihood="probit", or add a WhiteKernel to the kernel'
    )


def finite_evidence(value: float) -> float:
    """Return a log evidence, or raise `NumericalError` if it is not finite."""
    if not math.isfinite(value):
        raise NumericalError(
            f"the log evidence is {value}: an observation has no likelihood left in double "
            "precision under the others; check outliers, or widen the kernel"
        )
    return value


class HowItEnded(Protocol):
    """Convergence of an `Ended` or of a posterior."""

    @property
    def status(self) -> str:
        """Status of the sites, as of `Ended`."""

    @property
    def history(self) -> Sequence[float]:
        """Changes per sweep."""

    @property
    def worst(self) -> int:
        """Site that changed most in the last sweep."""

    @property
    def held(self) -> int:
        """Number of precisions held at zero."""


def warn_unsettled(
    end: HowItEnded,
    tol: float,
    n: int,
    *,
    of_estimator: bool = False,
    words: Callable[[str], str] = str,
) -> None:
    """Warn if n sites have not converged, have precisions held at zero, or several fixed points.

    The remedies name arguments of `infer`, or of estimators with `of_estimator`. `words` may
    replace the numbers of sites in the message by names.
    """
    for text in _convergence_warnings(end, tol, n, of_estimator):
        warn(words(text), ConvergenceWarning)


def _convergence_warnings(end: HowItEnded, tol: float, n: int, of_estimator: bool) -> Iterator[str]:
    """Yield warnings about the convergence of the sites."""
    history = end.history
    unsettled = end.status == "not converged"
    if unsettled and history and history[-1] < tol:
        kept, detail = getattr(end, "kept", None), ""
        if kept is not None:
            site = int(np.argmin(kept))
            share = max(float(kept[site]), 1e-300)
            detail = f"; site {site} outweighs what else is known there by {1.0 / share:.2g}"
        yield (
            f"not converged after {len(history)} sweeps: the sites no longer change, but some have "
            f"no cavity left in double precision and are not updated{detail}: rescale, or widen "
            "the likelihood; the evidence may be anything"
        )
    elif unsettled:
        # Changes that no longer shrink mean an oscillation, which damping ends.
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
    evidences = getattr(end, "peaks", ())
    peaks = ", ".join(f"{value:.6g}" for value in evidences)
    if end.held:
        lesser = ""
        if peaks:
            lesser = f" (fixed points of lower evidence have been found, log evidence {peaks})"
        yield (
            f"{end.held} of {n} site precisions are held at zero: they would be "
            "negative and leave other sites without a proper cavity, because the posterior has "
            f"several peaks{lesser}; {move}"
        )
    elif len(evidences) > 1:
        yield (
            f"{len(evidences)} fixed points found, of log evidence {peaks}: the posterior has "
            f"several peaks, and this is the highest that was found; {move}"
        )


# --- Limits, trace and status

Status = Literal["converged", "held", "not converged"]

#: A site counts as held if its free precision, in units of the cavity's or the posterior's, would
#: be further below zero than this.
HELD = 1e-9


@restorable("limits/1")
class Limits(NamedTuple):
    """Tolerance, number of sweeps and damping; see `qpruntime.infer`."""

    tol: float = DEFAULT_TOL
    sweeps: int = DEFAULT_MAX_SWEEPS
    damping: float = 1.0

    @classmethod
    def checked(cls, tol: float, max_sweeps: int, damping: float = 1.0) -> Limits:
        """Return limits of checked arguments, or raise `InputError`."""
        damping = number(damping, "damping", above=0.0, most=1.0)
        return cls(number(tol, "tol", above=0.0), whole(max_sweeps, "max_sweeps", 1), damping)


@dataclass
class Trace:
    """Record of the work for one result, over all attempts including failed ones.

    `counts` are numbers of lookups inside and outside a grid, and of skipped updates.
    """

    history: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=no_counts)
    damped: int = 0


@dataclass(kw_only=True)
class Ended:
    """Result of an iteration.

    Attributes
    ----------
    settled : bool
        True if the sites no longer change, held at zero or not.
    worst : int
        Site that changed most in the last sweep.
    trace : Trace
    held : int
        Number of sites whose precision would be negative if it were not held at zero.
    peaks : tuple of float
        Log evidences of all fixed points, if there was a search for more than one.
    """

    settled: bool = False
    worst: int = 0
    trace: Trace = field(default_factory=Trace)
    held: int = 0
    peaks: tuple[float, ...] = ()

    @property
    def status(self) -> Status:
        """State of the sites: a fixed point, settled with precisions held at zero, or neither."""
        if not self.settled:
            return "not converged"
        return "held" if self.held else "converged"

    @property
    def history(self) -> list[float]:
        """Changes per sweep, over all attempts."""
        return self.trace.history
