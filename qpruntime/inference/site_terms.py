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
    and without its whole site. terms[i] is what the site adds to the log evidence besides its share
    of -log |I + K diag(tau)|/2. For f measured from the prior mean and a cavity N(m_c, 1/tau_c):
    log Z_i + log(1 + tau/tau_c)/2 - pull m_c/2: the quadratic forms of Rasmussen & Williams (3.73)
    and (3.74), nu' mean/2 among them, are the last term when tau_c (m_c - mean) = -pull is put in.
    They are of order tau mean^2 each, and cancel where a site dominates its marginal.
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
        own_log_z = log_z[i]
        if weights[i] == 0.0:
            # Dropped, or about to be: nothing is projected on its site exp(nu f - tau f^2/2).
            m = mean[i] - prior[i]
            terms[i] = 0.5 * (pull[i] + tau[i] * m) * m
            continue
        if power != 1.0 or weights[i] != 1.0:
            own = (1.0 - power) + power * kept[i]
            cavity_mean, cavity_std = cavity(own, variance[i], mean[i], power * pull[i])
            status, own_log_z, _, _, _ = project_site(
                functions, source, power * weights[i], cavity_mean, cavity_std, y[i], scratch
            )
            if status != OK:
                return status, i
        widened = math.log1p(power * tau[i] * cavity_std * cavity_std)
        terms[i] = (own_log_z + 0.5 * widened) / power
        terms[i] -= 0.5 * pull[i] * (cavity_mean - prior[i])
    return OK, 0
