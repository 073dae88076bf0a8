"""The slope of the log evidence by what the precision is made of.

At EP's fixed point the sites count as fixed: for a change of Q the log evidence changes by
(tr(S0 dQ) - tr(S dQ) - x' dQ x)/2, with S0 and S the prior and posterior covariance and x the
posterior mean. All three are sums over the entries of Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.precision.latent import prior_entries
from qpruntime.inference.precision.pattern import as_precision
from qpruntime.inference.precision.solved import PrecisionSolved

__all__ = ["Slope", "evidence_slopes", "slope_of"]


class Slope(NamedTuple):
    """What a change of the precision is multiplied by.

    Attributes
    ----------
    covariance : csr_array, shape (K, K)
        Posterior covariance of x at the entries of Q.
    mean : ndarray, shape (K,)
        Posterior mean of x.
    """

    covariance: sparse.csr_array
    mean: Array

    def against(self, dQ: Any) -> float:
        """tr(S dQ) + x' dQ x, for a change whose entries are among those of Q."""
        change = as_precision(dQ)
        return float(self.covariance.multiply(change).sum() + self.mean @ (change @ self.mean))


def slope_of(solved: PrecisionSolved) -> Slope:
    """Return the posterior covariance on the pattern of Q, and the mean of x."""
    data, mean = solved.slope()
    indptr, indices = solved.prior.pattern.of_q
    shape = (mean.size, mean.size)
    return Slope(sparse.csr_array((data, indices, indptr), shape=shape), mean)


def evidence_slopes(solved: PrecisionSolved, change: Any) -> Array | float:
    """Return the slope for one change of Q, or those for a sequence of them.

    Raises
    ------
    InputError
        If there is no change, or one has another shape or entries that Q has not.
    """
    if change is None:
        raise InputError(
            "evidence_gradient takes dK here: a change of the precision Q, sparse (K, K), or a "
            "sequence of them"
        )
    several = isinstance(change, Sequence)
    changes = [as_precision(one) for one in (change if several else [change])]
    pattern = solved.prior.pattern
    slope = slope_of(solved)
    indptr, indices = pattern.of_q
    before = sparse.csr_array(
        (prior_entries(solved.prior), indices, indptr), shape=(pattern.k,) * 2
    )
    known = sparse.csr_array((np.ones(indices.size), indices, indptr), shape=before.shape)
    found = []
    for one in changes:
        if one.shape != before.shape:
            raise InputError(f"a change of Q has its shape {before.shape}, got {one.shape}")
        if known.multiply(one).nnz != np.count_nonzero(one.data):
            raise InputError(
                "a change of Q has entries that Q has not: store them in Q, as zeros where they "
                "are zero"
            )
        found.append(0.5 * (float(before.multiply(one).sum()) - slope.against(one)))
    return np.array(found) if several else found[0]
