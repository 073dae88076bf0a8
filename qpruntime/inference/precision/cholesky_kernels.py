"""The Cholesky factor of a sparse matrix, supernode after supernode, and solves with it.

Multifrontal: each supernode adds the updates of its children to its panel, factorises it, and
leaves an update of the rows below on a stack (Duff & Reid, 1983).
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.precision.blas import dpotrf, dsyrk, dtrsm
from qpruntime.jit import contracted, kernel

__all__ = ["factorise", "log_determinant", "solve", "solve_upper"]

#: Panels of fewer products are done by plain loops: a call of BLAS costs as much.
_SMALL = 600


@contracted
def factorise(shape, panels, routines, stack):
    """Replace a matrix in its panels by its factor; return the column that fails, or -1.

    `panels` holds the lower triangle at the places that a `Shape` gives it, and zeros. `stack` has
    the room of `Symbolic.stack`.
    """
    first, begins, below, rows, owner, children = shape
    S = first.size - 1
    where = np.empty(owner.size, np.int64)
    held, info = np.empty(S, np.int64), np.zeros(1, np.int32)
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
                c = held[depth]
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
                return c0 + failed
            small_update(panels, p0, nc, ld, stack, u0)
        else:
            dpotrf(routines, nc, at + 8 * p0, ld, info.ctypes.data)
            if info[0] != 0:
                return c0 + info[0] - 1
            if nr:
                low = at + 8 * (p0 + nc)
                dtrsm(routines, False, True, nr, nc, at + 8 * p0, ld, low, ld)
                dsyrk(routines, nr, nc, -1.0, low, ld, 1.0, room + 8 * u0, nr)
        if nr:
            if u0 != top:
                for k in range(nr * nr):
                    stack[top + k] = stack[u0 + k]
            held[depth] = s
            depth += 1
            top += nr * nr
    return -1


@contracted
def small_panel(panels, p0, nc, ld):
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
def small_update(panels, p0, nc, ld, stack, u0):
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
def log_determinant(shape, panels):
    """Log determinant of the matrix whose factor is in the panels."""
    first, begins, below = shape[0], shape[1], shape[2]
    total = 0.0
    for s in range(first.size - 1):
        ld = first[s + 1] - first[s] + below[s + 1] - below[s]
        for j in range(first[s + 1] - first[s]):
            total += math.log(panels[begins[s] + j * (ld + 1)])
    return 2.0 * total


@contracted
def solve(shape, panels, x):
    """Replace columns x (n, T), C-ordered, by (L L^T)^-1 x."""
    solve_lower(shape, panels, x)
    solve_upper(shape, panels, x)


@contracted
def solve_lower(shape, panels, x):
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
def solve_upper(shape, panels, x):
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
