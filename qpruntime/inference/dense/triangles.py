"""Triangles: products and squares of what a Cholesky factorisation leaves."""

from __future__ import annotations

import numpy as np

from qpruntime.jit import kernel, summed

__all__ = [
    "divided",
    "half_difference",
    "mirror_upper",
    "scaled_upper",
    "squares_of_rows",
    "twice",
]


@kernel
def scaled_upper(K, root):
    """Upper triangle of I + R K R; what is below it is not set."""
    n = root.size
    B = np.empty((n, n))
    # Slices counted from 0 become vector instructions, ranges from i on do not.
    for i in range(n):
        scale, row, right, out = root[i], K[i, i:], root[i:], B[i, i:]
        for j in range(n - i):
            out[j] = scale * row[j] * right[j]
        out[0] += 1.0
    return B


@summed
def squares_of_rows(upper):
    """Sum of squares of each row of an upper triangle."""
    n = upper.shape[0]
    out = np.empty(n)
    for i in range(n):
        total, row = 0.0, upper[i, i:]
        for j in range(n - i):
            total += row[j] * row[j]
        out[i] = total
    return out


@summed
def twice(upper, root, right):
    """R U U^T R right for an upper triangle U."""
    n = root.size
    work, out = np.zeros(n), np.empty(n)
    for i in range(n):
        scale, row, rest = root[i] * right[i], upper[i, i:], work[i:]
        for j in range(n - i):
            rest[j] += scale * row[j]
    for i in range(n):
        total, row, rest = 0.0, upper[i, i:], work[i:]
        for j in range(n - i):
            total += row[j] * rest[j]
        out[i] = root[i] * total
    return out


@kernel
def divided(diagonal, tau, linear):
    """Return (right, rest), so that (I + diag(tau) K)^-1 linear = rest + R B^-1 R (right - K rest).

    The inverse is R B^-1 R^-1 and I - R B^-1 R K; `diagonal` is that of K. The latter cancels where
    the prior is vast: it lost all digits of the mean at K = 1e13. The former divides by the root of
    the precision: for one site its rounding grows by 1/sqrt(tau), that of the latter by K sqrt(tau)
    for the strongest tau.
    """
    right, rest = np.zeros(tau.size), np.zeros(tau.size)
    largest = max(1.0, (tau * diagonal).max())
    for i in range(tau.size):
        if tau[i] * diagonal[i] * largest > 1.0:
            right[i] = linear[i] / tau[i]
        else:
            rest[i] = linear[i]
    return right, rest


@kernel
def half_difference(weights, root, upper):
    """(weights weights^T - R inverse R)/2 for the inverse whose upper triangle is `upper`."""
    n = root.size
    out = np.empty((n, n))
    for i in range(n):
        row, source = out[i, i:], upper[i, i:]
        left, scale, other, factors = 0.5 * weights[i], 0.5 * root[i], weights[i:], root[i:]
        for j in range(n - i):
            row[j] = left * other[j] - scale * factors[j] * source[j]
    mirror_upper(out)
    return out


@kernel
def mirror_upper(matrix):
    """Copy the upper triangle to the lower one, in place, by tiles that fit the cache."""
    n = matrix.shape[0]
    for top in range(0, n, 64):
        for left in range(top, n, 64):
            for i in range(top, min(top + 64, n)):
                for j in range(max(left, i + 1), min(left + 64, n)):
                    matrix[j, i] = matrix[i, j]
