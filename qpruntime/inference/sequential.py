"""One sequential EP/QP sweep with delayed rank-one updates (paper, Algorithm 1).

Every site update changes the posterior covariance by a rank-one term. A panel keeps the last
`BLOCK` of them, so that a row of the current covariance is a row of the stored matrix less a
short sum, and the stored matrix is updated block by block with level-3 BLAS. Nothing that belongs
to a site already visited is needed again before the refresh that follows a sweep, so only the
trailing upper triangle is kept: as many operations as one Cholesky factorisation. The sites are
those of the plain loop up to rounding.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import inlined, kernel
from qpruntime.projection.kernel import INSIDE, OUTSIDE_GRID, project_site
from qpruntime.quadrature.sigma_star import NO_MASS, OK

__all__ = ["BLOCK", "cavity", "change", "propose", "site_terms", "sweep"]

#: Pending rank-one updates before they are applied.
BLOCK = 64
_ROWS = 256


@kernel
def cavity(kept, variance, mean, nu):
    """Return (mean, standard deviation) of the cavity, or standard deviation 0 if it has none.

    `kept` is 1 - tau variance, the share of the marginal's precision that is not the site's own.
    """
    if not (kept > 0.0 and variance > 0.0):
        return 0.0, 0.0
    return (mean - nu * variance) / kept, math.sqrt(variance / kept)


@kernel
def change(power, log_concave, cavity_mean, cavity_std, mean, std, tau, nu):
    """Return (finite, change of tau, change of nu): the marginal is to be N(mean, std^2)."""
    cavity_tau = 1.0 / (cavity_std * cavity_std)
    new_tau = 1.0 / (std * std) - cavity_tau
    if log_concave:
        # Theorem 2: never negative; what rounding leaves below zero is of order 1e-16.
        new_tau = max(new_tau, 0.0)
    new_nu = mean * (cavity_tau + new_tau) - cavity_mean * cavity_tau
    new_tau /= power
    new_nu /= power
    if not (math.isfinite(new_tau) and math.isfinite(new_nu)):
        return False, 0.0, 0.0
    return True, new_tau - tau, new_nu - nu


@inlined
def propose(
    functions,
    source,
    power,
    weight,
    kept,
    variance,
    mean,
    tau,
    nu,
    y,
    log_concave,
    scratch,
    counts,
    failure,
):
    """Return (status, change of tau, change of nu) for one site with this marginal.

    The cavity is without the fraction `power` of the site, and the tilted density has the
    likelihood to `power` times `weight`; a site of weight 0 is dropped.
    """
    if weight == 0.0:
        return OK, -tau, -nu
    own = (1.0 - power) + power * kept
    cavity_mean, cavity_std = cavity(own, variance, mean, power * nu)
    if not cavity_std > 0.0:
        counts[2] += 1
        return OK, 0.0, 0.0
    status, _, tilted_mean, std, where = project_site(
        functions, source, power * weight, cavity_mean, cavity_std, y, scratch
    )
    if status != OK:
        failure[0], failure[1] = cavity_mean, cavity_std
        return status, 0.0, 0.0
    counts[0] += where == INSIDE
    counts[1] += where == OUTSIDE_GRID
    finite, d_tau, d_nu = change(
        power, log_concave, cavity_mean, cavity_std, tilted_mean, std, tau, nu
    )
    counts[2] += not finite
    return OK, d_tau, d_nu


@kernel
def apply_panel(covariance, panel, weight, count, start):
    """covariance -= panel.T diag(weight) panel on the upper triangle from row `start` on."""
    n = covariance.shape[0]
    for top in range(start, n, _ROWS):
        bottom = min(top + _ROWS, n)
        left = np.empty((bottom - top, count))
        for r in range(top, bottom):
            for b in range(count):
                left[r - top, b] = weight[b] * panel[b, r]
        change = np.dot(left, np.ascontiguousarray(panel[:count, top:]))
        for r in range(top, bottom):
            row, less = covariance[r, r:], change[r - top, r - top :]
            for c in range(n - r):
                row[c] -= less[c]


@kernel
def sweep(
    functions,
    source,
    power,
    weights,
    covariance,
    mean,
    tau,
    nu,
    y,
    log_concave,
    damping,
    counts,
    failure,
):
    """Update every site once, first to last; return a status and the site it belongs to.

    Changes in place the site parameters `tau` (precision) and `nu` (precision times mean) and
    `counts`: lookups inside and outside a grid, and sites skipped because they had no proper
    cavity. Uses up `covariance` (N, N), of which only the upper triangle is read, and `mean`
    (N,): both are to be recomputed from the sites.
    """
    n = mean.size
    panel = np.empty((BLOCK, n))
    weight = np.empty(BLOCK)
    scratch = np.empty((1, 4))
    row = np.empty(n)
    pending = 0
    for i in range(n):
        # Slices counted from 0 become vector instructions, ranges from i on do not.
        rest, stored = row[i:], covariance[i, i:]
        for j in range(n - i):
            rest[j] = stored[j]
        for b in range(pending):
            scale, past = weight[b] * panel[b, i], panel[b, i:]
            for j in range(n - i):
                rest[j] -= scale * past[j]
        status, d_tau, d_nu = propose(
            functions,
            source,
            power,
            weights[i],
            1.0 - tau[i] * row[i],
            row[i],
            mean[i],
            tau[i],
            nu[i],
            y[i],
            log_concave,
            scratch,
            counts,
            failure,
        )
        if status != OK:
            return status, i
        d_tau *= damping
        d_nu *= damping
        tau[i] += d_tau
        nu[i] += d_nu
        shrink = 1.0 + d_tau * row[i]
        step = (d_nu - d_tau * mean[i]) / shrink
        means, present = mean[i:], panel[pending, i:]
        for j in range(n - i):
            means[j] += step * rest[j]
            present[j] = rest[j]
        weight[pending] = d_tau / shrink
        pending += 1
        if pending == BLOCK:
            apply_panel(covariance, panel, weight, pending, i + 1)
            pending = 0
    return OK, 0


@kernel
def site_terms(
    functions,
    source,
    power,
    weights,
    kept,
    variance,
    mean,
    prior,
    tau,
    nu,
    y,
    log_z,
    terms,
):
    """Fill log Z of every cavity and the site terms of the evidence; return (status, site).

    log_z[i] = log p(y_i | y_-i), of one observation whatever its weight and without its whole
    site. terms[i] = log of the site's normaliser, written for f measured from the prior mean:
    log Z_i + log(1 + tau/tau_c)/2 + (tau_c m_c (tau m_c - 2 nu) - nu^2)/(2 (tau_c + tau)), the
    stable form of Rasmussen & Williams (3.73) and (3.74), for the fraction `power` of the site.
    """
    scratch = np.empty((1, 4))
    for i in range(mean.size):
        cavity_mean, cavity_std = cavity(kept[i], variance[i], mean[i], nu[i])
        if not cavity_std > 0.0:
            return NO_MASS, i
        status, log_z[i], _, _, _ = project_site(
            functions, source, 1.0, cavity_mean, cavity_std, y[i], scratch
        )
        if status != OK:
            return status, i
        own_log_z = log_z[i]
        if weights[i] == 0.0:
            terms[i] = 0.0
            continue
        if power != 1.0 or weights[i] != 1.0:
            own = (1.0 - power) + power * kept[i]
            cavity_mean, cavity_std = cavity(own, variance[i], mean[i], power * nu[i])
            status, own_log_z, _, _, _ = project_site(
                functions, source, power * weights[i], cavity_mean, cavity_std, y[i], scratch
            )
            if status != OK:
                return status, i
        t, v = power * tau[i], power * nu[i]
        cavity_tau = 1.0 / (cavity_std * cavity_std)
        m = cavity_mean - prior[i]
        shifted = v - t * prior[i]
        quadratic = cavity_tau * m * (t * m - 2.0 * shifted) - shifted * shifted
        terms[i] = own_log_z + 0.5 * math.log1p(t / cavity_tau)
        terms[i] = (terms[i] + 0.5 * quadratic / (cavity_tau + t)) / power
    return OK, 0
