"""Iteration to a fixed point of the sites, with restarts, and the evidence there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import HELD, Limits, Trace
from qpruntime.inference.fixed_point.schedules import (
    Anderson,
    Settled,
    settle_mixed,
    settle_parallel,
    settle_visiting,
)
from qpruntime.inference.parallel_updates import propose_all
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import cavity, site_terms
from qpruntime.inference.sites import ImproperPosterior, Sites, no_sites, without_negative
from qpruntime.projection.site_kernel import BEYOND, raise_status
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "ORDERS",
    "Order",
    "Peaks",
    "around",
    "drawn",
    "evidence_of",
    "iterate",
    "log_evidence",
    "settle",
]

# --- Fixed-point iteration of EP and QP
#
# ``sequential`` and ``random`` update the posterior after every site, ``parallel`` after all of
# them (`schedules`, beside this file); the fixed point is the same. An iteration costs about two
# Cholesky factorisations in parallel order and five in the others.
#
# Sites of a likelihood that is not log-concave may have negative precisions. Where these leave some
# other site without a proper cavity, `iterate` looks for other fixed points. The last
# resort is to hold every precision at zero or above; the result says for how many sites that
# changes anything.

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


# --- Several fixed points
#
# A likelihood that is not log-concave may have no fixed point with proper cavities, one, or
# several, and an iteration from the prior may miss those there are. Here it is damped and begun
# elsewhere: mostly a fixed point lies beside the sites that settle with precisions held at zero. (A
# double loop, which descends in EP's free energy, is not defined for QP and would not help EP:
# where these starts fail on square-link counts, damped updates that accept any cavity settle at
# cavities of negative precision, and where they settle is a minimum of that energy; Heskes &
# Zoeter, 2002.)

# Sweeps of one attempt; those that end well take 10 to 60.
_SWEEPS = 100
_DAMPING = 0.5
# Means nearer than this share of a posterior standard deviation are of one fixed point.
_SAME = 1e-3


class Peaks:
    """Different fixed points of one problem, with proper cavities, and their log evidences."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._found: list[tuple[float, Settled]] = []

    def add(self, end: Settled) -> None:
        """Take in what is a fixed point, unless it is known."""
        if not (end.settled and end.proper) or end.held:
            return
        # Rounding may take a variance below zero: such an end has no evidence, and is no peak.
        unit = _SAME * np.sqrt(np.maximum(end.variance, 0.0))
        if any((np.abs(e.factor.mean - end.factor.mean) < unit).all() for _, e in self._found):
            return
        value = evidence_of(self._problem, end)
        if value > -math.inf:
            self._found.append((value, end))

    def extend(self, ends: Iterable[Settled]) -> None:
        """Take in those that are fixed points."""
        for end in ends:
            self.add(end)

    @property
    def values(self) -> tuple[float, ...]:
        """Log evidences, the highest first."""
        return tuple(sorted((value for value, _ in self._found), reverse=True))

    @property
    def best(self) -> Settled | None:
        """The fixed point of the highest evidence, if there is any."""
        return max(self._found, key=lambda peak: peak[0])[1] if self._found else None


def evidence_of(problem: Problem, end: Settled) -> float:
    """Log evidence, minus infinity where it is beyond double precision."""
    try:
        return log_evidence(problem, end)[0]
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return -math.inf


def around(problem: Problem, held: Settled, limits: Limits, trace: Trace) -> Iterator[Settled]:
    """Iterate freely from where held sites settled, from wider ones, and anew from the prior."""
    wide = _as_strong(held.variance, held.factor.mean, held.sites)
    nothing = no_sites(problem.n)
    for start in (held.sites, wide, nothing):
        yield from _attempt(problem, start, limits, trace)
    yield from _attempt(problem, nothing, limits, trace, damped=False)


def drawn(
    problem: Problem, limits: Limits, trace: Trace, rng: np.random.Generator
) -> Iterator[Settled]:
    """Iterate freely from sites as strong as the prior, at a function drawn from it."""
    start = _as_strong(problem.prior.variance, problem.prior.draw(rng), no_sites(problem.n))
    yield from _attempt(problem, start, limits, trace)


def _as_strong(variance: Array, f: Array, otherwise: Sites) -> Sites:
    """Sites at f as strong as a normal of this variance, those given where it has no precision.

    Where neighbours fix f under a vast prior the posterior variance cancels to nothing or below,
    and whether it does depends on the last digits of the linear algebra.
    """
    with np.errstate(all="ignore"):
        tau = 1.0 / variance
        nu = tau * f
    sound = (variance > 0.0) & np.isfinite(tau) & np.isfinite(nu)
    return Sites(np.where(sound, tau, otherwise.tau), np.where(sound, nu, otherwise.nu))


def _attempt(
    problem: Problem, start: Sites, limits: Limits, trace: Trace, *, damped: bool = True
) -> Iterator[Settled]:
    """Yield where a parallel iteration ends, or nothing if double precision does not suffice."""
    some = limits._replace(sweeps=min(limits.sweeps, _SWEEPS))
    try:
        with np.errstate(all="ignore"):
            factor = problem.prior.factor(start)
            if damped:
                some = some._replace(damping=min(limits.damping, _DAMPING))
                yield settle_parallel(problem, start, factor, some, Anderson(), trace)
            else:
                yield settle_mixed(problem, start, factor, some, None, Anderson(), trace)
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise


# --- Log evidence and leave-one-out densities


def log_evidence(problem: Problem, end: Settled) -> tuple[float, Array]:
    """Return log Z_EP and log p(y_i | y_-i), shape (N,) (paper, Eq. 2; R & W, 3.65).

    Raises
    ------
    NumericalError
        If a site has no proper cavity, or the evidence is not finite.
    """
    factor, tau = end.factor, end.sites.tau
    log_z, terms = np.empty(tau.size), np.empty(tau.size)
    rules, prior = problem.judging(), problem.prior.mean
    status, site = site_terms(
        rules, problem.observations, (*end.marginals,), (*end.sites,), prior, log_z, terms
    )
    if status == BEYOND:
        here = end.marginals
        mu, sigma = cavity(here.kept[site], here.variance[site], here.mean[site], here.pull[site])
        projector = problem.projector
        raise_status(status, projector.likelihood, mu, sigma, problem.y[site], projector.table)
    if status != OK:
        problem.projector.likelihood.raise_failure()
        raise NumericalError(
            f"site {site} has no proper cavity (marginal variance {end.variance[site]:.3g}, "
            f"site precision {tau[site]:.3g}): K is too close to singular there for double "
            "precision; add jitter to its diagonal"
        )
    with np.errstate(all="ignore"):  # what overflows is named below
        evidence = terms.sum() - 0.5 * factor.log_det
    if not np.isfinite(evidence):
        raise NumericalError(
            f"the log evidence is {evidence}: an observation has no likelihood left in double "
            "precision under the others; check outliers, or widen the kernel"
        )
    return float(evidence), log_z
