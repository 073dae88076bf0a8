"""Cholesky factor of a sparse precision, in double or single precision."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.inference.precision.cholesky_kernels import (
    factorise,
    log_determinant,
    routines,
    selected_inverse,
    solve,
    solve_upper,
)
from qpruntime.inference.precision.pattern import Symbolic

__all__ = ["Factorised", "raise_kept", "single_routines"]

# --- Factorised sparse matrix


@restorable("factorised/1")
class Factorised:
    """Cholesky factor of a matrix whose columns are in the order of elimination.

    Parameters
    ----------
    symbolic : Symbolic
    panels : ndarray
        The matrix at its places, with zeros elsewhere; the factor replaces it.
    single : bool
        Whether large dense blocks are factorised and inverted in single precision.

    Attributes
    ----------
    failed : int
        First column, in the order of elimination, at which the matrix is not positive definite; -1
        if there is none.
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
        solution = np.ascontiguousarray(right).reshape(len(right), -1).copy()
        solve(self._shape, self.panels, solution)
        return solution.reshape(right.shape)

    def root(self, right: Array) -> Array:
        """Return L^-T times `right` (n, T): draws with this precision from normals."""
        draws = right.copy()
        solve_upper(self._shape, self.panels, draws)
        return draws

    def inverse(self) -> Array:
        """Return the panels of the inverse at the places of the factor's numbers."""
        panels = np.zeros(self.panels.size)
        shape = self.symbolic.shape
        rows, columns = np.diff(shape.below), np.diff(shape.first)
        widest = int(rows.max(initial=0)), int((rows * columns).max(initial=0))
        selected_inverse(self._shape, self.panels, panels, self._routines(), widest)
        raise_kept()
        return panels

    def _routines(self) -> tuple[int, ...]:
        return single_routines() if self.single else routines()


def filled(size: int, places: NDArray[np.integer], values: Array) -> Array:
    """Return panels that hold these values at these places."""
    panels = np.zeros(size)
    panels[places] = values
    return panels


# --- Dense blocks in single precision
#
# Steps whose sites are needed to about 1e-4 use single precision. Kernels call these routines as
# they call those of LAPACK. A block is left to LAPACK if it is small, not definite in single
# precision, or if there is no memory for a copy. An interruption cannot pass through a kernel, so
# it is kept here and raised after the kernel has ended.

#: Sides from which on single precision pays for its copies.
_SIDE = 512
_KIND = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
#: Exceptions that were raised while a kernel had to go on.
_KEPT: list[BaseException] = []


def raise_kept() -> None:
    """Raise the exception that interrupted a kernel since the last call."""
    if _KEPT:
        error = _KEPT[0]
        _KEPT.clear()
        raise error


@cache
def single_routines() -> tuple[int, ...]:
    """Return the addresses of `routines`, with a factor and an inverse in single precision."""
    known = routines()
    single_addresses = [
        ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in _callbacks()
    ]
    return (*single_addresses, *known[2:])


@cache
def _callbacks() -> tuple[Any, Any]:
    """Return the callbacks, which have to live as long as their addresses are in use."""
    potrf, potri = routines()[:2]
    factor = partial(lapack.spotrf, lower=1, overwrite_a=1)
    inverse = partial(lapack.spotri, lower=1, overwrite_c=1)
    return _KIND(_in_single(potrf, factor)), _KIND(_in_single(potri, inverse))


def _in_single(exact: int, routine: Callable[..., tuple[Any, int]]) -> Callable[..., None]:
    """Return a routine (letter, n, a, lda, info) of pointers that works in single precision."""
    double = _KIND(exact)

    def run(letter: int, n: int, a: int, lda: int, info: int) -> None:
        """Replace a large matrix in single precision, a small or failing one in double."""
        try:
            side = ctypes.c_int.from_address(n).value
            if side >= _SIDE and _replaced(routine, side, a, ctypes.c_int.from_address(lda).value):
                ctypes.c_int.from_address(info).value = 0
                return
        except MemoryError:
            pass
        except BaseException as error:
            _KEPT.append(error)
        double(letter, n, a, lda, info)

    return run


def _replaced(routine: Callable[..., tuple[Any, int]], side: int, a: int, ld: int) -> bool:
    """Replace the matrix at an address by the routine's result; return whether it did."""
    size = ld * (side - 1) + side
    flat = np.ctypeslib.as_array((ctypes.c_double * size).from_address(a))
    steps = (flat.itemsize, ld * flat.itemsize)
    block = np.lib.stride_tricks.as_strided(flat, (side, side), steps)
    result, failed = routine(block.astype(np.float32, order="F"))
    if not failed:
        block[:] = result
    return not failed
