"""Settle the sites of a sorted series, and say how it ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.markov.evidence import require_evidence
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.settle import Ended, settle
from qpruntime.inference.markov.solution import SeriesSolution
from qpruntime.inference.markov.stream import EVERY, Piece
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.outcome import Lookups, Outcome
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace

__all__ = ["Placed", "concluded", "ending"]


class Placed(NamedTuple):
    """Where the rows of a sorted series were given.

    `order` has the place of each among those that were observed, and `rows` the places of these
    among all `given`.
    """

    clock: Clock
    order: NDArray[np.intp]
    rows: NDArray[np.intp]
    given: int


def concluded(
    kernel: Kernel,
    space: StateSpace,
    series: Series,
    limits: Limits,
    start: Sites | None,
    placed: Placed,
) -> tuple[Outcome, SeriesSolution]:
    """Settle the sites of a sorted series; return what is reported, and what is left behind.

    `start` is in order of time, with nu as it is reported.
    """
    n = series.t.size
    sites = Sites(np.zeros(n), np.zeros(n))
    if start is not None:
        sites = Sites(start.tau.copy(), start.nu - start.tau * series.prior)
    rows = Rows(series, space, sites)
    end = settle(rows, limits, Trace(), warm=start is not None)
    marks = rows.marks(EVERY)
    del rows
    found, order = end.summary, placed.order
    require_evidence(found)
    outcome = Outcome(
        likelihood=series.projector.likelihood.spelt,
        method=series.projector.method,
        **ending(end, found.log_evidence, int(order[end.worst]), n),
    )
    columns = series.t, series.y, series.prior, series.weights, series.scale
    piece = Piece(*columns, *sites, found.mean, found.variance, found.log_z, order, marks)
    solution = SeriesSolution(
        kernel=kernel,
        space=space,
        clock=placed.clock,
        limits=limits,
        how=series,
        pieces=(piece,),
        seen=(placed.rows,),
        given=placed.given,
    )
    return outcome, solution


def ending(end: Ended, log_evidence: float, worst: int, n: int) -> dict[str, Any]:
    """What is reported of the way in which sweeps ended."""
    trace = end.trace
    settled = "held" if end.held else "converged"
    status = settled if end.settled else "not converged"
    return {
        "n": n,
        "log_evidence": log_evidence,
        "status": status,
        "n_sweeps": len(trace.history),
        "history": tuple(trace.history),
        "lookups": Lookups(int(trace.counts[0]), int(trace.counts[1])),
        "skipped": int(trace.counts[2]),
        "damped": trace.damped,
        "held": end.held,
        "fixed_points": (log_evidence,) if status == "converged" else (),
        "worst": worst,
    }
