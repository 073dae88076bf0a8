"""A sparse matrix factorised: solves, log determinant and entries of its inverse."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.precision.blas import routines
from qpruntime.inference.precision.factor import (
    factorise,
    log_determinant,
    solve,
    solve_upper,
)
from qpruntime.inference.precision.inverse import selected_inverse
from qpruntime.inference.precision.single import raise_kept, single_routines
from qpruntime.inference.precision.symbolic import Symbolic

__all__ = ["Factorised"]


class Factorised:
    """The Cholesky factor of a matrix; columns in the order of elimination.

    Parameters
    ----------
    symbolic : Symbolic
    panels : ndarray
        The matrix at its places, zeros elsewhere; replaced by the factor.
    single : bool
        Whether large dense blocks are factorised and inverted in single precision.

    Attributes
    ----------
    failed : int
        The column, in the order of elimination, that is not positive definite with those before
        it; -1 if all are.
    """

    def __init__(self, symbolic: Symbolic, panels: Array, single: bool = False) -> None:
        self.symbolic, self.panels, self.single = symbolic, panels, single
        self._shape = tuple(symbolic.shape)
        stack = np.empty(max(symbolic.stack, 1))
        self.failed = int(factorise(self._shape, panels, self._routines(), stack))
        raise_kept()

    @cached_property
    def log_det(self) -> float:
        """Log determinant of the matrix."""
        return float(log_determinant(self._shape, self.panels))

    def solve(self, right: Array) -> Array:
        """Return the inverse times `right`, (n,) or (n, T)."""
        found = np.ascontiguousarray(right).reshape(len(right), -1).copy()
        solve(self._shape, self.panels, found)
        return found.reshape(right.shape)

    def root(self, right: Array) -> Array:
        """Return L^-T times `right` (n, T): of units, draws with this precision."""
        found = right.copy()
        solve_upper(self._shape, self.panels, found)
        return found

    def inverse(self) -> Array:
        """Panels of the inverse where the factor has numbers."""
        found = np.zeros(self.panels.size)
        shape = self.symbolic.shape
        rows, columns = np.diff(shape.below), np.diff(shape.first)
        widest = int(rows.max(initial=0)), int((rows * columns).max(initial=0))
        selected_inverse(self._shape, self.panels, found, self._routines(), widest)
        raise_kept()
        return found

    def _routines(self) -> tuple[int, ...]:
        return single_routines() if self.single else routines()


def filled(size: int, places: NDArray[Any], values: Array) -> Array:
    """Return panels that hold these values at these places."""
    panels = np.zeros(size)
    panels[places] = values
    return panels
