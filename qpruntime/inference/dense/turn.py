"""Matching means and proposing all sites in one kernel: calls from Python cost as much as it does.

All site precisions have to be zero or positive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.dense.triangles import divided, twice
from qpruntime.inference.parallel import match, propose_each
from qpruntime.inference.site_update import Record
from qpruntime.jit import kernel
from qpruntime.quadrature.sigma_star import OK

__all__ = ["System", "take_turn"]


class System(NamedTuple):
    """A prior, and the factor of its posterior: U = `upper` has B^-1 = U U^T, R = diag(root).

    `weights` (N,) is to be filled with K^-1 (posterior mean - prior mean).
    """

    K: Array
    prior: Array
    upper: Array
    root: Array
    weights: Array


@kernel
def solve(system, sites, mean):
    """Fill K^-1 (mean - prior) and the posterior mean."""
    K, prior = system.K, system.prior
    right, rest = divided(np.diag(K).copy(), sites.tau, sites.nu - sites.tau * prior)
    if rest.any():
        right -= np.dot(K, rest)
    system.weights[:] = rest + twice(system.upper, system.root, right)
    mean[:] = prior + np.dot(K, system.weights)


@kernel
def take_turn(rules, matching, observed, system, marginals, sites, change, record):
    """Match the means, then fill the changes of all sites; return (status, site).

    `matching` says how often, and has the rules with the cheapest source of means. Site means
    `sites.nu`, posterior means `marginals.mean` and the weights of `system` are changed in place.
    """
    solve(system, sites, marginals.mean)
    ignored = Record(np.zeros(3, dtype=np.int64), record.failure)
    steps, cheapest = matching
    for _ in range(steps):
        status, site = propose_each(cheapest, observed, marginals, sites, change, ignored)
        if status != OK:
            return status, site
        match(rules.power, marginals, sites, change)
        solve(system, sites, marginals.mean)
    return propose_each(rules, observed, marginals, sites, change, record)
