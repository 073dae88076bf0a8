"""Settled sites become a `Posterior`."""

from __future__ import annotations

from qpruntime.inference.dense.solution import DenseSolution
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.observed import Observed
from qpruntime.inference.outcome import Lookups, Outcome
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem

__all__ = ["outcome_of", "summarise"]


def outcome_of(problem: Problem, end: Settled, evidence: float) -> Outcome:
    """Return what is reported of settled sites, whatever holds their posterior."""
    trace, projector = end.trace, problem.projector
    return Outcome(
        likelihood=projector.likelihood.spelt,
        method=projector.method,
        n=problem.n,
        log_evidence=evidence,
        status=end.status,
        n_sweeps=len(trace.history),
        history=tuple(trace.history),
        lookups=Lookups(int(trace.counts[0]), int(trace.counts[1])),
        skipped=int(trace.counts[2]),
        damped=trace.damped,
        held=end.held,
        worst=int(end.worst),
        fixed_points=end.peaks or ((evidence,) if end.status == "converged" else ()),
    )


def summarise(problem: Problem, end: Settled) -> Posterior:
    """Compute evidence and cavities of settled sites."""
    evidence, log_z = log_evidence(problem, end)
    if end.bound is not None:
        evidence = end.bound
    outcome = outcome_of(problem, end, evidence)
    prior = problem.prior
    given = problem.y, prior.mean, problem.projector.likelihood, problem.power, problem.weights
    rows = end.sites, end.factor.mean, end.variance, log_z
    solution = DenseSolution(*rows, end.factor.keep(), Observed(prior.covariance, *given))
    return Posterior._of(outcome, solution)
