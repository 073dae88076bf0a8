"""Triangular algebra, site sweeps and matching of means for dense posteriors. Kernels only."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel, shared, summed
from qpruntime._pointers import PANEL, LatePointer, call_panel
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.parallel_updates import match, propose_each
from qpruntime.inference.site_kernels import Marginals, Observations, PlainRules, propose
from qpruntime.inference.sites import Sites
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "APPLY_PANEL",
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
    """Return the upper triangle of I + R K R; the part below it is not set."""
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
    """Return the sum of squares of each row of an upper triangle."""
    n = upper.shape[0]
    out = np.empty(n)
    for i in range(n):
        total, row = 0.0, upper[i, i:]
        for j in range(n - i):
            total += row[j] * row[j]
        out[i] = total
    return out


@shared
@summed
def twice(upper: Array, root: Array, right: Array) -> Array:
    """Return R U U^T R right for an upper triangle U."""
    n = root.size
    work, out = np.zeros(n), np.empty(n)
    for i in range(n):
        scale, row, trailing = root[i] * right[i], upper[i, i:], work[i:]
        for j in range(n - i):
            trailing[j] += scale * row[j]
    for i in range(n):
        total, row, trailing = 0.0, upper[i, i:], work[i:]
        for j in range(n - i):
            total += row[j] * trailing[j]
        out[i] = root[i] * total
    return out


@shared
@kernel
def divided(diagonal: Array, tau: Array, linear: Array) -> tuple[Array, Array]:
    """Split `linear` for a solution with I + diag(tau) K that does not cancel.

    The results give (I + diag(tau) K)^-1 linear = direct + R B^-1 R (right - K direct). The inverse
    equals both R B^-1 R^-1 and I - R B^-1 R K; `diagonal` is that of K. The second form cancels
    under a vast prior: it lost all digits of the mean at K = 1e13. The first divides by the root of
    the precision. Its rounding grows by 1/sqrt(tau) of the site, that of the second by K sqrt(tau)
    for the strongest tau.
    """
    right, direct = np.zeros(tau.size), np.zeros(tau.size)
    largest = 1.0
    for i in range(tau.size):
        largest = max(largest, tau[i] * diagonal[i])
    for i in range(tau.size):
        if tau[i] * diagonal[i] * largest > 1.0:
            right[i] = linear[i] / tau[i]
        else:
            direct[i] = linear[i]
    return right, direct


@summed
def symmetric_product(matrix: Array, vector: Array) -> Array:
    """Return the product with a symmetric matrix, of which only the upper triangle is read."""
    n = vector.size
    out = np.zeros(n)
    for i in range(n):
        scale, total, row = vector[i], 0.0, matrix[i, i + 1 :]
        right, below = vector[i + 1 :], out[i + 1 :]
        for j in range(n - i - 1):
            total += row[j] * right[j]
            below[j] += scale * row[j]
        out[i] += total + matrix[i, i] * scale
    return out


@kernel
def half_difference(weights: Array, root: Array, upper: Array) -> Array:
    """Return (w w^T - R inverse R)/2 for weights w and the upper triangle of the inverse."""
    n = root.size
    out = np.empty((n, n))
    for i in range(n):
        row, source = out[i, i:], upper[i, i:]
        half_weight, scale, trailing_weights, factors = (
            0.5 * weights[i],
            0.5 * root[i],
            weights[i:],
            root[i:],
        )
        for j in range(n - i):
            row[j] = half_weight * trailing_weights[j] - scale * factors[j] * source[j]
    mirror_upper(out)
    return out


@shared
@kernel
def mirror_upper(matrix: Array) -> None:
    """Copy the upper triangle to the lower one, in place, by tiles that fit the cache."""
    n = matrix.shape[0]
    for top in range(0, n, 64):
        for first_column in range(top, n, 64):
            for i in range(top, min(top + 64, n)):
                for j in range(max(first_column, i + 1), min(first_column + 64, n)):
                    matrix[j, i] = matrix[i, j]


# --- Sequential sweep with delayed rank-one updates (paper, Algorithm 1)
#
# Every site update changes the posterior covariance by a rank-one term. A panel keeps the last
# `BLOCK` of them, so that a row of the current covariance is a row of the stored matrix less a
# short sum. The stored matrix is updated block by block with level-3 BLAS. Rows of sites already
# visited are not needed again before the refresh that follows a sweep, so only the trailing upper
# triangle is updated, with as many operations as one Cholesky factorisation. The sites equal those
# of the plain loop up to rounding.

#: Number of pending rank-one updates that are applied together.
BLOCK = 64
_ROWS_PER_TILE = 256


def _apply_panel(covariance: Array, panel: Array, weight: Array, count: int, start: int) -> int:
    """Subtract panel.T diag(weight) panel from the upper triangle from row `start` on."""
    n = covariance.shape[0]
    for top in range(start, n, _ROWS_PER_TILE):
        bottom = min(top + _ROWS_PER_TILE, n)
        weighted_panel = np.empty((bottom - top, count))
        for r in range(top, bottom):
            for b in range(count):
                weighted_panel[r - top, b] = weight[b] * panel[b, r]
        change = np.dot(weighted_panel, np.ascontiguousarray(panel[:count, top:]))
        for r in range(top, bottom):
            row, row_change = covariance[r, r:], change[r - top, r - top :]
            for c in range(n - r):
                row[c] -= row_change[c]
    return OK


#: Compiles for the first covariance of more than `BLOCK` rows, in a second.
APPLY_PANEL = LatePointer(_apply_panel, PANEL)


@kernel
def sweep(
    rules: PlainRules,
    observed: tuple[Array, Array],
    covariance: Array,
    marginals: Arrays,
    sites: tuple[Array, Array],
    damping: float,
    record: tuple[IntArray, Array],
    apply_panel: int,
) -> tuple[int, int]:
    """Update every site once, first to last; return a status and the site it belongs to.

    The sites and the counts of `record` change in place. `covariance` (N, N), of which only the
    upper triangle is read, is overwritten and must be recomputed from the sites. `marginals` are
    mean, `kept` and `pull` of `Marginals` before the sweep, and `apply_panel` is the handle of
    `APPLY_PANEL`.
    """
    mean, kept, pull = marginals
    tau, nu = sites
    y, exponents = observed
    n = mean.size
    # `moved` is the change of the means by the visited sites, `lost` the change of the variances by
    # those that are no longer pending. The tau and nu of a site not yet visited are unchanged, so
    # these sums give its `kept` and `pull` without cancelling.
    moved, lost = np.zeros(n), np.zeros(n)
    panel = np.empty((BLOCK, n))
    weight = np.empty(BLOCK)
    scratch = np.empty((1, 4))
    row = np.empty(n)
    pending = 0
    for i in range(n):
        # Slices counted from 0 become vector instructions, ranges from i on do not.
        current, stored = row[i:], covariance[i, i:]
        for j in range(n - i):
            current[j] = stored[j]
        variance_change = lost[i]
        for b in range(pending):
            scale, past = weight[b] * panel[b, i], panel[b, i:]
            variance_change += scale * panel[b, i]
            for j in range(n - i):
                current[j] -= scale * past[j]
        status, d_tau, d_nu = propose(
            rules,
            Observations(y[i], exponents[i]),
            Marginals(
                mean[i] + moved[i],
                row[i],
                kept[i] + tau[i] * variance_change,
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
            means[j] += step * current[j]
            present[j] = current[j]
        weight[pending] = d_tau / shrink
        pending += 1
        if pending == BLOCK:
            status = call_panel(apply_panel, covariance, panel, weight, pending, i + 1)
            if status != OK:
                return status, i
            for b in range(pending):
                scale, past, variance_loss = weight[b], panel[b, i + 1 :], lost[i + 1 :]
                for j in range(n - i - 1):
                    variance_loss[j] += scale * past[j] * past[j]
            pending = 0
    return OK, 0


# --- Matched means and proposals of all sites
#
# One kernel does both, because calls from Python cost as much as the work. All site precisions
# have to be zero or positive.


@kernel
def solve(system: Arrays, sites: tuple[Array, Array], mean: Array) -> None:
    """Fill K^-1 (mean - prior) and the posterior mean.

    `system` = (K, prior mean, U, root, weights): U is the upper triangle with B^-1 = U U^T, root
    the diagonal of R, and weights the array to fill.
    """
    K, prior, upper, root, weights = system
    tau, nu = sites
    n = tau.size
    diagonal, linear = np.empty(n), np.empty(n)
    for i in range(n):
        diagonal[i] = K[i, i]
        linear[i] = nu[i] - tau[i] * prior[i]
    right, direct = divided(diagonal, tau, linear)
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(direct[i]))
    if largest > 0.0:
        moved = symmetric_product(K, direct)
        for i in range(n):
            right[i] -= moved[i]
    main = twice(upper, root, right)
    for i in range(n):
        weights[i] = direct[i] + main[i]
    moved = symmetric_product(K, weights)
    for i in range(n):
        mean[i] = prior[i] + moved[i]


@kernel
def take_turn(
    rules: PlainRules,
    matching: tuple[int, PlainRules, IntArray],
    observed: tuple[Array, Array],
    system: Arrays,
    marginals: Arrays,
    sites: tuple[Array, Array],
    changes: tuple[Array, Array],
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Match the means, then fill the changes of all sites; return (status, site).

    `matching` has the number of steps, the rules with the cheapest source of means, and room for
    the counts of its proposals. Site means, posterior means and the weights of `system` change in
    place.
    """
    mean, _, _, _ = marginals
    _, failure = record
    solve(system, sites, mean)
    steps, cheapest, ignored = matching
    _, _, power, _ = rules
    for _ in range(steps):
        status, site = propose_each(
            cheapest, observed, marginals, sites, changes, (ignored, failure)
        )
        if status != OK:
            return status, site
        match(power, marginals, sites, changes)
        solve(system, sites, mean)
    return propose_each(rules, observed, marginals, sites, changes, record)
