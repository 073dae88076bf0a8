"""Problems of classes jointly, and settled ones as a `ClassPosterior`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.classes.rows import leave_rows_out
from qpruntime.inference.classes.solution import ClassSolution
from qpruntime.inference.classes.solved import ClassPrior, ClassSolved
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.inference.summary import outcome_of
from qpruntime.projection.projector import Projector

__all__ = ["concluded", "left_out_of", "problem_of", "solution_of"]


def problem_of(K: Array, layout: Layout, projector: Projector) -> Problem:
    """Return the problem: all sites see that the own class is the larger, by a probit."""
    return Problem(ClassPrior(K, layout), np.ones(layout.sites), projector)


def solution_of(
    solved: ClassSolved, layout: Layout, K: Array, sites: Sites, left_out: Callable[[], Array]
) -> ClassSolution:
    """Return what is left of a posterior of these sites; `left_out` computes their densities."""
    mean = np.ascontiguousarray(solved.solution()[1].T)
    return ClassSolution(layout, sites, mean, left_out, solved.keep(), K)


def left_out_of(layout: Layout, solved: ClassSolved, end: Settled) -> Callable[[], Array]:
    """Return what computes the leave-one-out log probabilities of rows, when they are asked for."""

    def left_out() -> Array:
        log_z = np.empty(layout.n)
        sites = tuple(end.marginals), tuple(end.sites)
        row = leave_rows_out(solved.rows(), layout.others, *sites, log_z)
        if row >= 0:
            raise NumericalError(
                f"row {row} has no posterior without its own sites: K is too close to singular "
                "there for double precision; add jitter to its diagonal"
            )
        return log_z

    return left_out


def concluded(problem: Problem, end: Settled, jitter: float = 0.0) -> ClassPosterior:
    """Return the posterior of settled sites.

    Raises
    ------
    NumericalError
        If a site has no proper cavity, or the evidence is not finite.
    """
    solved, prior = end.factor, problem.prior
    assert isinstance(solved, ClassSolved)
    assert isinstance(prior, ClassPrior)
    layout = prior.layout
    evidence, _ = log_evidence(problem, end)
    left_out = left_out_of(layout, solved, end)
    # Counted by rows, of which each has a site for every other class.
    found = outcome_of(problem, end, evidence)
    outcome = found.but(n=layout.n, worst=int(layout.rows[end.worst]), jitter=jitter)
    return ClassPosterior._of(outcome, solution_of(solved, layout, prior.K, end.sites, left_out))
