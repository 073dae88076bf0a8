"""What settled sites add to the log evidence: log Z of every cavity, and each site's own term."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.site_update import cavity
from qpruntime.jit import kernel
from qpruntime.projection.kernel import project_site
from qpruntime.quadrature.sigma_star import NO_MASS, OK

__all__ = ["site_terms"]


@kernel
def site_terms(rules, observed, marginals, sites, prior, log_z, terms):
    """Fill log Z of every cavity and the site terms of the evidence; return (status, site).

    `prior` is the prior mean. log_z[i] = log p(y_i | y_-i), of one observation whatever its weight
    and without its whole site. terms[i] = log of the site's normaliser, written for f measured from
    the prior mean: log Z_i + log(1 + tau/tau_c)/2 + (tau_c m_c (tau m_c - 2 nu) - nu^2)/(2 (tau_c +
    tau)), the stable form of Rasmussen & Williams (3.73) and (3.74), for the fraction `power` of
    the site.
    """
    mean, variance, kept = marginals
    tau, nu = sites
    y, weights = observed
    functions, source, power, _ = rules
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
