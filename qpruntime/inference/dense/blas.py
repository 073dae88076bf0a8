"""BLAS and LAPACK on parts of Fortran-ordered matrices, in place and without the GIL.

SciPy's wrappers hold the GIL and copy what is not contiguous. L is a lower triangle throughout.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dlauum, dpotrf, dtrtri, dtrtrs

from qpruntime._typing import Array
from qpruntime.execution.threads import Piece, share

__all__ = [
    "WHOLE",
    "add_product",
    "add_square",
    "cholesky",
    "factorise",
    "inverse_triangle",
    "invert",
    "multiply",
    "routine",
    "solve",
    "solve_lower",
    "square",
]

_POINTER_COUNTS = {
    "gemm": 13, "syrk": 10, "trsm": 11, "trmm": 11, "ger": 9, "potrf": 5, "trtri": 6,
}  # fmt: skip


@cache
def routine(name: str) -> Callable[..., None]:
    """Return a BLAS or LAPACK routine of SciPy, whose arguments are all pointers."""
    library = "lapack" if name[1:] in ("potrf", "trtri") else "blas"
    address = get_cython_function_address(f"scipy.linalg.cython_{library}", name)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * _POINTER_COUNTS[name[1:]])(address)


def _word(letter: str) -> object:
    return ctypes.byref(ctypes.c_char(letter.encode()))


def _count(n: int) -> object:
    return ctypes.byref(ctypes.c_int(n))


def _number(value: float) -> object:
    return ctypes.byref(ctypes.c_double(value))


def _address(a: Array) -> tuple[int, object]:
    """Return the address of a matrix, and its leading dimension."""
    # The stride of a single column is arbitrary.
    return a.ctypes.data, _count(max(a.strides[1] // a.itemsize, len(a), 1))


def add_product(alpha: float, A: Array, B: Array, out: Array, transposed: bool) -> None:
    """Add alpha A B^T to `out`, or alpha A^T B if `transposed`."""
    (first, second), inner = ("TN", A.shape[0]) if transposed else ("NT", A.shape[1])
    routine("dgemm")(
        _word(first),
        _word(second),
        *map(_count, (*out.shape, inner)),
        _number(alpha),
        *_address(A),
        *_address(B),
        _number(1.0),
        *_address(out),
    )


def add_square(alpha: float, A: Array, out: Array, transposed: bool) -> None:
    """Add alpha A A^T to the lower triangle of `out`, or alpha A^T A if `transposed`."""
    letter, inner = ("T", A.shape[0]) if transposed else ("N", A.shape[1])
    routine("dsyrk")(
        _word("L"),
        _word(letter),
        *map(_count, (len(out), inner)),
        _number(alpha),
        *_address(A),
        _number(1.0),
        *_address(out),
    )


def _triangular(
    name: str, left: bool, transposed: bool, alpha: float, L: Array, out: Array
) -> None:
    routine(name)(
        _word("L" if left else "R"),
        _word("L"),
        _word("T" if transposed else "N"),
        _word("N"),
        *map(_count, out.shape),
        _number(alpha),
        *_address(L),
        *_address(out),
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
    routine("dpotrf")(_word("L"), _count(len(out)), *_address(out), ctypes.byref(info))
    return info.value


def invert(out: Array) -> None:
    """Replace L by its inverse."""
    info = ctypes.c_int(0)
    letters = _word("L"), _word("N")
    routine("dtrtri")(*letters, _count(len(out)), *_address(out), ctypes.byref(info))


# --- Tiled Cholesky factors on several threads
#
# The recursion halves the matrix in place, and cuts products of a half into pieces of about 256
# rows or columns for the threads. Up to `WHOLE` rows a single call of LAPACK is faster.

#: Number of rows up to which one thread is faster than several.
WHOLE = 600
# Rows and columns of a piece for one thread, and of a diagonal block that LAPACK factorises.
_PIECE, _BLOCK = 256, 256
# Rows of triangles that LAPACK inverts, on one thread and on several.
_LAPACK_ROWS, _LAPACK_ROWS_SHARED = 75, 64


def _cuts(n: int) -> list[slice]:
    """Cut n rows into equal pieces, at least two."""
    count = max(-(-n // _PIECE), 2)
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def cholesky(A: Array) -> tuple[Array, int]:
    """Return the Cholesky factor of a lower triangle, in place if that is Fortran-ordered.

    Parameters
    ----------
    A : ndarray, shape (N, N)
        The part above its diagonal is neither read nor set.

    Returns
    -------
    lower : ndarray, shape (N, N)
    info : int
        0, or the row, counted from 1, up to which A is not positive definite.
    """
    if len(A) <= WHOLE:
        lower, info = dpotrf(A, lower=1, overwrite_a=1, clean=0)
        return lower, info
    A = np.asfortranarray(A)
    return A, _factorise(A)


def _factorise(A: Array) -> int:
    if len(A) <= _BLOCK:
        return factorise(A)
    h = len(A) // 2
    if failed := _factorise(A[:h, :h]):
        return failed
    below = A[h:, :h]
    share([(solve, (A[:h, :h], below[rows], False, True)) for rows in _cuts(len(below))])
    share(list(_squares(-1.0, below, A[h:, h:], False)))
    failed = _factorise(A[h:, h:])
    return h + failed if failed else 0


def _squares(alpha: float, A: Array, out: Array, transposed: bool) -> Iterator[Piece]:
    """Yield pieces that add alpha A A^T, or alpha A^T A, to the lower triangle of `out`."""
    if transposed:
        A = A.T
    cuts = _cuts(len(out))
    for i, columns in enumerate(cuts):
        columns_factor = A[columns].T if transposed else A[columns]
        yield add_square, (alpha, columns_factor, out[columns, columns], transposed)
        for rows in cuts[i + 1 :]:
            rows_factor = A[rows].T if transposed else A[rows]
            yield add_product, (alpha, rows_factor, columns_factor, out[rows, columns], transposed)


def inverse_triangle(lower: Array) -> Array:
    """Return the inverse of a lower triangle, Fortran-ordered; the part above it is not set.

    LAPACK's blocks leave much work to an unblocked routine. Halves and products take two thirds of
    its time at N = 200 and nine tenths at 1000.
    """
    out = np.empty(lower.shape, order="F")
    (_invert_whole if len(lower) <= WHOLE else _invert)(lower, out)
    return out


def _invert_whole(lower: Array, out: Array) -> None:
    n = len(lower)
    if n <= _LAPACK_ROWS:
        out[...] = dtrtri(lower, lower=1)[0]
        return
    h = n // 2
    _invert_whole(lower[:h, :h], out[:h, :h])
    _invert_whole(lower[h:, h:], out[h:, h:])
    below = dtrmm(-1.0, out[h:, h:], lower[h:, :h], lower=1)
    out[h:, :h] = dtrmm(1.0, out[:h, :h], below, side=1, lower=1, overwrite_b=1)


def _invert(lower: Array, out: Array) -> None:
    n = len(lower)
    if n <= _LAPACK_ROWS_SHARED:
        out[...] = lower
        invert(out)
        return
    h = n // 2
    halves: list[Piece] = [
        (_invert, (lower[:h, :h], out[:h, :h])),
        (_invert, (lower[h:, h:], out[h:, h:])),
    ]
    # Diagonal blocks of middling size run side by side; larger ones share their products instead.
    if 2 * _BLOCK < n <= 4 * _BLOCK:
        share(halves)
    else:
        for function, arguments in halves:
            function(*arguments)
    below = out[h:, :h]
    below[...] = lower[h:, :h]
    share([(multiply, (-1.0, out[h:, h:], below[:, c], True, False)) for c in _cuts(h)])
    share([(multiply, (1.0, out[:h, :h], below[r], False, False)) for r in _cuts(n - h)])


def square(lower: Array) -> Array:
    """Return the lower triangle of L^T L, in the place of L if that is Fortran-ordered."""
    if len(lower) <= WHOLE:
        return np.asarray(dlauum(lower, lower=1, overwrite_c=1)[0])
    lower = np.asfortranarray(lower)
    _square(lower)
    return lower


def _square(A: Array) -> None:
    n = len(A)
    if n <= _BLOCK:
        A[...] = dlauum(A, lower=1)[0]
        return
    h = n // 2
    below = A[h:, :h]
    _square(A[:h, :h])
    share(list(_squares(1.0, below, A[:h, :h], True)))
    share([(multiply, (1.0, A[h:, h:], below[:, c], True, True)) for c in _cuts(h)])
    _square(A[h:, h:])


def solve_lower(lower: Array, columns: Array) -> Array:
    """Return L^-1 times columns, which are overwritten if they are Fortran-ordered."""
    if len(lower) <= WHOLE:
        return np.asarray(dtrtrs(lower, columns, lower=1, overwrite_b=1)[0])
    lower, columns = np.asfortranarray(lower), np.asfortranarray(columns)
    share([(solve, (lower, columns[:, c], True, False)) for c in _cuts(columns.shape[1])])
    return columns
