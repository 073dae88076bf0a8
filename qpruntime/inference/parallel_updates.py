"""Updates of all sites from one posterior, in parallel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime._numba import call_moments, kernel
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.site_kernels import (
    Marginals,
    Observations,
    PlainRules,
    cavity,
    change,
    propose,
)
from qpruntime.inference.sites import Counts, Sites
from qpruntime.inference.solver_protocol import SiteProblem, Solved
from qpruntime.projection.site_kernel import EP
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "match",
    "propose_all",
    "propose_each",
    "propose_matched",
    "sizes",
]

# --- Proposals with matched means


def propose_matched(
    solved: Solved,
    asked: SiteProblem,
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
    solved: Solved, asked: SiteProblem, marginals: tuple[Array, Array], sites: Sites
) -> Sites:
    """Move nu, with tau and so the variances fixed, so that marginal = projected means."""
    here, nu = Marginals(solved.mean, *marginals, solved.weights), sites.nu.copy()
    rules, ignored = asked.matching(), np.zeros(3, dtype=np.int64)
    changes = propose_all(asked, rules, here, sites, ignored)
    match(rules[2], (*here,), (sites.tau, nu), (*changes,))
    solved.relocate(nu)
    return Sites(sites.tau, nu)


def propose_all(
    asked: SiteProblem, rules: PlainRules, marginals: Marginals, sites: Sites, counts: Counts
) -> Sites:
    """Changes of all sites that one and the same posterior asks for."""
    d_tau, d_nu, failure = np.empty(asked.n), np.empty(asked.n), np.zeros(2)
    status, site = propose_each(
        rules, asked.observations, (*marginals,), (*sites,), (d_tau, d_nu), (counts, failure)
    )
    asked.check(status, site, failure)
    return Sites(d_tau, d_nu)


# --- Kernels
#
# Between two factorisations the means are matched first, with the precisions fixed: they couple the
# sites far more than the variances do, and cost a few products with K. One such step saves a third
# of the factorisations, a second one few near the fixed point.


@kernel
def propose_each(
    rules: tuple[Any, ...],
    observed: tuple[Array, Array],
    marginals: Arrays,
    sites: tuple[Array, Array],
    changes: tuple[Array, Array],
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Fill the changes of all sites that one and the same posterior asks for.

    `changes` are sites too, `record` is that of `propose`; returns (status, site).
    """
    mean, variance, kept, pull = marginals
    (tau, nu), (d_tau, d_nu) = sites, changes
    y, exponents = observed
    functions, source, power, nonnegative = rules
    counts, _ = record
    plain = power == 1.0
    for i in range(exponents.size):
        plain = plain and exponents[i] == 1.0
    if source[0] == EP and functions[1] and plain:
        # Half the time of what follows, which has to be ready for everything.
        theta, moments = functions[0], functions[4]
        for i in range(mean.size):
            centre, std = cavity(kept[i], variance[i], mean[i], pull[i])
            finite, d_tau[i], d_nu[i] = False, 0.0, 0.0
            if std > 0.0:
                _, tilted, square = call_moments(moments, centre, std, y[i], theta)
                finite, d_tau[i], d_nu[i] = change(
                    power,
                    nonnegative,
                    centre,
                    std,
                    tilted,
                    math.sqrt(square),
                    tau[i],
                    nu[i],
                )
            counts[2] += not finite
        return OK, 0
    scratch = np.empty((1, 4))
    for i in range(mean.size):
        status, d_tau[i], d_nu[i] = propose(
            rules,
            Observations(y[i], exponents[i]),
            Marginals(mean[i], variance[i], kept[i], pull[i]),
            Sites(tau[i], nu[i]),
            scratch,
            record,
        )
        if status != OK:
            return status, i
    return OK, 0


@kernel
def match(
    power: float, marginals: Arrays, sites: tuple[Array, Array], changes: tuple[Array, Array]
) -> None:
    """Move nu so that the marginal means become the tilted ones of these proposals."""
    mean, variance, kept, _ = marginals
    (tau, nu), (d_tau, d_nu) = sites, changes
    for i in range(nu.size):
        # 1 + variance d_tau, from the cavity: it would cancel where a site dominates.
        remaining = (1.0 - power) + power * (kept[i] + variance[i] * (tau[i] + d_tau[i]))
        tilted = (mean[i] + power * variance[i] * d_nu[i]) / remaining
        step = (tilted - mean[i]) / variance[i]
        # A variance that has cancelled to nothing leaves no cavity: such a site is not moved.
        if math.isfinite(step):
            nu[i] += step


@kernel
def sizes(d_tau: Array, d_nu: Array, nu: Array, variance: Array, step: Array) -> float:
    """Fill the changes in posterior units; return the largest root mean square, inf if not finite.

    Of tau and nu, plain and in posterior units.
    """
    n = d_tau.size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        s, t = d_tau[i] * variance[i], d_nu[i] * math.sqrt(abs(variance[i]))
        step[i], step[n + i] = s, t
        # tau and nu are differences: smaller changes than their rounding are none.
        if not abs(s) < 1e-14:
            a += d_tau[i] * d_tau[i]
        if not abs(d_nu[i]) < 1e-14 * abs(nu[i]):
            b += d_nu[i] * d_nu[i]
        c += s * s
        d += t * t
    if not math.isfinite(a + b + c + d):
        return math.inf
    return math.sqrt(max(a, b, c, d) / n)
