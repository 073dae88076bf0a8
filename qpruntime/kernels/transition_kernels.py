"""Transitions of state-space models over a time step. Kernels only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpruntime._numba import kernel
from qpruntime._typing import Array, IntArray
from qpruntime.kernels.base import (
    CONSTANT,
    GENERAL,
    LINE,
    MATERN_1,
    MATERN_3,
    MATERN_5,
    TURN,
    States,
)
from qpruntime.kernels.stationary import matern_3_step as matern_3, matern_5_step as matern_5

__all__ = [
    "fill",
    "general_step",
    "laws",
]

# --- Steps from the generator alone

#: Terms of the series at least: of a norm of .4 what is left out is below rounding.
_FEWEST = 16


def laws(states: Sequence[States], begin: int = 0) -> Array:
    """Return what `general_step` takes: where the numbers of each are, from `begin`, and these.

    They are the size, the longest step that is summed, that after which nothing is left, F, the
    noise and P.
    """
    parts = [
        np.concatenate(
            [
                [s.size, s.short, s.gone],
                *(np.ravel(m) for m in (s.generator, s.noise, s.stationary)),
            ]
        )
        for s in states
    ]
    sizes = [len(states)] + [len(part) for part in parts]
    return np.concatenate([begin + np.cumsum(sizes[: len(parts)]), *parts])


@kernel
def general_step(numbers: Array, place: int, x: float, A: Array, Q: Array, P: Array) -> int:
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
    a, q, product = np.eye(d), np.zeros((d, d)), np.zeros((d, d))
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
                    product[i, j] = total
            for i in range(d):
                for j in range(d):
                    if which:
                        q[i, j] = product[i, j]
                    else:
                        a[i, j] = product[i, j]
        for i in range(d):
            for j in range(d):
                A[i, j] += weight * a[i, j]
    for _ in range(doublings):
        for i in range(d):
            for j in range(d):
                product_entry, square_entry = 0.0, 0.0
                for m in range(d):
                    product_entry += A[i, m] * Q[m, j]
                    square_entry += A[i, m] * A[m, j]
                product[i, j], a[i, j] = product_entry, square_entry
        for i in range(d):
            for j in range(i + 1):
                total = Q[i, j]
                for m in range(d):
                    total += product[i, m] * A[j, m]
                Q[i, j] = Q[j, i] = total
        for i in range(d):
            for j in range(d):
                A[i, j] = a[i, j]
    return d


# --- Transitions x' = A x + N(0, Q)
#
# States have no unit: f, f'/r, f''/r^2 of a Matern kernel of rate r = sqrt(2 nu)/length-scale.
# Q is never P - A P A', which cancels for short steps; it is written with incomplete gamma
# functions, or summed. Kernels only; `state_space` says which factors a kernel has.

#: Nothing is left of the past after so many times 1/rate: exp(-FAR) is the least double precision.
_FAR = 700.0


@kernel
def factor(kinds: IntArray, rates: Array, f: int, dt: float, A: Array, Q: Array, P: Array) -> int:
    """Fill A, Q and the stationary P of one factor of variance 1; return the size of its state."""
    kind, rate = kinds[f], rates[f]
    if kind == MATERN_1:
        x = min(rate * dt, _FAR)
        A[0, 0], Q[0, 0], P[0, 0] = math.exp(-x), -math.expm1(-2.0 * x), 1.0
        return 1
    if kind == MATERN_3:
        a, b, c, d, q, r, s = matern_3(min(rate * dt, _FAR))
        A[0, 0], A[0, 1], A[1, 0], A[1, 1] = a, b, c, d
        Q[0, 0], Q[0, 1], Q[1, 0], Q[1, 1] = q, r, r, s
        P[0, 0], P[0, 1], P[1, 0], P[1, 1] = 1.0, 0.0, 0.0, 1.0
        return 2
    if kind == MATERN_5:
        numbers = matern_5(min(rate * dt, _FAR))
        for i in range(3):
            A[i, 0], A[i, 1], A[i, 2] = numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]
        Q[0, 0], Q[1, 1], Q[2, 2] = numbers[9], numbers[12], numbers[14]
        Q[0, 1] = Q[1, 0] = numbers[10]
        Q[0, 2] = Q[2, 0] = numbers[11]
        Q[1, 2] = Q[2, 1] = numbers[13]
        P[0, 1] = P[1, 0] = P[1, 2] = P[2, 1] = 0.0
        P[0, 0], P[1, 1], P[2, 2] = 1.0, 1.0 / 3.0, 1.0
        P[0, 2] = P[2, 0] = -1.0 / 3.0
        return 3
    if GENERAL <= kind < TURN:
        return general_step(rates, kinds.size + kind - GENERAL, rate * dt, A, Q, P)
    P[0, 0], Q[0, 0], A[0, 0] = 1.0, 0.0, 1.0
    if kind == CONSTANT:
        return 1
    A[0, 0] = A[1, 1] = P[1, 1] = 1.0
    Q[0, 1] = Q[1, 0] = Q[1, 1] = P[0, 1] = P[1, 0] = 0.0
    if kind == LINE:
        A[0, 1], A[1, 0] = dt, 0.0
        return 2
    # The rate of a turn is its period, and whole periods are removed exactly.
    angle = 2.0 * math.pi * ((kind - TURN) * (dt % rate / rate) % 1.0)
    A[0, 0] = A[1, 1] = math.cos(angle)
    A[0, 1] = -math.sin(angle)
    A[1, 0] = math.sin(angle)
    return 2


@kernel
def fill(dt: float, chain: tuple[Any, ...], A: Array, Q: Array, work: Array) -> None:
    """Fill the transitions of all terms, blocks on the diagonal of A and Q (d, d).

    `chain` is that of `qpruntime.inference.markov.messages_covariance_kernels`. `work` (9, d + 3, d
    + 3) is for products, which are built up factor by factor: Q = Q1 x P2 + A1 P1 A1' x Q2.
    """
    first, kinds, rates, variance, offset, _, _ = chain
    a, q, p = work[0], work[1], work[2]
    for b in range(variance.size):
        low = offset[b]
        size = factor(kinds, rates, first[b], dt, work[3], work[4], work[5])
        current, following = 3, 6
        for f in range(first[b] + 1, first[b + 1]):
            more = factor(kinds, rates, f, dt, a, q, p)
            A1, Q1, P1 = work[current], work[current + 1], work[current + 2]
            A2, Q2, P2 = work[following], work[following + 1], work[following + 2]
            for i in range(size):
                for j in range(size):
                    # A P A', which does not cancel: Q is never larger than P.
                    moved = P1[i, j] - Q1[i, j]
                    for k in range(more):
                        for m in range(more):
                            r, c = i * more + k, j * more + m
                            A2[r, c] = A1[i, j] * a[k, m]
                            P2[r, c] = P1[i, j] * p[k, m]
                            Q2[r, c] = Q1[i, j] * p[k, m] + moved * q[k, m]
            size *= more
            current, following = following, current
        A1, Q1 = work[current], work[current + 1]
        for i in range(size):
            for j in range(size):
                A[low + i, low + j] = A1[i, j]
                Q[low + i, low + j] = variance[b] * Q1[i, j]
