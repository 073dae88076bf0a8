"""What one posterior asks of all sites at once: the kernels of the parallel order.

Between two factorisations the means are matched first, with the precisions fixed: they couple the
sites far more than the variances do, and cost a few products with K. One such step saves a third
of the factorisations, a second one few near the fixed point.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.dense.factor import divided, twice
from qpruntime.inference.sequential import cavity, change, propose
from qpruntime.jit import call_moments, kernel
from qpruntime.projection.kernel import EP
from qpruntime.quadrature.sigma_star import OK

__all__ = ["match", "parallel", "sizes", "take_turn"]


@kernel
def parallel(
    functions,
    source,
    power,
    weights,
    kept,
    variance,
    mean,
    tau,
    nu,
    y,
    log_concave,
    d_tau,
    d_nu,
    counts,
    failure,
):
    """Fill the changes of all sites that one and the same posterior asks for."""
    if source[0] == EP and functions[1] and power == 1.0 and weights.min() == 1.0 == weights.max():
        # Half the time of what follows, which has to be ready for everything.
        theta, moments = functions[0], functions[4]
        for i in range(mean.size):
            centre, std = cavity(kept[i], variance[i], mean[i], nu[i])
            finite, d_tau[i], d_nu[i] = False, 0.0, 0.0
            if std > 0.0:
                _, tilted, square = call_moments(moments, centre, std, y[i], theta)
                finite, d_tau[i], d_nu[i] = change(
                    power, log_concave, centre, std, tilted, math.sqrt(square), tau[i], nu[i]
                )
            counts[2] += not finite
        return OK, 0
    scratch = np.empty((1, 4))
    for i in range(mean.size):
        status, d_tau[i], d_nu[i] = propose(
            functions,
            source,
            power,
            weights[i],
            kept[i],
            variance[i],
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
    return OK, 0


@kernel
def match(power, kept, variance, mean, tau, nu, d_tau, d_nu):
    """Move nu so that the marginal means become the tilted ones of these proposals."""
    for i in range(nu.size):
        # 1 + variance d_tau, from the cavity: it would cancel where a site dominates.
        remaining = (1.0 - power) + power * (kept[i] + variance[i] * (tau[i] + d_tau[i]))
        tilted = (mean[i] + power * variance[i] * d_nu[i]) / remaining
        nu[i] += (tilted - mean[i]) / variance[i]


@kernel
def solve(K, upper, root, prior, tau, nu, weights, mean):
    """Fill K^-1 (mean - prior) and the posterior mean; U = `upper` has B^-1 = U U^T."""
    right, rest = divided(np.diag(K).copy(), tau, nu - tau * prior)
    if rest.any():
        right -= np.dot(K, rest)
    weights[:] = rest + twice(upper, root, right)
    mean[:] = prior + np.dot(K, weights)


@kernel
def take_turn(
    functions,
    without_table,
    source,
    power,
    exponents,
    K,
    upper,
    root,
    prior,
    kept,
    variance,
    tau,
    nu,
    y,
    steps,
    log_concave,
    weights,
    mean,
    d_tau,
    d_nu,
    counts,
    failure,
):
    """Match the means `steps` times, then fill the changes of all sites; return (status, site).

    `nu` is changed in place; `weights` and `mean` are filled as by `solve`. All site precisions
    have to be zero or positive.
    """
    solve(K, upper, root, prior, tau, nu, weights, mean)
    ignored = np.zeros(3, dtype=np.int64)
    for _ in range(steps):
        status, site = parallel(
            functions,
            without_table,
            power,
            exponents,
            kept,
            variance,
            mean,
            tau,
            nu,
            y,
            log_concave,
            d_tau,
            d_nu,
            ignored,
            failure,
        )
        if status != OK:
            return status, site
        match(power, kept, variance, mean, tau, nu, d_tau, d_nu)
        solve(K, upper, root, prior, tau, nu, weights, mean)
    return parallel(
        functions,
        source,
        power,
        exponents,
        kept,
        variance,
        mean,
        tau,
        nu,
        y,
        log_concave,
        d_tau,
        d_nu,
        counts,
        failure,
    )


@kernel
def sizes(d_tau, d_nu, variance, step):
    """Fill the changes in posterior units; return the largest root mean square, inf if not finite.

    Of tau and nu, plain and in posterior units.
    """
    n = d_tau.size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        s, t = d_tau[i] * variance[i], d_nu[i] * math.sqrt(abs(variance[i]))
        step[i], step[n + i] = s, t
        # tau is the difference of two precisions: smaller changes than their rounding are none.
        if not abs(s) < 1e-14:
            a += d_tau[i] * d_tau[i]
        b += d_nu[i] * d_nu[i]
        c += s * s
        d += t * t
    if not math.isfinite(a + b + c + d):
        return math.inf
    return math.sqrt(max(a, b, c, d) / n)
