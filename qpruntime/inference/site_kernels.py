"""Update of one site from its cavity, and its terms of the evidence. Kernels only."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qpruntime._numba import inlined, kernel
from qpruntime._restorable import restorable
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.projection.site_kernel import INSIDE, OUTSIDE_GRID, Source, project_site
from qpruntime.quadrature.sigma_star_kernels import NO_MASS, OK, PlainFunctions

__all__ = [
    "Marginals",
    "Observations",
    "PlainRules",
    "Rules",
    "cavity",
    "change",
    "propose",
    "site_terms",
]

# --- Update of one site
#
# The kernels serve the sweeps of solvers and updates of all sites at once. They take named tuples,
# whose fields are arrays over sites or the numbers of one site. Python passes plain tuples of the
# same order (`qpruntime._numba.plain`).


class Rules(NamedTuple):
    """Rules that propose sites.

    `functions` and `source` are those of a `Projector`, `power` is that of power EP, and
    `nonnegative` forbids negative precisions.
    """

    functions: PlainFunctions
    source: Source
    power: float
    nonnegative: bool


#: `Rules` as kernels take them from Python.
PlainRules = tuple[PlainFunctions, Source, float, bool]


class Observations(NamedTuple):
    """Encoded observations, and the powers of their likelihoods, each of shape (N,)."""

    y: Array
    exponents: Array


@restorable("marginals/1")
class Marginals(NamedTuple):
    """Posterior means and variances, and the terms of cavities, each of shape (N,).

    `kept` is 1 - tau variance, and `pull` is K^-1 (mean - prior mean), which equals nu - tau mean.
    Neither is computed by that subtraction, which cancels if a site dominates its marginal.
    """

    mean: Array
    variance: Array
    kept: Array
    pull: Array


@kernel
def cavity(kept: float, variance: float, mean: float, pull: float) -> tuple[float, float]:
    """Return (mean, standard deviation) of the cavity, or standard deviation 0 if it has none.

    `kept` is 1 - tau variance, the share of the marginal's precision that does not come from the
    site, and `pull` is nu - tau mean, the shift of the mean by the site in precision units. Means
    and variances that are not finite give no cavity.
    """
    if not (kept > 0.0 and variance > 0.0):
        return 0.0, 0.0
    square = variance / kept
    centre = mean - pull * square
    # Quadrature would search for the peak without end, or outside its arrays.
    if not (abs(centre) < math.inf and square < math.inf):
        return 0.0, 0.0
    return centre, math.sqrt(square)


@kernel
def change(
    power: float,
    nonnegative: bool,
    cavity_mean: float,
    cavity_std: float,
    mean: float,
    std: float,
    tau: float,
    nu: float,
) -> tuple[bool, float, float]:
    """Return (finite, change of tau, change of nu) that make the marginal N(mean, std^2)."""
    cavity_tau = 1.0 / (cavity_std * cavity_std)
    new_tau = 1.0 / (std * std) - cavity_tau
    if nonnegative:
        # Theorem 2: never negative, but rounding may leave it below zero by about 1e-16.
        new_tau = max(new_tau, 0.0)
    new_nu = mean * (cavity_tau + new_tau) - cavity_mean * cavity_tau
    new_tau /= power
    new_nu /= power
    if not (math.isfinite(new_tau) and math.isfinite(new_nu)):
        return False, 0.0, 0.0
    return True, new_tau - tau, new_nu - nu


@inlined
def propose(
    rules: PlainRules,
    observed: Observations,
    marginal: Marginals,
    site: Any,
    scratch: Array,
    record: tuple[IntArray, Array],
) -> tuple[int, float, float]:
    """Return (status, change of tau, change of nu) for one site with this marginal.

    `observed`, `marginal` and `site` are `Observations`, `Marginals` and `Sites` of one site,
    `scratch` is an array of shape (1, 4), and `record` = (counts, failure) are counts to be added
    to and room for the cavity (mean, std) of a projection that failed. The cavity is without the
    fraction `power` of the site, and the tilted density has the likelihood to `power` times its
    exponent; a site of exponent 0 is dropped.
    """
    functions, source, power, nonnegative = rules
    counts, failure = record
    if observed.exponents == 0.0:
        return OK, -site.tau, -site.nu
    cavity_share = (1.0 - power) + power * marginal.kept
    cavity_mean, cavity_std = cavity(
        cavity_share, marginal.variance, marginal.mean, power * marginal.pull
    )
    if not cavity_std > 0.0:
        counts[2] += 1
        return OK, 0.0, 0.0
    status, _, tilted_mean, std, where = project_site(
        functions,
        source,
        power * observed.exponents,
        cavity_mean,
        cavity_std,
        observed.y,
        scratch,
    )
    if status != OK:
        failure[0], failure[1] = cavity_mean, cavity_std
        return status, 0.0, 0.0
    counts[0] += where == INSIDE
    counts[1] += where == OUTSIDE_GRID
    finite, d_tau, d_nu = change(
        power, nonnegative, cavity_mean, cavity_std, tilted_mean, std, site.tau, site.nu
    )
    counts[2] += not finite
    return OK, d_tau, d_nu


# --- Evidence terms of settled sites


@kernel
def site_terms(
    rules: PlainRules,
    observed: tuple[Array, Array],
    marginals: Arrays,
    sites: tuple[Array, Array],
    prior: Array,
    log_z: Array,
    terms: Array,
) -> tuple[int, int]:
    """Fill log Z of every cavity and the site terms of the evidence; return (status, site).

    `prior` is the prior mean. log_z[i] = log p(y_i | y_-i) counts the observation once, whatever
    its weight, and leaves its whole site out. terms[i] is the site's part of the log evidence apart
    from -log |I + K diag(tau)|/2. If f is measured from the prior mean and the cavity is
    N(m_c, 1/tau_c), it is log Z_i + log(1 + tau/tau_c)/2 - pull m_c/2. The last term combines the
    quadratic forms of Rasmussen & Williams (3.73) and (3.74) by tau_c (m_c - mean) = -pull. Each of
    them is of order tau mean^2, and they cancel if a site dominates its marginal.
    """
    mean, variance, kept, pull = marginals
    tau, _ = sites
    y, weights = observed
    functions, source, power, _ = rules
    scratch = np.empty((1, 4))
    for i in range(mean.size):
        cavity_mean, cavity_std = cavity(kept[i], variance[i], mean[i], pull[i])
        if not cavity_std > 0.0:
            return NO_MASS, i
        status, log_z[i], _, _, _ = project_site(
            functions, source, 1.0, cavity_mean, cavity_std, y[i], scratch
        )
        if status != OK:
            return status, i
        powered_log_z = log_z[i]
        if weights[i] == 0.0:
            # An observation of weight 0 is not projected; its site exp(nu f - tau f^2/2) stays.
            m = mean[i] - prior[i]
            terms[i] = 0.5 * (pull[i] + tau[i] * m) * m
            continue
        if power != 1.0 or weights[i] != 1.0:
            cavity_share = (1.0 - power) + power * kept[i]
            cavity_mean, cavity_std = cavity(cavity_share, variance[i], mean[i], power * pull[i])
            status, powered_log_z, _, _, _ = project_site(
                functions, source, power * weights[i], cavity_mean, cavity_std, y[i], scratch
            )
            if status != OK:
                return status, i
        widened = math.log1p(power * tau[i] * cavity_std * cavity_std)
        terms[i] = (powered_log_z + 0.5 * widened) / power
        terms[i] -= 0.5 * pull[i] * (cavity_mean - prior[i])
    return OK, 0
