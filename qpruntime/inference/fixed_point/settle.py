"""The fixed-point iteration of EP and QP: update sites until they settle, within a bound.

``sequential`` and ``random`` update the posterior after every site, ``parallel`` after all of
them (`schedules`, beside this file); the fixed point is the same. An iteration costs about two
Cholesky factorisations in parallel order and five in the others.

Sites of a likelihood that is not log-concave may have negative precisions. Where these leave some
other site without a proper cavity, other fixed points are looked for, in `search`. The last resort
is to hold every precision at zero or above; the result says for how many sites that changes
anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from qpruntime.inference.fixed_point.anderson import Anderson
from qpruntime.inference.fixed_point.ended import HELD, Limits, Trace
from qpruntime.inference.fixed_point.schedules import Settled, settle_mixed, settle_visiting
from qpruntime.inference.fixed_point.search import Peaks, around, drawn, evidence_of
from qpruntime.inference.problem import Problem
from qpruntime.inference.proposals import propose_all
from qpruntime.inference.sites import ImproperPosterior, Sites, no_sites, without_negative

__all__ = ["ORDERS", "Order", "iterate", "settle"]

Order = Literal["sequential", "random", "parallel"]
ORDERS = get_args(Order)

# A fixed point of less than half the evidence of the held sites is one of a lesser peak.
_LESSER = math.log(2.0)


def settle(
    problem: Problem,
    limits: Limits = Limits(),  # noqa: B008  immutable
    *,
    order: Order = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
    restarts: Sequence[np.random.Generator] = (),
    trace: Trace | None = None,
    seek: bool = True,
) -> Settled:
    """Iterate to the fixed point; arguments as those of `qpruntime.infer`, known to be good.

    Every site of the result has a proper cavity, if need be with precisions held at zero or above.
    Without `seek` they are held at once where the iteration fails; so there are twice
    ``limits.sweeps`` sweeps at most, and with it four attempts of a hundred more.

    `restarts` has the generator of every further start. Of several fixed points that of the highest
    evidence is the result; held sites are, where all are of less than half their evidence.
    """
    trace = trace or Trace()
    end = None
    try:
        end = iterate(problem, limits, order=order, sites=sites, rng=rng, trace=trace)
    except ImproperPosterior:
        if problem.nonnegative:
            raise
    if problem.nonnegative and end:
        return end
    peaks = Peaks(problem)
    if not (end and end.proper):
        bounded = replace(problem, bounded=True)
        visits: Order = "random" if order == "random" else "sequential"
        end = iterate(bounded, limits, order=visits, sites=sites, rng=rng, trace=trace)
        end.held = count_held(problem, end)
        if end.held and seek:
            peaks.extend(around(problem, end, limits, trace))
    peaks.add(end)
    for generator in restarts:
        peaks.extend(drawn(problem, limits, trace, generator))
    best = peaks.best
    if best is None or (end.held and peaks.values[0] < evidence_of(problem, end) - _LESSER):
        best = end
    best.peaks = peaks.values
    return best


def count_held(problem: Problem, end: Settled) -> int:
    """Number of sites that would turn negative were they free."""
    ignored = np.zeros(3, dtype=np.int64)
    unbound = propose_all(problem, problem.rules(), end.marginals, end.sites, ignored)
    return int(np.sum((end.sites.tau + unbound.tau) * end.variance < -HELD))


def iterate(
    problem: Problem,
    limits: Limits,
    *,
    order: Order = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
    accelerator: Anderson | None = None,
    trace: Trace | None = None,
) -> Settled:
    """`settle` without its last resorts: sites may end up with improper cavities."""
    trace = trace or Trace()
    start = no_sites(problem.n) if sites is None else sites
    if problem.bounded:
        start = without_negative(start)
    # What overflows is found by `measure_change`, which says so in words.
    with np.errstate(all="ignore"):
        try:
            factor = problem.prior.factor(start)
        except ImproperPosterior:
            # Sites carried over from another K.
            start = without_negative(start)
            factor = problem.prior.factor(start)
        if order == "parallel":
            anderson = accelerator or Anderson()
            return settle_mixed(problem, start, factor, limits, rng, anderson, trace)
        return settle_visiting(problem, start, factor, limits, rng, trace)
