"""Steps of a state of which nothing is known but its generator: by series, and by doubling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel
from qpruntime.kernels.markov import States

__all__ = ["general_step", "laws"]

#: Terms of the series at least: of a norm of .4 what is left out is below rounding.
_FEWEST = 16


def laws(states: Sequence[States]) -> Array:
    """Return what `general_step` takes: of each F, the noise and P, below each other, and limits.

    Limits are the size, the longest step that is summed, and that after which nothing is left.
    """
    width = max([3] + [s.size for s in states])
    found = np.zeros((len(states), 3 * width + 1, width))
    for own, s in zip(found, states, strict=True):
        for k, matrix in enumerate((s.generator, s.noise, s.stationary)):
            own[k * width : k * width + s.size, : s.size] = matrix
        own[-1, :3] = s.size, s.short, s.gone
    return found


@kernel
def general_step(general, which, x, A, Q, P):
    """Fill A, Q and P of a law after a time x; return the size of its state."""
    width = general.shape[2]
    d = int(general[which, 3 * width, 0])
    short, gone = general[which, 3 * width, 1], general[which, 3 * width, 2]
    x = min(x, gone)
    F = general[which, :d, :d]
    noise = general[which, width : width + d, :d]
    for i in range(d):
        for j in range(d):
            P[i, j] = general[which, 2 * width + i, j]
    doublings = 0
    while x > short:
        x *= 0.5
        doublings += 1
    # Sums over x^n/n!: F^n for A; for Q, n from 1 on, n - 1 times M -> F M + M F' of the noise.
    a, q, other = np.eye(d), np.zeros((d, d)), np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            q[i, j] = noise[i, j]
    for i in range(d):
        for j in range(d):
            A[i, j], Q[i, j] = a[i, j], 0.0
    weight = 1.0
    for n in range(1, max(2 * d + 8, _FEWEST)):
        weight *= x / n
        for i in range(d):
            for j in range(d):
                Q[i, j] += weight * q[i, j]
        for which in range(2):
            for i in range(d):
                for j in range(d):
                    total = 0.0
                    for m in range(d):
                        if which:
                            total += F[i, m] * q[m, j] + q[i, m] * F[j, m]
                        else:
                            total += F[i, m] * a[m, j]
                    other[i, j] = total
            for i in range(d):
                for j in range(d):
                    if which:
                        q[i, j] = other[i, j]
                    else:
                        a[i, j] = other[i, j]
        for i in range(d):
            for j in range(d):
                A[i, j] += weight * a[i, j]
    for _ in range(doublings):
        for i in range(d):
            for j in range(d):
                one, two = 0.0, 0.0
                for m in range(d):
                    one += A[i, m] * Q[m, j]
                    two += A[i, m] * A[m, j]
                other[i, j], a[i, j] = one, two
        for i in range(d):
            for j in range(i + 1):
                total = Q[i, j]
                for m in range(d):
                    total += other[i, m] * A[j, m]
                Q[i, j] = Q[j, i] = total
        for i in range(d):
            for j in range(d):
                A[i, j] = a[i, j]
    return d
