"""What is to be said of sites that have not settled freely, or may in several ways."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qpruntime.errors import ConvergenceWarning, warn
from qpruntime.inference.schedules import Settled

__all__ = ["warn_unsettled"]


def warn_unsettled(end: Settled, tol: float, *, of_estimator: bool = False) -> None:
    """Warn if the sites have not settled freely, or may in several ways.

    Remedies are arguments that the caller has: those of `infer`, or those `of_estimator`.
    """
    for text in _complaints(end, tol, of_estimator):
        warn(text, ConvergenceWarning)


def _complaints(end: Settled, tol: float, of_estimator: bool) -> Iterator[str]:
    """What is to be said of the way in which sites have settled."""
    history = end.trace.history
    if not end.settled and history[-1] < tol:
        site = int(np.argmin(end.kept))
        share = max(float(end.kept[site]), 1e-300)
        yield (
            f"not converged after {len(history)} sweeps: the sites no longer change, but some have "
            f"no cavity left in double precision and are not updated; site {site} outweighs what "
            f"else is known there by {1.0 / share:.2g}: rescale, or widen the likelihood; the "
            "evidence may be anything"
        )
    elif not end.settled:
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
            f"{history[-1]:.2g} (tol {tol:g}), most of all site {end.worst}; "
            f"{remedy} or check that observation and the kernel; the evidence of "
            "sites that have not settled may be anything"
        )
    move = "move the prior mean away from zero or lower the prior variance"
    if of_estimator:
        move = "bound the kernel's variance further down, or move the mean away from zero if one "
        move += "can be given"
    peaks = ", ".join(f"{value:.6g}" for value in end.peaks)
    if end.held:
        lesser = ""
        if peaks:
            lesser = f" (fixed points of lesser peaks have been found, of log evidence {peaks})"
        yield (
            f"{end.held} of {end.variance.size} site precisions are held at zero: they would be "
            "negative and leave other sites without a proper cavity, because the posterior has "
            f"several peaks{lesser}; {move}"
        )
    elif len(end.peaks) > 1:
        yield (
            f"{len(end.peaks)} fixed points found, of log evidence {peaks}: the posterior has "
            f"several peaks, and this is the highest that was found; {move}"
        )
