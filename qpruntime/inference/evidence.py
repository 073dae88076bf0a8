"""The log evidence of settled sites, and the leave-one-out densities that come with it."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_terms import site_terms
from qpruntime.inference.site_update import cavity
from qpruntime.projection.kernel import BEYOND, raise_status
from qpruntime.quadrature.sigma_star import OK

__all__ = ["log_evidence"]


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
