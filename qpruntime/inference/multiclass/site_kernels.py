"""Sites of a row's C classes. Kernels only."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import kernel, summed
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.dense.cholesky_kernels import mirror_upper
from qpruntime.inference.multiclass.probability_kernels import log_passes, log_quadrant
from qpruntime.inference.site_kernels import Marginals, Observations, PlainRules, propose
from qpruntime.inference.sites import Sites
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "leave_rows_out",
    "products_of_rows",
    "scale_and_add",
    "visit_rows",
]

# --- Products of blocks


@kernel
def scale_and_add(upper: Array, root: Array, E: Array, total: Array) -> None:
    """Fill E = R B^-1 R from the upper triangle of B^-1, and add its upper triangle to `total`."""
    n = root.size
    for i in range(n):
        scale, row, right, out, sums = root[i], upper[i, i:], root[i:], E[i, i:], total[i, i:]
        for j in range(n - i):
            out[j] = scale * row[j] * right[j]
            sums[j] += out[j]
    mirror_upper(E)


@summed
def products_of_rows(a: Array, b: Array) -> Array:
    """Return inner products of the rows of two matrices, shape (N,)."""
    n, width = a.shape
    out = np.empty(n)
    for i in range(n):
        total, first, second = 0.0, a[i], b[i]
        for j in range(width):
            total += first[j] * second[j]
        out[i] = total
    return out


# --- Site visits
#
# An update of one site changes the other sites of its row at once, but not those of other rows.


@kernel
def visit_rows(
    rules: PlainRules,
    observed: tuple[Array, Array],
    covariances: Array,
    others: IntArray,
    marginals: Arrays,
    sites: tuple[Array, Array],
    visits: int,
    tol: float,
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Update the C - 1 sites of every row in turn, `visits` times or until they change less.

    Returns a status and the site it belongs to. Sites, of shape (N (C - 1),), and the counts of
    `record` change in place. `covariances` (N, C, C) are of z in a row, `others` the classes of
    sites, and `marginals` those of all sites, which are not changed.
    """
    mean_0, _, kept_0, pull_0 = marginals
    tau_0, nu_0 = sites
    y, exponents = observed
    k = covariances.shape[1] - 1
    V, scratch, spread = np.empty((k, k)), np.empty((1, 4)), np.empty(k)
    mean, kept, pull = np.empty(k), np.empty(k), np.empty(k)
    for i in range(covariances.shape[0]):
        first = i * k
        tau, nu = tau_0[first : first + k], nu_0[first : first + k]
        for j in range(k):
            site = first + j
            mean[j], kept[j], pull[j] = mean_0[site], kept_0[site], pull_0[site]
            for c in range(k):
                V[j, c] = covariances[i, others[site], others[first + c]]
        for _ in range(visits):
            largest = 0.0
            for j in range(k):
                variance = V[j, j]
                status, d_tau, d_nu = propose(
                    rules,
                    Observations(y[first + j], exponents[first + j]),
                    Marginals(mean[j], variance, kept[j], pull[j]),
                    Sites(tau[j], nu[j]),
                    scratch,
                    record,
                )
                if status != OK:
                    return status, first + j
                shrink = 1.0 + d_tau * variance
                if not shrink > 0.0:
                    continue
                scale, step = d_tau / shrink, (d_nu - d_tau * mean[j]) / shrink
                largest = max(largest, abs(d_tau) * variance, abs(d_nu) * np.sqrt(variance))
                own_kept, own_pull = kept[j] / shrink, pull[j] + step * kept[j]
                for c in range(k):
                    spread[c] = V[j, c]
                for c in range(k):
                    # The sums give `kept` and `pull` without cancellation.
                    mean[c] += step * spread[c]
                    pull[c] -= tau[c] * step * spread[c]
                    kept[c] += tau[c] * scale * spread[c] * spread[c]
                kept[j], pull[j] = own_kept, own_pull
                tau[j] += d_tau
                nu[j] += d_nu
                for c in range(k):
                    line, factor = V[c], scale * spread[c]
                    for last in range(k):
                        line[last] -= factor * spread[last]
            if largest < tol:
                break
    return OK, 0


@kernel
def leave_rows_out(
    covariances: Array, others: IntArray, marginals: Arrays, sites: tuple[Array, Array], out: Array
) -> int:
    """Fill log p(own class) of every row without its own sites, shape (N,)."""
    mean_0, _, kept_0, _ = marginals
    tau_0, nu_0 = sites
    k = covariances.shape[1] - 1
    V, G, work, spread = np.empty((k, k)), np.empty((k, k)), np.empty((6, k)), np.empty(k)
    mean, kept = np.empty(k), np.empty(k)
    for i in range(covariances.shape[0]):
        first = i * k
        tau, nu = tau_0[first : first + k].copy(), nu_0[first : first + k]
        for j in range(k):
            mean[j], kept[j] = mean_0[first + j], kept_0[first + j]
            for c in range(k):
                V[j, c] = covariances[i, others[first + j], others[first + c]]
        for j in range(k):
            if not kept[j] > 0.0:
                return i
            scale, step = -tau[j] / kept[j], (tau[j] * mean[j] - nu[j]) / kept[j]
            tau[j] = 0.0
            for c in range(k):
                spread[c] = V[j, c]
            for c in range(k):
                mean[c] += step * spread[c]
                kept[c] += tau[c] * scale * spread[c] * spread[c]
            for c in range(k):
                line, factor = V[c], scale * spread[c]
                for last in range(k):
                    line[last] -= factor * spread[last]
        if k == 2:
            wide = V[0, 0] + 1.0, V[1, 1] + 1.0
            out[i] = log_quadrant(mean[0], mean[1], wide[0], wide[1], V[0, 1])
        else:
            out[i] = log_passes(mean, V, G, work)
    return -1
