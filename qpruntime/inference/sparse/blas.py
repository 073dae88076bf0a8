"""Triangular solves and squares of blocks of rows, in place and without the interpreter lock.

scipy's own wrappers of these hold the lock: two threads took 1.95 times as long as one. The same
functions are called here by the addresses that scipy hands to Cython. Arrays are C-ordered: rows
(n, M) of float32 or float64, lower triangles (M, M) of the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas

__all__ = ["add_outer", "add_square", "divide", "divide_transposed"]

Rows = NDArray[Any]

_LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
_NUMBER = {"s": ctypes.c_float, "d": ctypes.c_double}


@cache
def _function(name: str, count: int) -> Callable[..., None]:
    """A BLAS function of so many arguments, all of them addresses."""
    capsule = cython_blas.__pyx_capi__[name]
    api = ctypes.pythonapi
    named = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    found: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)(
        at(capsule, named(capsule))
    )
    return found


def _call(name: str, letter: str, *args: Any) -> None:
    """Call by reference: words are letters, ints and floats numbers, the rest arrays."""
    held: list[Any] = []
    for value in args:
        if isinstance(value, bytes):
            held.append(ctypes.c_char(value))
        elif isinstance(value, int):
            held.append(ctypes.c_int(value))
        elif isinstance(value, float):
            held.append(_NUMBER[letter](value))
        else:
            held.append(value)
    given = [
        value.ctypes.data if isinstance(value, np.ndarray) else ctypes.addressof(value)
        for value in held
    ]
    _function(letter + name, len(given))(*given)


def divide(rows: Rows, lower: Rows) -> Rows:
    """Replace rows by rows L^-T: each row x becomes L^-1 x."""
    return _solve(rows, lower, b"T")


def divide_transposed(rows: Rows, lower: Rows) -> Rows:
    """Replace rows by rows L^-1: each row x becomes L^-T x."""
    return _solve(rows, lower, b"N")


def _solve(rows: Rows, lower: Rows, transposed: bytes) -> Rows:
    n, m = rows.shape
    _check(rows, lower)
    if n:
        # For Fortran these are the columns of (M, n), and a triangle that is an upper one.
        letter = _LETTER[rows.dtype]
        _call("trsm", letter, b"L", b"U", transposed, b"N", m, n, 1.0, lower, m, rows, m)
    return rows


def add_square(rows: Rows, sign: float, total: Rows) -> None:
    """Add sign rows^T rows to the lower triangle of `total`, which has the same dtype."""
    n, m = rows.shape
    _check(rows, total)
    if n:
        letter = _LETTER[rows.dtype]
        _call("syrk", letter, b"U", b"N", m, n, float(sign), rows, m, 1.0, total, m)


def add_outer(rows: Rows, left: Rows, right: Rows) -> None:
    """Add left right^T to rows; left (n,) and right (M,) have the same dtype and no strides."""
    n, m = rows.shape
    assert (left.shape, right.shape) == ((n,), (m,))
    assert left.dtype == right.dtype == rows.dtype
    for array in (rows, left, right):
        assert array.flags.c_contiguous
    if n:
        _call("ger", _LETTER[rows.dtype], m, n, 1.0, right, 1, left, 1, rows, m)


def _check(rows: Rows, square: Rows) -> None:
    """Guard against what BLAS would take for granted."""
    m = rows.shape[1]
    assert square.shape == (m, m)
    assert square.dtype == rows.dtype
    assert rows.flags.c_contiguous
    assert square.flags.c_contiguous
