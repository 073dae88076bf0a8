"""log |k C + G| of finite elements, and its slope by log k."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import eigvalsh

from qpruntime.arrays import Array
from qpruntime.inference.precision.factorised import Factorised, filled
from qpruntime.inference.precision.rows import places
from qpruntime.inference.precision.symbolic import analyse

__all__ = ["ShiftedDeterminant"]

#: Nodes up to which eigenvalues are taken, once.
_MOST_DENSE = 800


class ShiftedDeterminant:
    """For lumped masses C (K,) and a stiffness G (K, K).

    By eigenvalues of a few nodes; of more by the sparse factor, whose inverse has the diagonal that
    the slope takes.
    """

    def __init__(self, C: Array, G: sparse.csc_array) -> None:
        self.log_mass = float(np.log(C).sum())
        self.values: Array | None = None
        root = sparse.diags_array(1.0 / np.sqrt(C))
        own = sparse.coo_array(root @ G @ root)
        self.size = len(C)
        self._entries: tuple[Any, Any, Any] | None = (own.data, own.row, own.col)
        self._places: tuple[Any, Any, Any] | None = None
        self._last: tuple[float, tuple[float, float]] | None = None
        if len(C) <= _MOST_DENSE:
            self.values = np.maximum(eigvalsh(own.toarray()), 0.0)
            self._entries = None

    def __call__(self, k: float) -> tuple[float, float]:
        """The value at k and its slope by log k."""
        if self.values is not None:
            own = self.values + k
            return float(np.log(own).sum()) + self.log_mass, float((k / own).sum())
        assert self._entries is not None
        if self._last is not None and self._last[0] == k:
            return self._last[1]
        symbolic, at, diagonal = self._analysed()
        panels = filled(symbolic.size, at[0], self._entries[0][at[1]])
        panels[diagonal] += k
        factor = Factorised(symbolic, panels)
        value = factor.log_det + self.log_mass
        found = value, float(k * factor.inverse()[diagonal].sum())
        self._last = k, found
        return found

    def _analysed(self) -> tuple[Any, Any, Any]:
        """The factor's shape, places of the lower triangle's entries, and of the diagonal."""
        if self._places is None:
            assert self._entries is not None
            values, row, column = self._entries
            ones = np.ones(len(values))
            pattern = sparse.csr_array((ones, (row, column)), shape=(self.size, self.size))
            symbolic = analyse(sparse.csr_array(pattern + sparse.eye_array(self.size)))
            i, j = symbolic.place[row], symbolic.place[column]
            lower = np.flatnonzero(i >= j)
            found = np.empty(len(lower), dtype=np.int64)
            places(tuple(symbolic.shape), i[lower], j[lower], found)
            diagonal = np.empty(self.size, dtype=np.int64)
            places(tuple(symbolic.shape), symbolic.place, symbolic.place, diagonal)
            self._places = symbolic, (found, lower), diagonal
        return self._places

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_places": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update({"_last": None, **state})
