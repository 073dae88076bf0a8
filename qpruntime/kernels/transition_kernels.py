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


def laws(states: Sequence[States], begin: int = 0) -> Array:
    """Return what `general_step` takes: where the numbers of each are, from `begin`, and these.

    They are the size, the longest step that is summed, that after which nothing is left, F, the
    noise and P.
    """
    found = [
        np.concatenate(
            [
                [s.size, s.short, s.gone],
                *(np.ravel(m) for m in (s.generator, s.noise, s.stationary)),
            ]
        )
        for s in states
    ]
    sizes = [len(states)] + [len(own) for own in found]
    return np.concatenate([begin + np.cumsum(sizes[: len(found)]), *found])


@kernel
def general_step(numbers, place, x, A, Q, P):
    """Fill A, Q and P of a law after a time x; return the size of its state.

    `numbers[place]` is where its own begin.
    """
    first = int(numbers[place])
    d = int(numbers[first])
    short = numbers[first + 1]
    x = min(x, numbers[first + 2])
    F = numbers[first + 3 : first + 3 + d * d].reshape((d, d))
    noise = numbers[first + 3 + d * d : first + 3 + 2 * d * d].reshape((d, d))
    for i in range(d):
        for j in range(d):
            P[i, j] = numbers[first + 3 + (2 * d + i) * d + j]
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
