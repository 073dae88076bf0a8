"""BLAS and LAPACK inside kernels: routines by their addresses, which kernels take as arguments.

An address that is a global of a kernel would keep numba from caching it. All arguments of a routine
are pointers: numbers are put on the stack, and matrices are said by where they begin.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from qpruntime.jit import INTERPRETED, inlined

__all__ = ["dgemm", "dpotrf", "dpotri", "dsymm", "dsyrk", "dtrsm", "routines"]

_LAPACK, _BLAS = ("dpotrf", "dpotri"), ("dtrsm", "dsyrk", "dsymm", "dgemm")


@cache
def routines() -> tuple[int, ...]:
    """Addresses of SciPy's routines, in the order in which the functions below take them."""
    found = [get_cython_function_address("scipy.linalg.cython_lapack", name) for name in _LAPACK]
    found += [get_cython_function_address("scipy.linalg.cython_blas", name) for name in _BLAS]
    return tuple(found)


def _lower(context, builder, signature, args):
    """Emit a call by reference: 64-bit integers are addresses, all other numbers are values."""
    pointer = ir.IntType(8).as_pointer()
    values = cgutils.unpack_tuple(builder, args[1], len(signature.args[1]))
    given = []
    for value, kind in zip(values, signature.args[1], strict=True):
        if kind == types.int64:
            given.append(builder.inttoptr(value, pointer))
        else:
            slot = cgutils.alloca_once_value(builder, value)
            given.append(builder.bitcast(slot, pointer))
    function = ir.FunctionType(ir.VoidType(), [pointer] * len(given))
    builder.call(builder.inttoptr(args[0], function.as_pointer()), given)
    return context.get_dummy_value()


def _by_ctypes(handle, args):
    """The same with the jit off."""
    kinds = {np.uint8: ctypes.c_char, np.int32: ctypes.c_int, np.float64: ctypes.c_double}
    held = []
    for value in args:
        kind = kinds.get(type(value))
        if kind is None:
            held.append(ctypes.c_void_p(int(value)))
        else:
            plain = bytes([value]) if kind is ctypes.c_char else value.item()
            held.append(ctypes.byref(kind(plain)))
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(held))(handle)(*held)


if INTERPRETED:
    _call = _by_ctypes
else:

    @intrinsic
    def _call(typing, handle, args):
        """Call a routine by its address."""
        return types.void(types.int64, args), _lower


#: Letters that say where, how and of what kind.
_L, _R, _N, _T = np.uint8(76), np.uint8(82), np.uint8(78), np.uint8(84)


@inlined
def dpotrf(at, n, a, ld, info):
    """Replace the lower triangle at `a` by its Cholesky factor; `info` is where the status goes."""
    _call(at[0], (_L, np.int32(n), np.int64(a), np.int32(ld), np.int64(info)))


@inlined
def dpotri(at, n, a, ld, info):
    """Replace the Cholesky factor at `a` by the lower triangle of the inverse."""
    _call(at[1], (_L, np.int32(n), np.int64(a), np.int32(ld), np.int64(info)))


@inlined
def dtrsm(at, left, transposed, m, n, a, lda, b, ldb):
    """Replace b (m, n) by L^-1 b, or by b L^-1 where not `left`; of L^T if `transposed`."""
    side = _L if left else _R
    letter = _T if transposed else _N
    _call(
        at[2],
        (
            *(side, _L, letter, _N, np.int32(m), np.int32(n), np.float64(1.0)),
            *(np.int64(a), np.int32(lda), np.int64(b), np.int32(ldb)),
        ),
    )


@inlined
def dsyrk(at, n, k, alpha, a, lda, beta, c, ldc):
    """Lower triangle of c (n, n) = alpha a a^T + beta c, for a (n, k)."""
    _call(
        at[3],
        (
            *(_L, _N, np.int32(n), np.int32(k), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )


@inlined
def dsymm(at, m, n, alpha, a, lda, b, ldb, beta, c, ldc):
    """Let c (m, n) = alpha a b + beta c, for a symmetric (m, m) of which the lower half is read."""
    _call(
        at[4],
        (
            *(_L, _L, np.int32(m), np.int32(n), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.int64(b), np.int32(ldb)),
            *(np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )


@inlined
def dgemm(at, first, second, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """Let c (m, n) = alpha op(a) op(b) + beta c; `first` and `second` say what is transposed."""
    one = _T if first else _N
    two = _T if second else _N
    _call(
        at[5],
        (
            *(one, two, np.int32(m), np.int32(n), np.int32(k), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.int64(b), np.int32(ldb)),
            *(np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )
