"""Log probability that all of few correlated latents pass their probits: EP, then pairs.

EP on one probit for each latent, whose posterior is updated after every one, and the evidence
corrected by the pairs of third and fourth cumulants of the tilted marginals (after Opper, Paquet &
Winther, 2013, section 4.3).
"""

from __future__ import annotations

import math

from qpruntime.jit import kernel, summed
from qpruntime.special import log_ndtr, probit_series

__all__ = ["log_passes"]

# The evidence is stationary in the sites: what they still change by counts squared.
_TOL, _SWEEPS = 1e-5, 60
# Correlations are below 1 by rounding only where latents are one and the same.
_LARGEST = 0.999


@summed
def log_passes(prior, covariance, work, rows):
    """log E prod_j Phi(g_j) for g ~ N(prior, covariance), of k values.

    `work` (k, k) is room for a covariance and `rows` (6, k) for the sites.
    """
    k = prior.size
    V, (mean, tau, nu, kept, pull, spread) = work, rows
    for i in range(k):
        mean[i], tau[i], nu[i], kept[i], pull[i] = prior[i], 0.0, 0.0, 1.0, 0.0
        for j in range(k):
            V[i, j] = covariance[i, j]
    log_det = 0.0
    for _ in range(_SWEEPS):
        largest = 0.0
        for i in range(k):
            variance = V[i, i]
            square = variance / kept[i]
            centre = mean[i] - pull[i] * square
            wide = 1.0 + square
            z = centre / math.sqrt(wide)
            r, d, v = probit_series(z)
            a = r * d
            # 1/tilted variance - 1/cavity variance, without the difference.
            new_tau = a / (1.0 + square * v)
            gain = r / math.sqrt(wide)
            new_nu = gain + new_tau * (centre + square * gain)
            d_tau, d_nu = new_tau - tau[i], new_nu - nu[i]
            shrink = 1.0 + d_tau * variance
            if not (shrink > 0.0 and math.isfinite(d_nu)):
                continue
            scale, step = d_tau / shrink, (d_nu - d_tau * mean[i]) / shrink
            change = abs(d_tau) * variance + abs(d_nu) * math.sqrt(variance)
            largest = max(largest, change)
            tau[i], nu[i] = new_tau, new_nu
            log_det += math.log(shrink)
            own_kept, own_pull = kept[i] / shrink, pull[i] + step * kept[i]
            row = V[i]
            for j in range(k):
                spread[j] = row[j]
            for j in range(k):
                mean[j] += step * spread[j]
                pull[j] -= tau[j] * step * spread[j]
                kept[j] += tau[j] * scale * spread[j] * spread[j]
            kept[i], pull[i] = own_kept, own_pull
            for j in range(k):
                line, factor = V[j], scale * spread[j]
                for other in range(k):
                    line[other] -= factor * spread[other]
        if largest < _TOL:
            break
    return _evidence(prior, V, rows) - 0.5 * log_det


@kernel
def _evidence(prior, V, rows):
    """Site terms of the evidence, and the pairs of cumulants; `nu` and `spread` are used up."""
    mean, tau, nu, kept, pull, spread = rows
    k = mean.size
    total = 0.0
    for i in range(k):
        square = V[i, i] / kept[i]
        centre = mean[i] - pull[i] * square
        wide = 1.0 + square
        z = centre / math.sqrt(wide)
        total += log_ndtr(z) + 0.5 * math.log1p(tau[i] * square)
        total -= 0.5 * pull[i] * (centre - prior[i])
        # Derivatives of log Phi: r, -a, then a d - r v and so on.
        r, d, v = probit_series(z)
        a = r * d
        third = a * d - r * v
        fourth = 2.0 * a * v - third * (2.0 * r + z)
        # Cumulants of the tilted density over powers of the marginal variance.
        unit = 1.0 / (kept[i] * math.sqrt(wide))
        nu[i] = third * unit**3
        spread[i] = fourth * unit**4
    for i in range(k):
        for j in range(i):
            c = V[i, j]
            limit = _LARGEST * math.sqrt(V[i, i] * V[j, j])
            c = min(max(c, -limit), limit)
            total += c**3 * (nu[i] * nu[j] / 6.0 + c * spread[i] * spread[j] / 48.0)
    return total
