"""The entries of A' diag(tau) A, for products with it: far fewer than the factor has numbers."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.inference.precision.latent import SparseLatent
from qpruntime.inference.precision.pattern import SparseRows
from qpruntime.inference.precision.rows import add_rows, entry_coordinates

__all__ = ["Entries"]


class Entries(NamedTuple):
    """Where A' diag(tau) A has entries: pairs of rows, in the order of the panels.

    entry : (pairs,), the entry of every pair
    rows, begins : of the entries below the diagonal, as of a `csc_array`
    kept : which entries are below the diagonal
    """

    entry: NDArray[Any]
    rows: NDArray[Any]
    begins: NDArray[Any]
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, prior: SparseLatent) -> Self:
        """Those of a prior's rows, found once."""
        held, seen = prior.pattern.held, prior.rows
        known = held.get("entries")
        if known is None or known[0] is not seen.columns:
            marked = np.zeros(prior.pattern.symbolic.size, dtype=bool)
            marked[seen.pairs] = True
            index = (np.cumsum(marked, dtype=seen.pairs.dtype) - 1)[seen.pairs]
            rows, columns = (np.empty(np.count_nonzero(marked), np.int32) for _ in range(2))
            entry_coordinates(seen.indptr, seen.columns, index, rows, columns)
            kept = rows != columns
            begins = np.searchsorted(columns[kept], np.arange(prior.pattern.k + 1))
            known = seen.columns, cls(index, rows[kept], begins.astype(np.int32), kept)
            held["entries"] = known
        found: Self = known[1]
        return found

    def lower(self, seen: SparseRows, tau: Array) -> sparse.csc_array:
        """A' diag(tau) A below its diagonal."""
        values, k = np.zeros(self.kept.size), self.begins.size - 1
        add_rows(values, seen.indptr, seen.values, self.entry, tau)
        return sparse.csc_array((values[self.kept], self.rows, self.begins), shape=(k, k))
