"""What one posterior asks of all sites at once, whatever its solver."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.parallel import match, propose_each
from qpruntime.inference.site_update import Marginals, PlainRules
from qpruntime.inference.sites import Counts, Sites
from qpruntime.inference.solver import Asked, Solved

__all__ = ["propose_all", "propose_matched"]


def propose_matched(
    solved: Solved,
    asked: Asked,
    marginals: tuple[Array, Array],
    sites: Sites,
    steps: int,
    counts: Counts,
) -> tuple[Sites, Array, Array]:
    """`Solved.propose` by the other methods of the contract."""
    variance, kept = marginals
    for _ in range(steps):
        sites = match_means(solved, asked, marginals, sites)
    here = Marginals(solved.mean, variance, kept, solved.weights)
    return sites, *propose_all(asked, asked.rules(), here, sites, counts)


def match_means(
    solved: Solved, asked: Asked, marginals: tuple[Array, Array], sites: Sites
) -> Sites:
    """Move nu, with tau and so the variances fixed, so that marginal = projected means."""
    here, nu = Marginals(solved.mean, *marginals, solved.weights), sites.nu.copy()
    rules, ignored = asked.matching(), np.zeros(3, dtype=np.int64)
    changes = propose_all(asked, rules, here, sites, ignored)
    match(rules[2], (*here,), (sites.tau, nu), (*changes,))
    solved.relocate(nu)
    return Sites(sites.tau, nu)


def propose_all(
    asked: Asked, rules: PlainRules, marginals: Marginals, sites: Sites, counts: Counts
) -> Sites:
    """Changes of all sites that one and the same posterior asks for."""
    d_tau, d_nu, failure = np.empty(asked.n), np.empty(asked.n), np.zeros(2)
    status, site = propose_each(
        rules, asked.observations, (*marginals,), (*sites,), (d_tau, d_nu), (counts, failure)
    )
    asked.check(status, site, failure)
    return Sites(d_tau, d_nu)
