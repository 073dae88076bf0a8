"""One sequential EP/QP sweep with delayed rank-one updates (paper, Algorithm 1).

Every site update changes the posterior covariance by a rank-one term. A panel keeps the last
`BLOCK` of them, so that a row of the current covariance is a row of the stored matrix less a
short sum, and the stored matrix is updated block by block with level-3 BLAS. Nothing that belongs
to a site already visited is needed again before the refresh that follows a sweep, so only the
trailing upper triangle is kept: as many operations as one Cholesky factorisation. The sites are
those of the plain loop up to rounding.
"""

from __future__ import annotations

import numpy as np

from qpruntime.inference.site_update import Marginals, Observations, propose
from qpruntime.inference.sites import Sites
from qpruntime.jit import kernel
from qpruntime.quadrature.sigma_star import OK

__all__ = ["BLOCK", "sweep"]

#: Pending rank-one updates before they are applied.
BLOCK = 64
_ROWS = 256


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
def sweep(rules, observed, covariance, marginals, sites, damping, record):
    """Update every site once, first to last; return a status and the site it belongs to.

    Changes in place the sites and the counts of `record`. Uses up `covariance` (N, N), of which
    only the upper triangle is read; it is to be recomputed from the sites. `marginals` are mean,
    `kept` and `pull` of `Marginals`, as they are before the sweep.
    """
    mean, kept, pull = marginals
    tau, nu = sites
    y, exponents = observed
    n = mean.size
    # What the sites visited have added to the means, and what those no longer pending have taken
    # from the variances. A site not yet visited has its tau and nu still: from these sums follow
    # `kept` and `pull` without cancelling.
    moved, lost = np.zeros(n), np.zeros(n)
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
        less = lost[i]
        for b in range(pending):
            scale, past = weight[b] * panel[b, i], panel[b, i:]
            less += scale * panel[b, i]
            for j in range(n - i):
                rest[j] -= scale * past[j]
        status, d_tau, d_nu = propose(
            rules,
            Observations(y[i], exponents[i]),
            Marginals(
                mean[i] + moved[i],
                row[i],
                kept[i] + tau[i] * less,
                pull[i] - tau[i] * moved[i],
            ),
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
        shrink = 1.0 + d_tau * row[i]
        step = (d_nu - d_tau * (mean[i] + moved[i])) / shrink
        means, present = moved[i:], panel[pending, i:]
        for j in range(n - i):
            means[j] += step * rest[j]
            present[j] = rest[j]
        weight[pending] = d_tau / shrink
        pending += 1
        if pending == BLOCK:
            apply_panel(covariance, panel, weight, pending, i + 1)
            for b in range(pending):
                scale, past, taken = weight[b], panel[b, i + 1 :], lost[i + 1 :]
                for j in range(n - i - 1):
                    taken[j] += scale * past[j] * past[j]
            pending = 0
    return OK, 0
