"""Effects whose densities are corrected, mixed over nodes of hyper-parameters.

EP's marginals are normal. Of few rows an effect's density is skew, and what the rows of its own
level leave of it is known better than by a normal: the corrections of `Posterior.marginals`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.effects.state import State
from qpruntime.inference.corrections.marginals import Marginals

__all__ = ["MarginalMixture", "corrected_effects"]

# Bisections of a quantile: from the distance of the nodes' own to rounding.
_HALVINGS = 50


class MarginalMixture(NamedTuple):
    """R mixtures of J densities; as `qpruntime.estimators.predictive.normals.Mixture`.

    Attributes
    ----------
    parts : tuple of Marginals, length J
        Of R numbers each.
    weights : ndarray, shape (J,)
    """

    parts: tuple[Marginals, ...]
    weights: Array

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        mean = np.array([one.mean for one in self.parts])
        variance = np.array([one.variance for one in self.parts])
        centre = self.weights @ mean
        return centre, self.weights @ (variance + (mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,)."""
        found: Array = self.weights @ np.array([one.cdf(limit) for one in self.parts])
        return found

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (R, Q), by bisection between those of the parts."""
        each = np.array([one.quantile(q).reshape(-1, len(q)) for one in self.parts])
        low, high = each.min(axis=0), each.max(axis=0)
        for _ in range(_HALVINGS if len(self.parts) > 1 else 0):
            middle = 0.5 * (low + high)
            short = np.column_stack([self.below(column) for column in middle.T]) < q
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return 0.5 * (low + high)


def corrected_effects(
    state: State, block: int, rows: sparse.csr_array, correction: str
) -> MarginalMixture:
    """Sums of one block's effects, shape (R, K of the block), with corrected densities."""
    place = state.assembly.places[block]
    own = sparse.coo_array(rows)
    shape = (rows.shape[0], state.assembly.size)
    A = sparse.csr_array(sparse.coo_array((own.data, (own.row, own.col + place.start)), shape))
    objective = state.objective()
    parts = []
    for theta, sites in zip(state.nodes.theta, state.sites, strict=True):
        posterior = objective.posterior(theta, sites=sites)
        parts.append(posterior.marginals(A, mean=0.0, correction=correction))
    return MarginalMixture(tuple(parts), state.nodes.weights)
