"""One sweep from site to site where the posterior is held by the latent values' covariance."""

from __future__ import annotations

import numpy as np

from qpruntime.inference.site_update import Marginals, Observations, propose
from qpruntime.inference.sites import Sites
from qpruntime.jit import kernel
from qpruntime.quadrature.sigma_star import OK

__all__ = ["visit"]


@kernel
def visit(rules, observed, features, posterior, prior, sites, visits, damping, record):
    """Update sites in the order of `visits`; return a status and the site it belongs to.

    `posterior` are the covariance (r, r) and the mean (r,) of the coordinates whose products with
    `features` (N, r) the sites see, beside their prior means (N,). Both change in place, as do the
    sites and the counts of `record`.
    """
    covariance, centre = posterior
    tau, nu = sites
    y, exponents = observed
    r = centre.size
    scratch = np.empty((1, 4))
    for i in visits:
        row = features[i]
        spread = np.dot(covariance, row)
        variance, mean = np.dot(row, spread), prior[i] + np.dot(row, centre)
        status, d_tau, d_nu = propose(
            rules,
            Observations(y[i], exponents[i]),
            Marginals(mean, variance, 1.0 - tau[i] * variance, nu[i] - tau[i] * mean),
            Sites(tau[i], nu[i]),
            scratch,
            record,
        )
        if status != OK:
            return status, i
        d_tau *= damping
        d_nu *= damping
        tau[i] += d_tau
        nu[i] += d_nu
        shrink = 1.0 + d_tau * variance
        step, scale = (d_nu - d_tau * mean) / shrink, d_tau / shrink
        for j in range(r):
            centre[j] += step * spread[j]
            factor, line = scale * spread[j], covariance[j]
            for k in range(r):
                line[k] -= factor * spread[k]
    return OK, 0
