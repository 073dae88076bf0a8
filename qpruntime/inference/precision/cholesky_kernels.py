"""Supernodal Cholesky factor and selected inverse. Kernels only."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from qpruntime._numba import INTERPRETED, contracted, inlined, kernel
from qpruntime._typing import Array, IntArray

__all__ = [
    "dgemm",
    "dpotrf",
    "dpotri",
    "dsymm",
    "dsyrk",
    "dtrsm",
    "factorise",
    "log_determinant",
    "routines",
    "selected_inverse",
    "solve",
    "solve_upper",
]

# --- BLAS and LAPACK in kernels
#
# Numba would not cache a kernel with an address among its globals. All arguments of a routine are
# pointers: numbers are put on the stack, and a matrix is given by the address of its first number.

_LAPACK, _BLAS = ("dpotrf", "dpotri"), ("dtrsm", "dsyrk", "dsymm", "dgemm")


@cache
def routines() -> tuple[int, ...]:
    """Return addresses of SciPy's routines, in the order in which the functions below take them."""
    addresses = [
        get_cython_function_address("scipy.linalg.cython_lapack", name) for name in _LAPACK
    ]
    addresses += [get_cython_function_address("scipy.linalg.cython_blas", name) for name in _BLAS]
    return tuple(addresses)


def _lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emit a call by reference: 64-bit integers are addresses, all other numbers are values."""
    pointer = ir.IntType(8).as_pointer()
    values = cgutils.unpack_tuple(builder, args[1], len(signature.args[1]))
    arguments = []
    for value, kind in zip(values, signature.args[1], strict=True):
        if kind == types.int64:
            arguments.append(builder.inttoptr(value, pointer))
        else:
            slot = cgutils.alloca_once_value(builder, value)
            arguments.append(builder.bitcast(slot, pointer))
    function = ir.FunctionType(ir.VoidType(), [pointer] * len(arguments))
    builder.call(builder.inttoptr(args[0], function.as_pointer()), arguments)
    return context.get_dummy_value()


def _by_ctypes(handle: int, args: tuple[Any, ...]) -> None:
    """Call a routine by reference while the jit is off."""
    kinds: dict[type, Any] = {
        np.uint8: ctypes.c_char,
        np.int32: ctypes.c_int,
        np.float64: ctypes.c_double,
    }
    arguments: list[Any] = []
    for value in args:
        kind = kinds.get(type(value))
        if kind is None:
            arguments.append(ctypes.c_void_p(int(value)))
        else:
            plain = bytes([value]) if kind is ctypes.c_char else value.item()
            arguments.append(ctypes.byref(kind(plain)))
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arguments))(handle)(*arguments)


if INTERPRETED:
    _call = _by_ctypes
else:

    @intrinsic
    def _call(typing: Any, handle: Any, args: Any) -> Any:
        """Call a routine by its address."""
        return types.void(types.int64, args), _lower


#: Letters of LAPACK arguments: side, triangle, transposition and kind of diagonal.
_L, _R, _N, _T = np.uint8(76), np.uint8(82), np.uint8(78), np.uint8(84)


@inlined
def dpotrf(at: tuple[int, ...], n: int, a: int, ld: int, info: int) -> None:
    """Replace the lower triangle at `a` by its Cholesky factor; the status goes to `info`."""
    _call(at[0], (_L, np.int32(n), np.int64(a), np.int32(ld), np.int64(info)))


@inlined
def dpotri(at: tuple[int, ...], n: int, a: int, ld: int, info: int) -> None:
    """Replace the Cholesky factor at `a` by the lower triangle of the inverse."""
    _call(at[1], (_L, np.int32(n), np.int64(a), np.int32(ld), np.int64(info)))


@inlined
def dtrsm(
    at: tuple[int, ...],
    left: bool,
    transposed: bool,
    m: int,
    n: int,
    a: int,
    lda: int,
    b: int,
    ldb: int,
) -> None:
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
def dsyrk(
    at: tuple[int, ...],
    n: int,
    k: int,
    alpha: float,
    a: int,
    lda: int,
    beta: float,
    c: int,
    ldc: int,
) -> None:
    """Let the lower triangle of c (n, n) be that of alpha a a^T + beta c, for a (n, k)."""
    _call(
        at[3],
        (
            *(_L, _N, np.int32(n), np.int32(k), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )


@inlined
def dsymm(
    at: tuple[int, ...],
    m: int,
    n: int,
    alpha: float,
    a: int,
    lda: int,
    b: int,
    ldb: int,
    beta: float,
    c: int,
    ldc: int,
) -> None:
    """Let c (m, n) = alpha a b + beta c, for a symmetric a (m, m) given by its lower half."""
    _call(
        at[4],
        (
            *(_L, _L, np.int32(m), np.int32(n), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.int64(b), np.int32(ldb)),
            *(np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )


@inlined
def dgemm(
    at: tuple[int, ...],
    first: bool,
    second: bool,
    m: int,
    n: int,
    k: int,
    alpha: float,
    a: int,
    lda: int,
    b: int,
    ldb: int,
    beta: float,
    c: int,
    ldc: int,
) -> None:
    """Let c (m, n) = alpha op(a) op(b) + beta c; `first` and `second` say which are transposed."""
    op_a = _T if first else _N
    op_b = _T if second else _N
    _call(
        at[5],
        (
            *(op_a, op_b, np.int32(m), np.int32(n), np.int32(k), np.float64(alpha)),
            *(np.int64(a), np.int32(lda), np.int64(b), np.int32(ldb)),
            *(np.float64(beta), np.int64(c), np.int32(ldc)),
        ),
    )


# --- Supernodal Cholesky factorisation and solves
#
# The factorisation is multifrontal: each supernode adds the updates of its children to its panel,
# factorises it, and leaves an update of the rows below on a stack (Duff & Reid, 1983).

#: Panels with fewer products are factorised by plain loops, because a call of BLAS costs as much.
_SMALL = 600


@contracted
def factorise(
    shape: tuple[IntArray, ...], panels: Array, routines: tuple[int, ...], stack: Array
) -> int:
    """Replace a matrix in its panels by its factor; return the column that fails, or -1.

    `panels` holds the lower triangle at the places that a `Shape` gives it, and zeros. `stack` has
    the room of `Symbolic.stack`.
    """
    first, begins, below, rows, owner, children = shape
    S = first.size - 1
    where = np.empty(owner.size, np.int64)
    waiting, info = np.empty(S, np.int64), np.zeros(1, np.int32)
    depth, top = 0, 0
    at, room = panels.ctypes.data, stack.ctypes.data
    for s in range(S):
        c0 = first[s]
        nc, nr = first[s + 1] - c0, below[s + 1] - below[s]
        ld, p0 = nc + nr, begins[s]
        u0 = top
        for k in range(u0, u0 + nr * nr):
            stack[k] = 0.0
        if children[s]:
            for k in range(nc):
                where[c0 + k] = k
            for k in range(nr):
                where[rows[below[s] + k]] = nc + k
            for _ in range(children[s]):
                depth -= 1
                c = waiting[depth]
                b0 = below[c]
                m = below[c + 1] - b0
                top -= m * m
                for a in range(m):
                    column = where[rows[b0 + a]]
                    source = top + a * m
                    if column < nc:
                        target = p0 + column * ld
                        for b in range(a, m):
                            panels[target + where[rows[b0 + b]]] += stack[source + b]
                    else:
                        target = u0 + (column - nc) * nr - nc
                        for b in range(a, m):
                            stack[target + where[rows[b0 + b]]] += stack[source + b]
        if nc * ld * ld < _SMALL:
            failed = small_panel(panels, p0, nc, ld)
            if failed >= 0:
                return int(c0 + failed)
            small_update(panels, p0, nc, ld, stack, u0)
        else:
            dpotrf(routines, nc, at + 8 * p0, ld, info.ctypes.data)
            if info[0] != 0:
                return int(c0 + info[0] - 1)
            if nr:
                low = at + 8 * (p0 + nc)
                dtrsm(routines, False, True, nr, nc, at + 8 * p0, ld, low, ld)
                dsyrk(routines, nr, nc, -1.0, low, ld, 1.0, room + 8 * u0, nr)
        if nr:
            if u0 != top:
                for k in range(nr * nr):
                    stack[top + k] = stack[u0 + k]
            waiting[depth] = s
            depth += 1
            top += nr * nr
    return -1


@contracted
def small_panel(panels: Array, p0: int, nc: int, ld: int) -> int:
    """Factorise one panel by loops; return the column that fails, or -1."""
    for j in range(nc):
        column = p0 + j * ld
        pivot = panels[column + j]
        if not (pivot > 0.0 and pivot < math.inf):
            return j
        root = math.sqrt(pivot)
        panels[column + j] = root
        inverse = 1.0 / root
        for i in range(j + 1, ld):
            panels[column + i] *= inverse
        for k in range(j + 1, nc):
            factor = panels[column + k]
            target = p0 + k * ld
            for i in range(k, ld):
                panels[target + i] -= factor * panels[column + i]
    return -1


@contracted
def small_update(panels: Array, p0: int, nc: int, ld: int, stack: Array, u0: int) -> None:
    """Subtract the products of a panel's rows below from its update."""
    nr = ld - nc
    for j in range(nc):
        low = p0 + j * ld + nc
        for a in range(nr):
            factor = panels[low + a]
            target = u0 + a * nr
            for b in range(a, nr):
                stack[target + b] -= factor * panels[low + b]


