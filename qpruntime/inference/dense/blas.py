"""BLAS and LAPACK on parts of Fortran-ordered matrices, in place and without the GIL.

SciPy's wrappers hold the GIL and copy what is not contiguous. L is a lower triangle throughout.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from numba.extending import get_cython_function_address

from qpruntime.arrays import Array

__all__ = ["add_product", "add_square", "factorise", "invert", "multiply", "solve"]

_POINTERS = {"dgemm": 13, "dsyrk": 10, "dtrsm": 11, "dtrmm": 11, "dpotrf": 5, "dtrtri": 6}


@cache
def _routine(name: str) -> Callable[..., None]:
    """A routine of SciPy's; all its arguments are pointers."""
    library = "lapack" if name in ("dpotrf", "dtrtri") else "blas"
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    routine: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * _POINTERS[name])(
        address
    )
    return routine


def _word(letter: str) -> Any:
    return ctypes.byref(ctypes.c_char(letter.encode()))


def _count(n: int) -> Any:
    return ctypes.byref(ctypes.c_int(n))


def _number(value: float) -> Any:
    return ctypes.byref(ctypes.c_double(value))


def _matrix(a: Array) -> tuple[int, Any]:
    """Where a matrix begins, and its leading dimension."""
    # The stride of a single column is anything.
    return a.ctypes.data, _count(max(a.strides[1] // a.itemsize, len(a), 1))


def add_product(alpha: float, A: Array, B: Array, out: Array, transposed: bool) -> None:
    """Add alpha A B^T to `out`, or alpha A^T B if `transposed`."""
    (first, second), inner = ("TN", A.shape[0]) if transposed else ("NT", A.shape[1])
    _routine("dgemm")(
        _word(first),
        _word(second),
        *map(_count, (*out.shape, inner)),
        _number(alpha),
        *_matrix(A),
        *_matrix(B),
        _number(1.0),
        *_matrix(out),
    )


def add_square(alpha: float, A: Array, out: Array, transposed: bool) -> None:
    """Add alpha A A^T to the lower triangle of `out`, or alpha A^T A if `transposed`."""
    letter, inner = ("T", A.shape[0]) if transposed else ("N", A.shape[1])
    _routine("dsyrk")(
        _word("L"),
        _word(letter),
        *map(_count, (len(out), inner)),
        _number(alpha),
        *_matrix(A),
        _number(1.0),
        *_matrix(out),
    )


def _triangular(
    name: str, left: bool, transposed: bool, alpha: float, L: Array, out: Array
) -> None:
    _routine(name)(
        _word("L" if left else "R"),
        _word("L"),
        _word("T" if transposed else "N"),
        _word("N"),
        *map(_count, out.shape),
        _number(alpha),
        *_matrix(L),
        *_matrix(out),
    )


def solve(L: Array, out: Array, left: bool, transposed: bool) -> None:
    """Replace `out` by L^-1 out, or by out L^-1 if not `left`, with L^T for L if `transposed`."""
    _triangular("dtrsm", left, transposed, 1.0, L, out)


def multiply(alpha: float, L: Array, out: Array, left: bool, transposed: bool) -> None:
    """Replace `out` by alpha L out, or by alpha out L if not `left`; L^T for L if `transposed`."""
    _triangular("dtrmm", left, transposed, alpha, L, out)


def factorise(out: Array) -> int:
    """Replace a lower triangle by its Cholesky factor; return the row that fails, from 1, or 0."""
    info = ctypes.c_int(0)
    _routine("dpotrf")(_word("L"), _count(len(out)), *_matrix(out), ctypes.byref(info))
    return info.value


def invert(out: Array) -> None:
    """Replace L by its inverse."""
    info = ctypes.c_int(0)
    letters = _word("L"), _word("N")
    _routine("dtrtri")(*letters, _count(len(out)), *_matrix(out), ctypes.byref(info))
