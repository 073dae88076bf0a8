"""The rows of users as the sites that are inferred: rows dropped, and equal ones collapsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.precision.collapse import Collapsed, collapse
from qpruntime.inference.precision.equal_rows import near_order
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.validation import finite, real

__all__ = ["SeenRows", "observed_sites", "read_offset"]

#: Sites from which on their order counts.
_MANY = 50_000


def read_offset(offset: ArrayLike, y: Array, likelihood: Likelihood) -> Array:
    """Return offsets (N,) of validated observations, -inf where an exposure is 0.

    Raises
    ------
    InputError
        If one is not a number, or -inf where something was counted.
    """
    n = len(y)
    found = real(offset, "offset")
    if found.shape not in ((), (n,)):
        raise InputError(f"offset must be a number or have shape ({n},), got {found.shape}")
    found = np.array(np.broadcast_to(found, (n,)))
    empty = found == -np.inf
    finite(found[~empty], "offset")
    if empty.any():
        row = int(np.argmax(empty))
        if likelihood.rate is None:
            raise InputError(
                f"offset is -inf at row {row}, an exposure of 0: only counts have exposures"
            )
        wrong = empty & (y > 0.0)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"row {row} counts {y[row]:g} with an offset of -inf, an exposure of 0: drop the "
                "row, or correct its exposure"
            )
    return found


@dataclass(frozen=True, eq=False)
class SeenRows:
    """N rows, M of them kept, as S sites.

    Attributes
    ----------
    collapsed : Collapsed
        Of the rows that are kept.
    kept : ndarray of int, shape (M,), or None
        Which rows are kept; None for all. Others see no latent value, or have no exposure.
    offset : ndarray, shape (S,)
        Of the sites.
    chosen : ndarray of int, shape (S,), or None
        The row of A of every site; None where these are all rows.
    alone : ndarray, shape (2, N), or None
        Where rows are not kept, all rows' offsets, and the log densities of those that are not.
    """

    collapsed: Collapsed
    kept: NDArray[np.intp] | None
    offset: Array
    chosen: NDArray[np.intp] | None
    alone: Array | None = None

    @property
    def n(self) -> int:
        """Rows, N."""
        return self.collapsed.rows.site.size if self.alone is None else self.alone.shape[1]

    @property
    def constant(self) -> float:
        """What is added to the log evidence of the sites."""
        found = float(self.collapsed.merged.constant.sum())
        return found if self.alone is None else found + float(self.alone[1].sum())

    def row_of(self, site: int) -> int:
        """The first row of a site."""
        row = int(self.collapsed.rows.first[site])
        return row if self.kept is None else int(self.kept[row])

    def to_rows(self, values: Array, others: Array | None = None) -> Array:
        """Values (M,) of the rows that are kept as values of all rows; of others 0, or these."""
        if self.kept is None:
            return values
        found = np.zeros(self.n) if others is None else others.copy()
        found[self.kept] = values
        return found

    def spread(self, values: Array) -> Array:
        """Values (S,) of sites as values of all rows; of rows that are not kept 0."""
        if self.collapsed.trivial and self.kept is None:
            return values
        return self.to_rows(values[self.collapsed.rows.site])

    def mean(self, mean: Array) -> Array:
        """Means of eta at all rows: the offset of a row that is not kept."""
        if self.collapsed.trivial and self.kept is None:
            return mean
        others = None if self.alone is None else self.alone[0]
        return self.to_rows((mean - self.collapsed.merged.shift)[self.collapsed.rows.site], others)

    def left_out(self, log_z: Array) -> Array:
        """Log densities (M,) as those of all rows."""
        return self.to_rows(log_z, None if self.alone is None else self.alone[1])

    def sites(self, sites: Sites) -> Sites:
        """Every row's share of its site, as a site of its own eta."""
        if self.collapsed.trivial and self.kept is None:
            return sites
        nu = sites.nu - sites.tau * self.collapsed.merged.shift
        share, site = self.collapsed.share(), self.collapsed.rows.site
        return Sites(self.to_rows(sites.tau[site] * share), self.to_rows(nu[site] * share))

    def sites_of(self, rows: Sites) -> Sites:
        """Sites of what `sites` has made of them."""
        if self.collapsed.trivial and self.kept is None:
            return rows
        chosen = slice(None) if self.kept is None else self.kept
        site, S = self.collapsed.rows.site, self.offset.size
        tau, nu = (np.bincount(site, part[chosen], S).astype(float) for part in rows)
        return Sites(tau, nu + tau * self.collapsed.merged.shift)


def observed_sites(
    A: sparse.csr_array,
    offset: Array,
    y: Array,
    likelihood: Likelihood,
    weights: Array | None,
    wanted: bool,
    held: dict[str, Any] | None = None,
) -> SeenRows:
    """Return the sites of validated observations y, of shape (N,) or (N, 2).

    What is found of A and offsets is kept in `held`. Where it is not `wanted` that rows collapse,
    their order stays too.
    """
    held = {} if held is None else held
    alone = kept = None
    apart = (np.diff(A.indptr) == 0) | (offset == -np.inf)
    if apart.any():
        kept = np.flatnonzero(~apart)
        alone = np.stack([offset, np.zeros(offset.size)])
        powers = np.ones(offset.size) if weights is None else weights
        for row in np.flatnonzero(apart & (offset > -np.inf) & (powers > 0.0)):
            alone[1, row] = powers[row] * float(likelihood.log_prob(offset[row], y[row]))
        if not kept.size:
            raise InputError("no row sees a latent value: A is zero, or nothing has an exposure")
        A, offset, y = A[kept], offset[kept], y[kept]
        weights = None if weights is None else weights[kept]
    found = collapse(A, offset, y, likelihood, weights, wanted, held)
    if wanted and found.rows.first.size >= _MANY:
        found = _near(A, found, held)
    first = found.rows.first
    chosen = None if found.trivial and kept is None else first if kept is None else kept[first]
    return SeenRows(found, kept, offset[first] + found.merged.shift, chosen, alone)


def _near(A: sparse.csr_array, found: Collapsed, held: dict[str, Any]) -> Collapsed:
    """The same with rows of one level next to each other, which is found once for these rows."""
    known = held.get("near")
    if known is None or known[0] is not found.rows:
        order = near_order(A, found.rows.first)
        moved = () if order is None else (order, found.ordered_rows(order))
        known = held["near"] = found.rows, moved
    return found.ordered(*known[1]) if known[1] else found
