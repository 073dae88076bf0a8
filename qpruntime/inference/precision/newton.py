"""Where the sites begin: near the mode, so that parallel updates do not wander.

From sites of nothing parallel EP diverges under wide priors of coefficients. Newton steps on the
log density smoothed by a cavity of variance 1 about the mean exist wherever moments do, at kinks
too.
"""

from __future__ import annotations

import numpy as np

from qpruntime.inference.fixed_point.steps import advance
from qpruntime.inference.problem import Problem
from qpruntime.inference.proposals import propose_all
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites, no_counts, no_sites

__all__ = ["newton_sites"]

#: Steps of a row's mean are cut to so much, and end below so much; so many at most.
_CUT, _NEAR, _MOST = 5.0, 1e-2, 30


def newton_sites(problem: Problem) -> Sites:
    """Return sites of the curvature and slope of log Z at a cavity of variance 1."""
    prior = problem.prior
    mean, n = prior.mean.copy(), problem.n
    unit, nothing = np.ones(n), no_sites(n)
    sites = nothing
    for _ in range(_MOST):
        here = Marginals(mean, unit, unit, np.zeros(n))
        asked = propose_all(problem, problem.matching(), here, nothing, no_counts())
        # The tilted variance and mean: curvature 1 - variance, slope mean - (cavity mean).
        variance = 1.0 / (1.0 + asked.tau)
        slope = variance * (asked.nu + mean) - mean
        tau = np.clip(1.0 - variance, 0.0, None)
        sites, factor, _ = advance(problem, nothing, tau, slope + tau * mean, 1.0)
        step = factor.mean - mean
        if not (np.abs(step) > _NEAR).any():
            break
        mean += np.clip(step, -_CUT, _CUT)
    return sites
