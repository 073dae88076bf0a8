"""Integrals of |eps|^p and its derivatives over one panel, eps = u - a - b z, split at its roots.

There |eps|^(p - 1) has a kink or worse, which Gauss-Jacobi rules take in. A panel comes as values
at Gauss-Legendre nodes, and what is between them from the polynomial through these; the likelihood
is not asked again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel
from qpruntime.quadrature.panel import BARYCENTRIC, NODES, WEIGHTS, N, last_coefficients

__all__ = ["Law", "add_panel", "jacobi_rules"]

_STACK = 64
#: Pieces of one panel at most.
_PIECES = 120
_ROOT_STEPS = 80
_RELATIVE = 1e-12
#: |eps| below this, relative to 1 + |u|, is rounding; interpolation adds less.
_NOISE, _WRONG = 2e-12, 1e-13
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


class Law(NamedTuple):
    """The exponent p, its `jacobi_rules`, and what a piece may be wrong by."""

    p: float
    rules: Array
    tiny: float


def jacobi_rules(p):
    """Rules for a root at -1, shape (2 N + 3, N) with p >= 1.

    Rows of nodes and of weights (1 + x)^(p - 1), then of weights (1 + x)^(p - 2) at the same nodes
    that are used for second derivatives, which need no more than a few digits, then three rows
    that give the last coefficients of what is left.
    """
    from scipy.special import eval_jacobi, roots_jacobi

    x, w = roots_jacobi(N, 0.0, p - 1.0)
    rows = [x, w]
    # Weights that integrate polynomials of degree N - 1 times (1 + x)^(p - 2); at p = 1 that is
    # not integrable, and second derivatives are sums over the roots.
    values = np.array([eval_jacobi(k, 0.0, p - 1.0, x) for k in range(N)])
    norms = (values * values) @ w
    if p > 1.0:
        fine, weights = roots_jacobi(2 * N, 0.0, p - 2.0)
        moments = np.array([eval_jacobi(k, 0.0, p - 1.0, fine) @ weights for k in range(N)])
        rows.append(w * ((moments / norms) @ values))
    else:
        rows.append(np.zeros(N))
    for k in range(N - 3, N):
        scale = np.abs(values[k]).max()
        rows.append(w * values[k] / norms[k] * scale)
    return np.ascontiguousarray(rows)


@kernel
def between(panel, x):
    """Return (z, rho) at x in [-1, 1] by interpolation; `panel` has rows z and rho."""
    above_z, above_rho, below = 0.0, 0.0, 0.0
    for j in range(N):
        gap = x - NODES[j]
        if gap == 0.0:
            return panel[0, j], panel[1, j]
        share = BARYCENTRIC[j] / gap
        above_z += share * panel[0, j]
        above_rho += share * panel[1, j]
        below += share
    return above_z / below, above_rho / below


@kernel
def epsilon(panel, line, x):
    """Return (eps, z, rho) at x; `line` = (eps-intercept, its slope in x, b)."""
    z, rho = between(panel, x)
    return line[0] + line[1] * x - line[2] * z, z, rho


@kernel
def find_root(panel, line, low, high, e_low, e_high):
    """Root of eps between two points where its signs differ (Illinois, then halves)."""
    for k in range(_ROOT_STEPS):
        if high - low <= 4e-16:
            break
        x = 0.5 * (low + high)
        if k < 40:
            x = min(max((low * e_high - high * e_low) / (e_high - e_low), low), high)
        e, _, _ = epsilon(panel, line, x)
        if e == 0.0:
            return x
        if (e > 0.0) == (e_high > 0.0):
            high, e_high = x, e
            e_low *= 0.5
        else:
            low, e_low = x, e
            e_high *= 0.5
    return 0.5 * (low + high)


@kernel
def add_terms(sums, p, e, z, mass, bent):
    """Add a node to (W, dW/da, dW/db, and the second derivatives of W), W = E |eps|^p / p.

    `mass` is its weight in integrals of |eps|^(p - 1), less that factor; `bent` is that of
    |eps|^(p - 2).
    """
    size = abs(e)
    sums[0] += mass * size / p
    slope = -mass if e > 0.0 else mass
    sums[1] += slope
    sums[2] += slope * z
    sums[3] += bent
    sums[4] += bent * z
    sums[5] += bent * z * z


@kernel
def add_root(sums, panel, line, x):
    """Add what a root contributes to second derivatives where p = 1: delta functions there."""
    _, z, rho = epsilon(panel, line, x)
    slope = abs(line[1] - line[2] * rho / (_INV_SQRT_2PI * math.exp(-0.5 * z * z) + 1e-300))
    share = 2.0 * rho / max(slope, 1e-6 * abs(line[1]))
    sums[3] += share
    sums[4] += share * z
    sums[5] += share * z * z


@kernel
def add_smooth(sums, line, law, half, check, values, scratch):
    """Add a piece without a root by Gauss-Legendre; return whether that resolves it.

    With `check`, nothing is added unless it does. `values` are eps, z and rho at the nodes of the
    piece, which is `half` a length long on either side.
    """
    p, tiny = law.p, law.tiny
    e, z, rho = values
    if check:
        largest, size = 0.0, 0.0
        for j in range(N):
            scratch[j] = rho[j] * abs(e[j]) ** (p - 1.0)
            largest = max(largest, scratch[j])
            size = max(size, abs(e[j]))
        last = last_coefficients(scratch)
        wrong = _WRONG * (1.0 + abs(line[0])) / size
        if last > (_RELATIVE + wrong) * largest and last * half > tiny:
            return False
    for j in range(N):
        size = abs(e[j])
        if size > 0.0:
            mass = half * WEIGHTS[j] * rho[j] * size ** (p - 1.0)
            add_terms(sums, p, e[j], z[j], mass, (p - 1.0) * mass / size)
    return True


@kernel
def add_beside_root(sums, panel, line, law, ends, side, check, scratch):
    """Add a piece with a root at its left (side -1) or right end by Gauss-Jacobi.

    Returns whether that resolves it; nothing is added with `check` unless it does.
    """
    p, rules, tiny = law
    low, high = ends
    half = 0.5 * (high - low)
    largest, last, bound = 0.0, 0.0, 0.0
    for j in range(N):
        t = 1.0 + rules[0, j]
        x = low + half * t if side < 0 else high - half * t
        e, z, rho = epsilon(panel, line, x)
        scratch[0, j], scratch[1, j], scratch[2, j] = e, z, rho
        scratch[3, j] = rho * (abs(e) / t) ** (p - 1.0)
        largest = max(largest, abs(scratch[3, j]))
        bound = max(bound, abs(e))
    if check:
        for k in range(3):
            c = 0.0
            for j in range(N):
                c += rules[3 + k, j] * scratch[3, j]
            last = max(last, abs(c))
        # Next to the root eps is small, and its error divided by the distance is not.
        wrong = 100.0 * _WRONG * (1.0 + abs(line[0])) / bound
        if last > (_RELATIVE + wrong) * largest and last * half > tiny:
            return False
    sign = scratch[0, N // 2]
    for j in range(N):
        size = abs(scratch[0, j]) / (1.0 + rules[0, j])
        if size > 0.0:
            factor = half * scratch[2, j] * size ** (p - 1.0)
            bent = (p - 1.0) * rules[2, j] * factor / size
            e = math.copysign(abs(scratch[0, j]), sign)
            add_terms(sums, p, e, scratch[1, j], rules[1, j] * factor, bent)
    return True


@kernel
def add_pieces(sums, panel, line, law):
    """Split a panel at the roots of eps, and where a root is near, and add all pieces."""
    stack, values = np.empty((_STACK, 4)), np.empty((4, N))
    xs, es = np.empty(N + 2), np.empty(N + 2)
    e, z, rho, products = np.empty(N), np.empty(N), np.empty(N), np.empty(N)
    # Rows: low, high, whether there is a root at low, at high.
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = -1.0, 1.0, 0.0, 0.0
    pending, pieces = 1, 0
    while pending:
        pending -= 1
        pieces += 1
        low, high = stack[pending, 0], stack[pending, 1]
        left, right = stack[pending, 2], stack[pending, 3]
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        room = pieces < _PIECES and pending + 2 <= _STACK and half > 1e-15
        if half < 1e-15:
            continue
        for j in range(N):
            xs[j + 1] = middle + half * NODES[j]
            e[j], z[j], rho[j] = epsilon(panel, line, xs[j + 1])
            es[j + 1] = e[j]
        xs[0], xs[N + 1] = low, high
        es[0] = es[1] if left else epsilon(panel, line, low)[0]
        es[N + 1] = es[N] if right else epsilon(panel, line, high)[0]
        split, root = middle, 0.0
        done = False
        for j in range(N + 1):
            if room and (es[j] > 0.0) != (es[j + 1] > 0.0):
                split = find_root(panel, line, xs[j], xs[j + 1], es[j], es[j + 1])
                root = 1.0
                if law.p == 1.0:
                    add_root(sums, panel, line, split)
                break
        if root == 0.0 and not (left and right):
            if left or right:
                side = -1 if left else 1
                done = add_beside_root(sums, panel, line, law, (low, high), side, room, values)
            else:
                done = add_smooth(sums, line, law, half, room, (e, z, rho), products)
        if not done and room:
            stack[pending, 0], stack[pending, 1] = split, high
            stack[pending, 2], stack[pending, 3] = root, right
            pending += 1
            stack[pending, 0], stack[pending, 1] = low, split
            stack[pending, 2], stack[pending, 3] = left, root
            pending += 1


@kernel
def add_panel(sums, panel, place, a, b, law, e, products):
    """Add one panel to (W, its gradient, its second derivatives) in (a, b), W = E |eps|^p / p.

    `panel` has rows z and rho, the density in x from -1 to 1; `place` is the middle of u over it,
    and half its length.
    """
    u, u_half = place
    p = law.p
    line = (u - a, u_half, b)
    largest, signs = 0.0, 0
    for j in range(N):
        e[j] = line[0] + u_half * NODES[j] - b * panel[0, j]
        largest = max(largest, abs(e[j]))
        signs += 1 if e[j] > 0.0 else -1
    if largest < _NOISE * (1.0 + abs(u)):
        return
    even = p % 2.0 == 0.0
    if abs(signs) == N and not even:
        start, _, _ = epsilon(panel, line, -1.0)
        stop, _, _ = epsilon(panel, line, 1.0)
        signs = N if (start > 0.0) == (e[0] > 0.0) == (stop > 0.0) else 0
    if even or abs(signs) == N:
        check = not even and p != 1.0
        if add_smooth(sums, line, law, 1.0, check, (e, panel[0], panel[1]), products):
            return
    add_pieces(sums, panel, line, law)
