"""Updates of all sites from one posterior, in parallel."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel, shared
from qpruntime._pointers import call_moments
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.site_kernels import (
    Marginals,
    Observations,
    PlainRules,
    cavity,
    change,
    propose,
)
from qpruntime.inference.sites import Counts, Sites, no_counts
from qpruntime.inference.solver_protocol import SiteProblem, Solved
from qpruntime.projection.site_kernel import EP
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "match",
    "matched",
    "propose_all",
    "propose_each",
    "propose_matched",
    "sizes",
]

# --- Proposals with matched means


def propose_matched(
    solved: Solved,
    problem: SiteProblem,
    marginals: tuple[Array, Array],
    sites: Sites,
    steps: int,
    counts: Counts,
) -> tuple[Sites, Array, Array]:
    """Implement `Solved.propose` by the other methods of the contract."""
    for _ in range(steps):
        nu = matched(problem, Marginals(solved.mean, *marginals, solved.weights), sites)
        solved.relocate(nu)
        sites = Sites(sites.tau, nu)
    posterior = Marginals(solved.mean, *marginals, solved.weights)
    return sites, *propose_all(problem, problem.rules(), posterior, sites, counts)


def matched(problem: SiteProblem, marginals: Marginals, sites: Sites) -> Array:
    """Return the nu (N,) that would each alone match its site's mean, with tau fixed."""
    rules, nu = problem.matching(), sites.nu.copy()
    changes = propose_all(problem, rules, marginals, sites, no_counts())
    match(rules[2], (*marginals,), (sites.tau, nu), (*changes,))
    return nu


def propose_all(
    problem: SiteProblem, rules: PlainRules, marginals: Marginals, sites: Sites, counts: Counts
) -> Sites:
    """Return the changes of all sites that one posterior proposes."""
    d_tau, d_nu, failure = np.empty(problem.n), np.empty(problem.n), np.zeros(2)
    status, site = propose_each(
        rules, problem.observations, (*marginals,), (*sites,), (d_tau, d_nu), (counts, failure)
    )
    problem.check(status, site, failure)
    return Sites(d_tau, d_nu)


# --- Kernels
#
# Between two factorisations the means are matched first, with the precisions fixed, because they
# couple the sites far more than the variances do and cost only a few products with K. One such step
# saves a third of the factorisations; a second one saves few near the fixed point.


@shared
@kernel
def propose_each(
    rules: PlainRules,
    observed: tuple[Array, Array],
    marginals: Arrays,
    sites: tuple[Array, Array],
    changes: tuple[Array, Array],
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Fill the changes of all sites that one posterior proposes, and return (status, site).

    `changes` are (d_tau, d_nu), and `record` is that of `propose`.
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
        # This path takes half the time of the general one below.
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


@shared
@kernel
def match(
    power: float, marginals: Arrays, sites: tuple[Array, Array], changes: tuple[Array, Array]
) -> None:
    """Move nu so that the marginal means become the tilted means of these proposals."""
    mean, variance, kept, _ = marginals
    (tau, nu), (d_tau, d_nu) = sites, changes
    for i in range(nu.size):
        # The term 1 + variance d_tau is computed from the cavity, because it would cancel if a site
        # dominates.
        remaining = (1.0 - power) + power * (kept[i] + variance[i] * (tau[i] + d_tau[i]))
        tilted = (mean[i] + power * variance[i] * d_nu[i]) / remaining
        step = (tilted - mean[i]) / variance[i]
        # A variance that has cancelled to zero leaves no cavity: such a site is not moved.
        if math.isfinite(step):
            nu[i] += step


@kernel
def sizes(
    d_tau: Array, d_nu: Array, nu: Array, variance: Array, rounding: Array, step: Array
) -> float:
    """Fill the changes in posterior units, and return the largest root mean square.

    The maximum is over tau and nu, plain and in posterior units, and is inf if not finite. Changes
    of tau in posterior units, and of nu relative to its size or in posterior units, count only if
    they are above `rounding`, shape (N,), because tau and nu are differences.
    """
    n = d_tau.size
    tau_sum, nu_sum, scaled_tau_sum, scaled_nu_sum = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        scaled_tau, scaled_nu = d_tau[i] * variance[i], d_nu[i] * math.sqrt(abs(variance[i]))
        step[i], step[n + i] = scaled_tau, scaled_nu
        if not abs(scaled_tau) < rounding[i]:
            tau_sum += d_tau[i] * d_tau[i]
            scaled_tau_sum += scaled_tau * scaled_tau
        if not (abs(d_nu[i]) < rounding[i] * abs(nu[i]) or abs(scaled_nu) < rounding[i]):
            nu_sum += d_nu[i] * d_nu[i]
            scaled_nu_sum += scaled_nu * scaled_nu
    if not math.isfinite(tau_sum + nu_sum + scaled_tau_sum + scaled_nu_sum):
        return math.inf
    largest = max(max(tau_sum, nu_sum), max(scaled_tau_sum, scaled_nu_sum))
    return math.sqrt(largest / n)