@kernel
def log_determinant(shape: tuple[IntArray, ...], panels: Array) -> float:
    """Return the log determinant of the matrix whose factor is in the panels."""
    first, begins, below = shape[0], shape[1], shape[2]
    total = 0.0
    for s in range(first.size - 1):
        ld = first[s + 1] - first[s] + below[s + 1] - below[s]
        for j in range(first[s + 1] - first[s]):
            total += math.log(panels[begins[s] + j * (ld + 1)])
    return 2.0 * total


@contracted
def solve(shape: tuple[IntArray, ...], panels: Array, x: Array) -> None:
    """Replace columns x (n, T), C-ordered, by (L L^T)^-1 x."""
    solve_lower(shape, panels, x)
    solve_upper(shape, panels, x)


@contracted
def solve_lower(shape: tuple[IntArray, ...], panels: Array, x: Array) -> None:
    """Replace x (n, T) by L^-1 x."""
    first, begins, below, rows, _, _ = shape
    T = x.shape[1]
    for s in range(first.size - 1):
        c0 = first[s]
        nc, nr = first[s + 1] - c0, below[s + 1] - below[s]
        ld, b0 = nc + nr, below[s]
        for j in range(nc):
            column = begins[s] + j * ld
            inverse = 1.0 / panels[column + j]
            for t in range(T):
                x[c0 + j, t] *= inverse
            for i in range(j + 1, nc):
                value = panels[column + i]
                for t in range(T):
                    x[c0 + i, t] -= value * x[c0 + j, t]
            for i in range(nr):
                value = panels[column + nc + i]
                row = rows[b0 + i]
                for t in range(T):
                    x[row, t] -= value * x[c0 + j, t]


