"""Visits of sites along a linear functional. Kernels only."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from qpruntime._numba import kernel
from qpruntime._typing import Array, IntArray
from qpruntime.inference.site_kernels import Marginals, Observations, PlainRules, propose
from qpruntime.inference.sites import Sites
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "quadratic_forms",
    "visit",
]

# --- Quadratic forms a' S a of sparse rows


def quadratic_forms(rows: sparse.csr_array, S: Array) -> tuple[Array, Array]:
    """Return a' S a of every row, and (sum_j |a_j| sqrt(S_jj))^2, which bounds its terms.

    Parameters
    ----------
    rows : csr_array, shape (N, n)
    S : ndarray, shape (n, n)
        Symmetric, positive semi-definite.
    """
    forms, reach = np.empty((2, rows.shape[0]))
    indices, starts = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    _fill(rows.data, indices, starts, np.ascontiguousarray(S), np.sqrt(S.diagonal()), forms, reach)
    return forms, reach


@kernel
def _fill(
    data: Array,
    indices: IntArray,
    starts: IntArray,
    S: Array,
    deviation: Array,
    forms: Array,
    reach: Array,
) -> None:
    for i in range(forms.size):
        first, last = starts[i], starts[i + 1]
        form, bound = 0.0, 0.0
        for p in range(first, last):
            row, entry = S[indices[p]], data[p]
            for q in range(first, last):
                form += entry * data[q] * row[indices[q]]
            bound += abs(entry) * deviation[indices[p]]
        forms[i], reach[i] = form, bound * bound


# --- Sweep


@kernel
def visit(
    rules: PlainRules,
    observed: tuple[Array, Array],
    features: Array,
    posterior: tuple[Array, Array],
    prior: Array,
    sites: tuple[Array, Array],
    visits: IntArray,
    damping: float,
    record: tuple[IntArray, Array],
) -> tuple[int, int]:
    """Update sites in the order of `visits`; return a status and the site it belongs to.

    `posterior` has the covariance (r, r) and the mean (r,) of the coordinates. The sites see the
    products of `features` (N, r) with them, plus their prior means (N,). Both change in place, as
    do the sites and the counts of `record`.
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
