"""Settled sites of a sorted series become what a `SeriesPosterior` is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.inference.markov.evidence import require_evidence
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.settle import Ended, Swept, settle
from qpruntime.inference.markov.stream import EVERY
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.posterior import Lookups
from qpruntime.inference.schedules import Limits, Trace
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace

__all__ = ["Placed", "Sweeper", "concluded", "ending"]

#: How rows are to be swept: here, or in blocks elsewhere.
Sweeper = Callable[[Series, StateSpace, Sites], Swept]


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
    sweeper: Sweeper = Rows,
) -> dict[str, Any]:
    """Settle the sites of a sorted series; return the fields of its `SeriesPosterior`.

    `start` is in order of time, with nu as it is reported; fields are in the order of the rows.
    """
    n = series.t.size
    sites = Sites(np.zeros(n), np.zeros(n))
    if start is not None:
        sites = Sites(start.tau.copy(), start.nu - start.tau * series.prior)
    rows = sweeper(series, space, sites)
    end = settle(rows, limits, Trace(), warm=start is not None)
    marks = rows.marks(EVERY) if isinstance(rows, Rows) else None
    del rows
    found, order = end.summary, placed.order
    require_evidence(found)
    back = np.empty(order.size, dtype=np.intp)
    back[order] = np.arange(order.size)
    return {
        **ending(end, found.log_evidence, int(order[end.worst])),
        "sites": Sites(sites.tau[back], (sites.nu + sites.tau * series.prior)[back]),
        "mean": found.mean[back],
        "variance": found.variance[back],
        "likelihood": series.projector.likelihood.spelt,
        "method": series.projector.method,
        "log_z": found.log_z[back],
        "factor": None,
        "kernel": kernel,
        "state_dimension": space.dimension,
        "kernel_error": space.error,
        **placed._asdict(),
        "series": series,
        "space": space,
        "limits": limits,
        "swept": n,
        "how": series,
        "marks": marks,
    }


def ending(end: Ended, log_evidence: float, worst: int) -> dict[str, Any]:
    """Fields that say how the sweeps ended."""
    trace = end.trace
    settled = "held" if end.held else "converged"
    status = settled if end.settled else "not converged"
    return {
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