@contracted
def solve_upper(shape: tuple[IntArray, ...], panels: Array, x: Array) -> None:
    """Replace x (n, T) by L^-T x."""
    first, begins, below, rows, _, _ = shape
    T = x.shape[1]
    for s in range(first.size - 2, -1, -1):
        c0 = first[s]
        nc, nr = first[s + 1] - c0, below[s + 1] - below[s]
        ld, b0 = nc + nr, below[s]
        for j in range(nc - 1, -1, -1):
            column = begins[s] + j * ld
            for i in range(nr):
                value = panels[column + nc + i]
                row = rows[b0 + i]
                for t in range(T):
                    x[c0 + j, t] -= value * x[row, t]
            for i in range(j + 1, nc):
                value = panels[column + i]
                for t in range(T):
                    x[c0 + j, t] -= value * x[c0 + i, t]
            inverse = 1.0 / panels[column + j]
            for t in range(T):
                x[c0 + j, t] *= inverse


# --- Selected inverse (Takahashi, Fagan & Chin, 1973)
#
# Supernodes are visited from the last. With R the rows below and J the columns, Y = L_RJ L_JJ^-1,
# Z_RJ = -Z_RR Y and Z_JJ = (L_JJ L_JJ^T)^-1 - Y^T Z_RJ. The panels of ancestors hold Z_RR.

