"""Iteration to a fixed point of the sites, with restarts, and the evidence there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import HELD, Limits, Trace, finite_evidence
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
from qpruntime.inference.sites import (
    ImproperPosterior,
    Sites,
    no_counts,
    no_sites,
    without_negative,
)
from qpruntime.projection.site_kernel import BEYOND
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
# Sites of a likelihood that is not log-concave may have negative precisions. If these leave another
# site without a proper cavity, `settle` searches for other fixed points. The last resort is to hold
# every precision at zero or above; the result reports for how many sites that matters.

Order = Literal["sequential", "random", "parallel"]
ORDERS = get_args(Order)

# A fixed point of less than half the evidence of the held sites belongs to a lesser peak.
_HELD_EVIDENCE_MARGIN = math.log(2.0)


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
    """Iterate to the fixed point, given checked arguments of `qpruntime.infer`.

    Every site of the result has a proper cavity, if need be with precisions held at zero or above.
    `seek` searches for other fixed points before precisions are held, by four more attempts of a
    hundred sweeps. If it is False, there are at most twice ``limits.sweeps`` sweeps.

    `restarts` has the generator of every further start. The result is the fixed point of highest
    evidence, or the held sites if all fixed points have less than half their evidence.
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
    if best is None or (
        end.held and peaks.values[0] < evidence_of(problem, end) - _HELD_EVIDENCE_MARGIN
    ):
        best = end
    best.peaks = peaks.values
    return best


def count_held(problem: Problem, end: Settled) -> int:
    """Count the sites whose precision would turn negative if it were free."""
    unbound = propose_all(problem, problem.rules(), end.marginals, end.sites, no_counts())
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
    """Iterate once from given sites; unlike in `settle`, cavities may end up improper."""
    trace = trace or Trace()
    start = no_sites(problem.n) if sites is None else sites
    if problem.bounded:
        start = without_negative(start)
    # `measure_change` finds overflows and raises an error that explains them.
    with np.errstate(all="ignore"):
        try:
            factor = problem.prior.factor(start)
        except ImproperPosterior:
            # The sites belong to another K.
            start = without_negative(start)
            factor = problem.prior.factor(start)
        if order == "parallel":
            anderson = accelerator or Anderson()
            return settle_mixed(problem, start, factor, limits, rng, anderson, trace)
        return settle_visiting(problem, start, factor, limits, rng, trace)


# --- Several fixed points
#
# A likelihood that is not log-concave may have no fixed point with proper cavities, one, or
# several, and an iteration from the prior may miss them. The attempts below are damped and start
# elsewhere, because a fixed point is often near the sites that settle with precisions held at zero.
# (A double loop, which descends in EP's free energy, is not defined for QP and would not help EP.
# If these starts fail on square-link counts, damped updates that accept any cavity settle at
# cavities of negative precision, which are a minimum of that energy; Heskes & Zoeter, 2002.)

# Sweeps of one attempt; successful ones take 10 to 60.
_ATTEMPT_SWEEPS = 100
_ATTEMPT_DAMPING = 0.5
# Means closer than this share of a posterior standard deviation belong to one fixed point.
_SAME_MEAN_SHARE = 1e-3


class Peaks:
    """Distinct fixed points of one problem with proper cavities, and their log evidences."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._found: list[tuple[float, Settled]] = []

    def add(self, end: Settled) -> None:
        """Add a result if it is a fixed point that is not known yet."""
        if not (end.settled and end.proper) or end.held:
            return
        # Rounding may leave a variance below zero: such a result has no evidence.
        unit = _SAME_MEAN_SHARE * np.sqrt(np.maximum(end.variance, 0.0))
        if any((np.abs(e.factor.mean - end.factor.mean) < unit).all() for _, e in self._found):
            return
        value = evidence_of(self._problem, end)
        if value > -math.inf:
            self._found.append((value, end))

    def extend(self, ends: Iterable[Settled]) -> None:
        """Add those results that are fixed points."""
        for end in ends:
            self.add(end)

    @property
    def values(self) -> tuple[float, ...]:
        """Log evidences, the highest first."""
        return tuple(sorted((value for value, _ in self._found), reverse=True))

    @property
    def best(self) -> Settled | None:
        """Fixed point of the highest evidence, or None."""
        return max(self._found, key=lambda peak: peak[0])[1] if self._found else None


def evidence_of(problem: Problem, end: Settled) -> float:
    """Return the log evidence, or minus infinity if double precision does not suffice."""
    try:
        return log_evidence(problem, end)[0]
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return -math.inf


def around(problem: Problem, result: Settled, limits: Limits, trace: Trace) -> Iterator[Settled]:
    """Iterate with free precisions from held sites, from wider ones, and from the prior."""
    wide = _sites_at(result.variance, result.factor.mean, result.sites)
    flat = no_sites(problem.n)
    for start in (result.sites, wide, flat):
        yield from _attempt(problem, start, limits, trace)
    yield from _attempt(problem, flat, limits, trace, damped=False)


def drawn(
    problem: Problem, limits: Limits, trace: Trace, rng: np.random.Generator
) -> Iterator[Settled]:
    """Iterate with free precisions from sites as strong as the prior, at a sample of it."""
    start = _sites_at(problem.prior.variance, problem.prior.draw(rng), no_sites(problem.n))
    yield from _attempt(problem, start, limits, trace)


def _sites_at(variance: Array, f: Array, otherwise: Sites) -> Sites:
    """Return sites at f with the precision of a normal, or `otherwise` if the variance is unusable.

    If neighbours fix f under a vast prior, the posterior variance may cancel to zero or below,
    depending on the last digits of the linear algebra.
    """
    with np.errstate(all="ignore"):
        tau = 1.0 / variance
        nu = tau * f
    sound = (variance > 0.0) & np.isfinite(tau) & np.isfinite(nu)
    return Sites(np.where(sound, tau, otherwise.tau), np.where(sound, nu, otherwise.nu))


def _attempt(
    problem: Problem, start: Sites, limits: Limits, trace: Trace, *, damped: bool = True
) -> Iterator[Settled]:
    """Yield the result of a parallel iteration, or nothing if double precision does not suffice."""
    attempt_limits = limits._replace(sweeps=min(limits.sweeps, _ATTEMPT_SWEEPS))
    try:
        with np.errstate(all="ignore"):
            factor = problem.prior.factor(start)
            if damped:
                attempt_limits = attempt_limits._replace(
                    damping=min(limits.damping, _ATTEMPT_DAMPING)
                )
                yield settle_parallel(problem, start, factor, attempt_limits, Anderson(), trace)
            else:
                yield settle_mixed(problem, start, factor, attempt_limits, None, Anderson(), trace)
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
        marginals = end.marginals
        mean, variance, kept, pull = (values[site] for values in marginals)
        problem.check(status, site, cavity(kept, variance, mean, pull))
    if status != OK:
        problem.projector.likelihood.raise_failure()
        raise NumericalError(
            f"site {site} has no proper cavity (marginal variance {end.variance[site]:.3g}, "
            f"site precision {tau[site]:.3g}): K is too close to singular there for double "
            "precision; add jitter to its diagonal"
        )
    with np.errstate(all="ignore"):  # the error below names an overflow
        evidence = terms.sum() - 0.5 * factor.log_det
    return finite_evidence(float(evidence)), log_z
