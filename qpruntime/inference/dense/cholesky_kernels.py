"""Triangular algebra, site sweeps and matching of means for dense posteriors. Kernels only."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime._numba import kernel, summed
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.parallel_updates import match, propose_each
from qpruntime.inference.site_kernels import Marginals, Observations, propose
from qpruntime.inference.sites import Sites
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "BLOCK",
    "divided",
    "half_difference",
    "mirror_upper",
    "scaled_upper",
    "squares_of_rows",
    "sweep",
    "take_turn",
    "twice",
]

# --- Triangles


@kernel
def scaled_upper(K: Array, root: Array) -> Array:
    """Upper triangle of I + R K R; what is below it is not set."""
    n = root.size
    B = np.empty((n, n))
    # Slices counted from 0 become vector instructions, ranges from i on do not.
    for i in range(n):
        scale, row, right, out = root[i], K[i, i:], root[i:], B[i, i:]
        for j in range(n - i):
            out[j] = scale * row[j] * right[j]
        out[0] += 1.0
    return B


@summed
def squares_of_rows(upper: Array) -> Array:
    """Sum of squares of each row of an upper triangle."""
    n = upper.shape[0]
    out = np.empty(n)
    for i in range(n):
        total, row = 0.0, upper[i, i:]
        for j in range(n - i):
            total += row[j] * row[j]
        out[i] = total
    return out


@summed
def twice(upper: Array, root: Array, right: Array) -> Array:
    """R U U^T R right for an upper triangle U."""
    n = root.size
    work, out = np.zeros(n), np.empty(n)
    for i in range(n):
        scale, row, rest = root[i] * right[i], upper[i, i:], work[i:]
        for j in range(n - i):
            rest[j] += scale * row[j]
    for i in range(n):
        total, row, rest = 0.0, upper[i, i:], work[i:]
        for j in range(n - i):
            total += row[j] * rest[j]
        out[i] = root[i] * total
    return out


@kernel
def divided(diagonal: Array, tau: Array, linear: Array) -> tuple[Array, Array]:
    """Return (right, rest), so that (I + diag(tau) K)^-1 linear = rest + R B^-1 R (right - K rest).

    The inverse is R B^-1 R^-1 and I - R B^-1 R K; `diagonal` is that of K. The latter cancels where
    the prior is vast: it lost all digits of the mean at K = 1e13. The former divides by the root of
    the precision: for one site its rounding grows by 1/sqrt(tau), that of the latter by K sqrt(tau)
    for the strongest tau.
    """
    right, rest = np.zeros(tau.size), np.zeros(tau.size)
    largest = 1.0
    for i in range(tau.size):
        largest = max(largest, tau[i] * diagonal[i])
    for i in range(tau.size):
        if tau[i] * diagonal[i] * largest > 1.0:
            right[i] = linear[i] / tau[i]
        else:
            rest[i] = linear[i]
    return right, rest


@kernel
def half_difference(weights: Array, root: Array, upper: Array) -> Array:
    """(weights weights^T - R inverse R)/2 for the inverse whose upper triangle is `upper`."""
    n = root.size
    out = np.empty((n, n))
    for i in range(n):
        row, source = out[i, i:], upper[i, i:]
        left, scale, other, factors = 0.5 * weights[i], 0.5 * root[i], weights[i:], root[i:]
        for j in range(n - i):
            row[j] = left * other[j] - scale * factors[j] * source[j]
    mirror_upper(out)
    return out


@kernel
def mirror_upper(matrix: Array) -> None:
    """Copy the upper triangle to the lower one, in place, by tiles that fit the cache."""
    n = matrix.shape[0]
    for top in range(0, n, 64):
        for left in range(top, n, 64):
            for i in range(top, min(top + 64, n)):
                for j in range(max(left, i + 1), min(left + 64, n)):
                    matrix[j, i] = matrix[i, j]


# --- Sequential sweep with delayed rank-one updates (paper, Algorithm 1)
#
# Every site update changes the posterior covariance by a rank-one term. A panel keeps the last
# `BLOCK` of them, so that a row of the current covariance is a row of the stored matrix less a
# short sum, and the stored matrix is updated block by block with level-3 BLAS. Nothing that belongs
# to a site already visited is needed again before the refresh that follows a sweep, so only the
# trailing upper triangle is kept: as many operations as one Cholesky factorisation. The sites are
# those of the plain loop up to rounding.

#: Pending rank-one updates before they are applied.
BLOCK = 64
_ROWS = 256


@kernel
def apply_panel(covariance: Array, panel: Array, weight: Array, count: int, start: int) -> None:
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
    rules: tuple[Any, ...],
    observed: tuple[Array, Array],
    covariance: Array,
    marginals: Arrays,
    sites: tuple[Array, Array],
    damping: float,
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
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


# --- Matched means and proposals of all sites
#
# One kernel does both, because calls from Python cost as much as the work.
#
# All site precisions have to be zero or positive.


@kernel
def solve(system: tuple[Any, ...], sites: tuple[Array, Array], mean: Array) -> None:
    """Fill K^-1 (mean - prior) and the posterior mean.

    `system` = (K, prior mean, U, root, weights): U is the upper triangle with B^-1 = U U^T, root
    the diagonal of R, and weights are what is filled.
    """
    K, prior, upper, root, weights = system
    tau, nu = sites
    n = tau.size
    diagonal, linear = np.empty(n), np.empty(n)
    for i in range(n):
        diagonal[i] = K[i, i]
        linear[i] = nu[i] - tau[i] * prior[i]
    right, rest = divided(diagonal, tau, linear)
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(rest[i]))
    if largest > 0.0:
        moved = np.dot(K, rest)
        for i in range(n):
            right[i] -= moved[i]
    main = twice(upper, root, right)
    for i in range(n):
        weights[i] = rest[i] + main[i]
    moved = np.dot(K, weights)
    for i in range(n):
        mean[i] = prior[i] + moved[i]


@kernel
def take_turn(
    rules: tuple[Any, ...],
    matching: tuple[int, tuple[Any, ...]],
    observed: tuple[Array, Array],
    system: tuple[Any, ...],
    marginals: Arrays,
    sites: tuple[Array, Array],
    changes: tuple[Array, Array],
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Match the means, then fill the changes of all sites; return (status, site).

    `matching` says how often, and has the rules with the cheapest source of means. Site means,
    posterior means and the weights of `system` are changed in place.
    """
    mean, _, _, _ = marginals
    _, failure = record
    solve(system, sites, mean)
    ignored = np.zeros(3, dtype=np.int64), failure
    steps, cheapest = matching
    _, _, power, _ = rules
    for _ in range(steps):
        status, site = propose_each(cheapest, observed, marginals, sites, changes, ignored)
        if status != OK:
            return status, site
        match(power, marginals, sites, changes)
        solve(system, sites, mean)
    return propose_each(rules, observed, marginals, sites, changes, record)
