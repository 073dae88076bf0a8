"""log |k C + G| of finite elements, and its slope by log k."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import splu

from qpruntime.arrays import Array

__all__ = ["ShiftedDeterminant"]

#: Nodes up to which eigenvalues are taken, once.
_MOST_DENSE = 1200
# Steps of the differences in log k: their error is of sixth order, about 1e-13 of the slope.
_STEP = 0.03


class ShiftedDeterminant:
    """For lumped masses C (K,) and a stiffness G (K, K)."""

    def __init__(self, C: Array, G: sparse.csc_array) -> None:
        self.log_mass = float(np.log(C).sum())
        self.values: Array | None = None
        root = sparse.diags_array(1.0 / np.sqrt(C))
        self._matrix: sparse.csc_array | None = sparse.csc_array(root @ G @ root)
        if len(C) <= _MOST_DENSE:
            self.values = np.maximum(eigvalsh(self._matrix.toarray()), 0.0)
            self._matrix = None

    def __call__(self, k: float) -> tuple[float, float]:
        """The value at k and its slope by log k."""
        if self.values is not None:
            own = self.values + k
            return float(np.log(own).sum()) + self.log_mass, float((k / own).sum())
        found = {j: self._factored(k * np.exp(j * _STEP)) for j in range(-3, 4)}
        slope = sum(w * (found[j] - found[-j]) for j, w in ((1, 45.0), (2, -9.0), (3, 1.0))) / (
            60.0 * _STEP
        )
        return found[0] + self.log_mass, float(slope)

    def _factored(self, k: float) -> float:
        assert self._matrix is not None
        size = self._matrix.shape[0]
        shifted = sparse.csc_array(self._matrix + k * sparse.eye_array(size))
        factor = splu(
            shifted,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        return float(np.log(np.abs(factor.U.diagonal())).sum())

    def __getstate__(self) -> dict[str, object]:
        state = dict(vars(self))
        if self._matrix is not None:
            own = self._matrix
            state["_matrix"] = (own.data, own.indices, own.indptr)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        if isinstance(self._matrix, tuple):
            self._matrix = sparse.csc_array(self._matrix)
            self._matrix.check_format(full_check=True)
