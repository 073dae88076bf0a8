"""Settled sites become a `Posterior`."""

from __future__ import annotations

from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.observed import Observed
from qpruntime.inference.posterior import Lookups, Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.schedules import Settled

__all__ = ["summarise"]


def summarise(problem: Problem, end: Settled) -> Posterior:
    """Compute evidence and cavities of settled sites."""
    evidence, log_z = log_evidence(problem, end)
    if end.bound is not None:
        evidence = end.bound
    trace = end.trace
    return Posterior(
        sites=end.sites,
        mean=end.factor.mean,
        variance=end.variance,
        log_evidence=evidence,
        status=end.status,
        n_sweeps=len(trace.history),
        history=tuple(trace.history),
        lookups=Lookups(int(trace.counts[0]), int(trace.counts[1])),
        skipped=int(trace.counts[2]),
        damped=trace.damped,
        held=end.held,
        fixed_points=end.peaks or ((evidence,) if end.status == "converged" else ()),
        worst=int(end.worst),
        likelihood=problem.projector.likelihood.spelt,
        method=problem.projector.method,
        log_z=log_z,
        factor=end.factor.keep(),
        observed=Observed(
            problem.prior.covariance,
            problem.y,
            problem.prior.mean,
            problem.projector.likelihood,
            problem.power,
            problem.weights,
        ),
    )
