"""Taking the step that sites ask for, and how large it is.

The loops that put the pieces together are in `qpruntime.inference.fixed_point.schedules`.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.parallel import sizes
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.solver import Solved

__all__ = ["advance", "farthest", "measure_change"]


def advance(
    problem: Problem, sites: Sites, d_tau: Array, d_nu: Array, scale: float
) -> tuple[Sites, Solved, int]:
    """Take the step, halved until the posterior is proper; that can only fail with tau < 0."""
    for halvings in range(40):
        new = Sites(sites.tau + scale * d_tau, sites.nu + scale * d_nu)
        try:
            return new, problem.prior.factor(new), halvings
        except ImproperPosterior:
            scale *= 0.5
    raise ImproperPosterior(
        "negative site precisions leave no proper posterior however short the step; "
        "use a smaller prior variance or a prior mean away from zero"
    )


def measure_change(d_tau: Array, d_nu: Array, nu: Array, variance: Array) -> tuple[float, Array]:
    """Root mean squared change of the site parameters, plain or in posterior units if larger.

    Also the changes in posterior units, those of tau before those of nu.
    """
    n = d_tau.size
    step = np.empty(2 * n)
    change = sizes(d_tau, d_nu, nu, variance, step)
    if not np.isfinite(change):
        site = int(np.argmax(np.where(np.isfinite(step[:n] + step[n:]), 0.0, 1.0)))
        raise NumericalError(
            f"the sites grow without bound, site {site} first: observations that the kernel ties "
            "together contradict each other, as equal points with opposite labels do under the "
            'heaviside; use likelihood="probit", or add a WhiteKernel to the kernel'
        )
    return change, step


def farthest(step: Array) -> int:
    """The site that changes most, of changes of tau before those of nu."""
    n = step.size // 2
    return int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
