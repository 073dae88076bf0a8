"""What one posterior asks of all sites at once: kernels and loops of the parallel order.

Between two factorisations the means are matched first, with the precisions fixed: they couple the
sites far more than the variances do, and cost a few products with K. One such step saves a third
of the factorisations, a second one few near the fixed point.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.site_update import Marginals, Observations, cavity, change, propose
from qpruntime.inference.sites import Sites
from qpruntime.jit import call_moments, kernel
from qpruntime.projection.kernel import EP
from qpruntime.quadrature.sigma_star import OK

__all__ = ["match", "propose_each", "sizes"]


@kernel
def propose_each(rules, observed, marginals, sites, changes, record):
    """Fill the changes of all sites that one and the same posterior asks for.

    `changes` are sites too, `record` is that of `propose`; returns (status, site).
    """
    mean, variance, kept, pull = marginals
    (tau, nu), (d_tau, d_nu) = sites, changes
    y, exponents = observed
    functions, source, power, nonnegative = rules
    counts, _ = record
    plain = power == 1.0 and exponents.min() == 1.0 == exponents.max()
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
def match(power, marginals, sites, changes):
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
def sizes(d_tau, d_nu, nu, variance, step):
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
