"""Matching means and proposing all sites in one kernel: calls from Python cost as much as it does.

All site precisions have to be zero or positive.
"""

from __future__ import annotations

import numpy as np

from qpruntime.inference.dense.triangles import divided, twice
from qpruntime.inference.parallel import match, propose_each
from qpruntime.jit import kernel
from qpruntime.quadrature.sigma_star import OK

__all__ = ["take_turn"]


@kernel
def solve(system, sites, mean):
    """Fill K^-1 (mean - prior) and the posterior mean.

    `system` = (K, prior mean, U, root, weights): U is the upper triangle with B^-1 = U U^T, root
    the diagonal of R, and weights are what is filled.
    """
    K, prior, upper, root, weights = system
    tau, nu = sites
    right, rest = divided(np.diag(K).copy(), tau, nu - tau * prior)
    if rest.any():
        right -= np.dot(K, rest)
    weights[:] = rest + twice(upper, root, right)
    mean[:] = prior + np.dot(K, weights)


@kernel
def take_turn(rules, matching, observed, system, marginals, sites, changes, record):
    """Match the means, then fill the changes of all sites; return (status, site).

    `matching` says how often, and has the rules with the cheapest source of means. Site means,
    posterior means and the weights of `system` are changed in place.
    """
    mean, _, _, _ = marginals
    _, failure = record
    solve(system, sites, mean)
    ignored = np.zeros(3, dtype=np.int64), failure
    steps, cheapest = matching
    _, _, power, _ = rules
    for _ in range(steps):
        status, site = propose_each(cheapest, observed, marginals, sites, changes, ignored)
        if status != OK:
            return status, site
        match(power, marginals, sites, changes)
        solve(system, sites, mean)
    return propose_each(rules, observed, marginals, sites, changes, record)
