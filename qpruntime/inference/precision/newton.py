"""Where the sites begin: near the mode, so that parallel updates do not wander.

From sites of nothing parallel EP diverges under wide priors of coefficients. Newton steps on the
log density smoothed by a cavity of variance 1 about the mean exist wherever moments do, at kinks
too.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.steps import advance
from qpruntime.inference.precision.approach import Approach
from qpruntime.inference.problem import Problem
from qpruntime.inference.proposals import propose_all
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites, no_counts, no_sites

__all__ = ["newton_sites"]

#: Steps of a row's mean are cut to so much, and end below so much; so many at most.
_CUT, _NEAR, _MOST = 5.0, 1e-2, 30
#: Share of the latter to which an approach finds means.
_SHARE = 0.1
#: Curvatures at the variances of the rows that are so many times those at 1 ask for steps anew.
_STEEPER = 1.5
#: Least variance, and precision that others are compared with.
_LEAST = 1e-3


def newton_sites(problem: Problem, approach: Approach | None = None) -> Sites:
    """Return sites of the curvature and slope of log Z, at a cavity of variance 1 or less.

    An `approach` finds means and variances without factors.

    At 1 no curvature is above 1. Rows that are known better, as those of large counts, then begin
    with precisions far too small, and matching their means would overshoot: where that is so, steps
    at the variances that the first ones have left follow. Of likelihoods that are not log-concave
    these may have other peaks, and are left out.
    """
    prior, n = problem.prior, problem.n
    mean, ones = prior.mean.copy(), np.ones(n)
    sites = _steps(problem, mean, ones, approach)
    if problem.bounded or not problem.nonnegative:
        return sites
    if approach is None:
        variance = prior.factor(sites).marginals()[0]
    else:
        variance = approach.at(sites, np.inf).diagonal_variance
    variance = np.clip(variance, _LEAST, 1.0)
    if (_curvature(problem, mean, variance)[0] > _STEEPER * np.maximum(sites.tau, _LEAST)).any():
        sites = _steps(problem, mean, variance, approach)
    return sites


def _steps(problem: Problem, mean: Array, variance: Array, approach: Approach | None) -> Sites:
    """Newton steps on log Z at cavities of these variances; means are moved in place."""
    sites = no_sites(problem.n)
    for _ in range(_MOST):
        tau, slope = _curvature(problem, mean, variance)
        tau = np.clip(tau, 0.0, None)
        sites, found = _moved(problem, Sites(tau, slope + tau * mean), approach)
        step = found - mean
        if not (np.abs(step) > _NEAR).any():
            break
        mean += np.clip(step, -_CUT, _CUT)
    return sites


def _moved(problem: Problem, asked: Sites, approach: Approach | None) -> tuple[Sites, Array]:
    """Sites that are asked for, or shorter ones, and the means that they leave."""
    if approach is not None and not approach.far:
        with suppress(NumericalError):
            return asked, approach.at(asked, _SHARE * _NEAR).mean
    sites, factor, _ = advance(problem, no_sites(problem.n), *asked, 1.0)
    return sites, factor.mean


def _curvature(problem: Problem, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Less the second derivative of log Z by the cavity mean, and the first."""
    n = problem.n
    here = Marginals(mean, variance, np.ones(n), np.zeros(n))
    asked = propose_all(problem, problem.matching(), here, no_sites(n), no_counts())
    # From the tilted variance and mean: (1 - tilted/cavity)/cavity, (mean - cavity mean)/cavity.
    tilted = 1.0 / (1.0 / variance + asked.tau)
    slope = (tilted * (asked.nu + mean / variance) - mean) / variance
    return (1.0 - tilted / variance) / variance, slope