_SMALL_INVERSE = 300


@contracted
def selected_inverse(
    shape: tuple[IntArray, ...],
    panels: Array,
    inverse: Array,
    routines: tuple[int, ...],
    widest: tuple[int, int],
) -> None:
    """Fill the panels of the inverse from those of the factor.

    Only lower triangles are filled, like those of the factor. `widest` has the largest number of
    rows below, and the largest product of these with the columns.
    """
    first, begins, below = shape[0], shape[1], shape[2]
    most, product = widest
    W, Y = np.empty(most * most), np.empty(product)
    local, info = np.empty(most, np.int64), np.zeros(1, np.int32)
    at, to = panels.ctypes.data, inverse.ctypes.data
    w, y = np.int64(W.ctypes.data), np.int64(Y.ctypes.data)
    for s in range(first.size - 2, -1, -1):
        c0 = first[s]
        nc, b0 = first[s + 1] - c0, below[s]
        nr = below[s + 1] - b0
        ld, p0 = nc + nr, begins[s]
        gather(shape, inverse, b0, nr, local, W)
        if nc == 1 and nr * nr < _SMALL_INVERSE:
            single(panels, inverse, p0, nr, W, Y)
            continue
        for j in range(nc):
            for i in range(j, nc):
                inverse[p0 + j * ld + i] = panels[p0 + j * ld + i]
            for i in range(nr):
                Y[j * nr + i] = panels[p0 + j * ld + nc + i]
        dpotri(routines, nc, to + 8 * p0, ld, info.ctypes.data)
        if nr:
            low = to + 8 * (p0 + nc)
            dtrsm(routines, False, False, nr, nc, at + 8 * p0, ld, y, nr)
            dsymm(routines, nr, nc, -1.0, w, nr, y, nr, 0.0, low, ld)
            dgemm(routines, True, False, nc, nc, nr, -1.0, y, nr, low, ld, 1.0, to + 8 * p0, ld)


@contracted
def gather(
    shape: tuple[IntArray, ...], inverse: Array, b0: int, nr: int, local: IntArray, W: Array
) -> None:
    """Fill the lower triangle of Z_RR, column-major, by merging lists of rows."""
    first, begins, below, rows, owner, _ = shape
    i = 0
    while i < nr:
        s = owner[rows[b0 + i]]
        c0, end = first[s], first[s + 1]
        nc = end - c0
        ld = nc + below[s + 1] - below[s]
        j = i
        while j < nr and rows[b0 + j] < end:
            local[j] = rows[b0 + j] - c0
            j += 1
        p = below[s]
        for k in range(j, nr):
            row = rows[b0 + k]
            while rows[p] < row:
                p += 1
            local[k] = nc + p - below[s]
        for a in range(i, j):
            column = begins[s] + local[a] * ld
            for b in range(a, nr):
                W[a * nr + b] = inverse[column + local[b]]
        i = j


@contracted
def single(panels: Array, inverse: Array, p0: int, nr: int, W: Array, Y: Array) -> None:
    """Fill the selected inverse of a panel of one column."""
    scale = 1.0 / panels[p0]
    for i in range(nr):
        Y[i] = panels[p0 + 1 + i] * scale
        inverse[p0 + 1 + i] = 0.0
    for a in range(nr):
        y, total = Y[a], W[a * nr + a] * Y[a]
        for b in range(a + 1, nr):
            value = W[a * nr + b]
            total += value * Y[b]
            inverse[p0 + 1 + b] -= value * y
        inverse[p0 + 1 + a] -= total
    diagonal = scale * scale
    for i in range(nr):
        diagonal -= Y[i] * inverse[p0 + 1 + i]
    inverse[p0] = diagonal
