"""The fixed-point iteration of EP and QP: update sites until they settle, within a bound.

``sequential`` and ``random`` update the posterior after every site, ``parallel`` after all of
them (`qpruntime.inference.schedules`); the fixed point is the same. An iteration costs about two
Cholesky factorisations in parallel order and five in the others.

Sites of a likelihood that is not log-concave may have negative precisions. Where these leave some
other site without a proper cavity there is no fixed point; then every precision is held at zero
or above, and the result says for how many sites that changes anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.inference.anderson import Anderson
from qpruntime.inference.dense.factor import Factor, ImproperPosterior, Sites
from qpruntime.inference.schedules import Settled, settle_mixed, settle_visiting
from qpruntime.inference.steps import Problem, propose_all, without_negative

__all__ = ["ORDERS", "Problem", "Settled", "iterate", "settle"]

Array = NDArray[np.float64]

ORDERS = ("sequential", "random", "parallel")

# A site counts as held if its precision, in units of the posterior's, would be this far below zero.
_HELD = 1e-9


def settle(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
) -> Settled:
    """Iterate to the fixed point; arguments as those of `qpruntime.infer`, known to be good.

    Every site of the result has a proper cavity, if need be with precisions held at zero or above.
    """
    options: dict[str, Any] = {"tol": tol, "max_sweeps": max_sweeps, "damping": damping, "rng": rng}
    lost: list[float] = []
    first = None
    try:
        first = iterate(problem, order=order, sites=sites, **options)
    except ImproperPosterior as error:
        if problem.nonnegative:
            raise
        lost = error.history
    if first and (first.proper or problem.nonnegative):
        return first
    bounded = replace(problem, bounded=True)
    end = iterate(bounded, order="random" if rng else "sequential", sites=sites, **options)
    end = end.after(first, lost)
    unbound, _ = propose_all(
        problem,
        problem.projector.source,
        end.kept,
        end.variance,
        end.factor.mean,
        end.sites,
        np.zeros(3, dtype=np.int64),
    )
    end.held = int(np.sum((end.sites.tau + unbound) * end.variance < -_HELD))
    return end


def iterate(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
    accelerator: Anderson | None = None,
) -> Settled:
    """`settle` without its last resort: sites may end up with improper cavities."""
    n = len(problem.K)
    start = Sites(np.zeros(n), np.zeros(n)) if sites is None else sites
    if problem.bounded:
        start = without_negative(start)
    # What overflows is found by `measure_change`, which says so in words.
    with np.errstate(all="ignore"):
        try:
            factor = Factor(problem.K, start, problem.prior)
        except ImproperPosterior:
            # Sites carried over from another K.
            start = without_negative(start)
            factor = Factor(problem.K, start, problem.prior)
        if order == "parallel":
            anderson = accelerator or Anderson()
            return settle_mixed(problem, start, factor, tol, max_sweeps, damping, rng, anderson)
        return settle_visiting(problem, start, factor, tol, max_sweeps, damping, rng)
