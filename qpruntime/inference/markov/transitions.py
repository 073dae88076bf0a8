"""How the state of a kernel moves over a step of time: x' = A x + N(0, Q).

States have no unit: f, f'/r, f''/r^2 of a Matern kernel of rate r = sqrt(2 nu)/length-scale.
Q is never P - A P A', which cancels for short steps; it is written with incomplete gamma functions.
Kernels only; `state_space` says which factors a kernel has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from qpruntime.jit import kernel

__all__ = [
    "CONSTANT",
    "LINE",
    "MATERN_1",
    "MATERN_3",
    "MATERN_5",
    "RBF_4",
    "SMOOTH",
    "TURN",
    "fill",
    "gamma_share",
    "matern_3",
    "matern_5",
    "smooth_states",
]

#: Factors of a term; TURN + j is the j-th harmonic, whose rate is the period itself.
CONSTANT, MATERN_1, MATERN_3, MATERN_5, LINE, RBF_4, TURN = 0, 1, 2, 3, 4, 5, 100
#: Nothing is left of the past after so many times 1/rate: exp(-FAR) is the least double precision.
_FAR = 700.0
#: The same of length-scales of a squared exponential, whose states forget as exp(-1.2 x).
_GONE = 600.0
#: A step shorter than this changes nothing; its powers would underflow.
_NEAR = 1e-60
#: Below this incomplete gamma functions are summed: 1 - e^-y (...) would cancel.
_SUMMED, _TERMS = 2.0, 21
#: Divisions one after the other take as long as all the rest.
_INVERSE = np.array([0.0] + [1.0 / j for j in range(1, 32)])


def _smooth(sections: Sequence[tuple[float, float]]) -> tuple[Any, Any]:
    """F and P of the process whose spectral density is 1 / prod ((a - w^2)^2 + b^2 w^2).

    Sections are (log a, log b). States are f^(k) / 3^k, which are of like size.
    """
    p = np.array([1.0])
    for a, b in np.exp(sections):
        p = np.polymul(p, [1.0, b, a])
    d = p.size - 1
    scale = 3.0 ** np.arange(d)
    F = np.diag(np.ones(d - 1), 1)
    F[-1] = -p[:0:-1]
    F *= scale / scale[:, None]
    noise = np.zeros((d, d))
    noise[-1, -1] = 1.0
    P = solve_continuous_lyapunov(F, -noise)
    P *= (np.add.outer(np.arange(d), np.arange(d)) % 2 == 0) / P[0, 0]
    return F, 0.5 * (P + P.T)


#: Approximations of exp(-x^2/2) by 4, 6 and 8 states: sections fitted to the least error, error.
SMOOTH = (
    (((1.574774, 0.841774), (0.667597, 0.928062)), 2.3e-3),
    (((2.141847, 0.893209), (1.417496, 1.006433), (0.819837, 1.0472)), 1.9e-4),
    (
        (
            (2.52407545, 0.90985014),
            (1.94077227, 1.04313004),
            (1.37599112, 1.10485469),
            (0.94895192, 1.13108118),
        ),
        1.3e-5,
    ),
)
_GENERATORS, _COVARIANCES = np.zeros((3, 8, 8)), np.zeros((3, 8, 8))
for _k, (_sections, _) in enumerate(SMOOTH):
    _d = 4 + 2 * _k
    _GENERATORS[_k, :_d, :_d], _COVARIANCES[_k, :_d, :_d] = _smooth(_sections)
#: Longest step whose series are summed, times the norm of F (40 at most); longer ones by doubling.
_SHORT = 0.01


def smooth_states(k: int) -> tuple[Any, Any]:
    """F per length-scale and P of one of them."""
    d = 4 + 2 * k
    return _GENERATORS[k, :d, :d], _COVARIANCES[k, :d, :d]


@kernel
def smooth(k, x, A, Q, P):
    """Fill A, Q and P of an approximation of exp(-x^2/2); return the size of its state."""
    d = 4 + 2 * k
    F = _GENERATORS[k, :d, :d]
    for i in range(d):
        for j in range(d):
            P[i, j] = _COVARIANCES[k, i, j]
    doublings = 0
    while x > _SHORT:
        x *= 0.5
        doublings += 1
    # Sums over x^n/n!: F^n for A; for Q, n from 1 on, n - 1 times M -> F M + M F' of the noise.
    a, q, other = np.eye(d), np.zeros((d, d)), np.zeros((d, d))
    # F P + P F' = -noise.
    for j in range(d):
        q[d - 1, d - 1] -= 2.0 * F[d - 1, j] * P[j, d - 1]
    for i in range(d):
        for j in range(d):
            A[i, j], Q[i, j] = a[i, j], 0.0
    weight = 1.0
    for n in range(1, 2 * d + 8):
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


@kernel
def gamma_share(k, y, e):
    """Regularised lower incomplete gamma function P(k, y) for k = 3 or 5; e = exp(-y)."""
    if y < _SUMMED:
        total = 1.0
        for j in range(_TERMS if y > 0.25 else 9, 0, -1):
            total = 1.0 + total * y * _INVERSE[k + j]
        power = y * y * y
        return power * e * total * _INVERSE[6] if k == 3 else power * y * y * e * total / 120.0
    if k == 3:
        return 1.0 - e * (1.0 + y + 0.5 * y * y)
    return 1.0 - e * (1.0 + y * (1.0 + y * (0.5 + y * (1.0 / 6.0 + y / 24.0))))


@kernel
def matern_3(x):
    """(A00, A01, A10, A11, Q00, Q01, Q11) of Matern 3/2 of variance 1 over x = rate times time."""
    decay = math.exp(-x)
    y, e = 2.0 * x, decay * decay
    third = gamma_share(3, y, e)
    return (
        decay * (1.0 + x),
        decay * x,
        -decay * x,
        decay * (1.0 - x),
        third,
        0.5 * y * y * e,
        third + 2.0 * y * e,
    )


@kernel
def matern_5(x):
    """(A by rows, Q00, Q01, Q02, Q11, Q12, Q22) of Matern 5/2, of which `matern_3` is 3/2."""
    decay = math.exp(-x)
    half = 0.5 * x * x
    y, e, q = 2.0 * x, decay * decay, 16.0 / 3.0
    fifth = gamma_share(5, y, e)
    g0, g1 = decay * half, decay * (x - half)
    y3 = y * y * y
    middle = q * (y3 * e * (1.0 / 24.0 - y / 192.0) + fifth / 16.0)
    # exp(-x) (I + x N + x^2/2 N^2), N = F + I.
    return (
        decay * (1.0 + x + half),
        decay * (x + 2.0 * half),
        g0,
        -g0,
        decay * (1.0 + x - 2.0 * half),
        g1,
        -g1,
        decay * (2.0 * half - 3.0 * x),
        decay * (1.0 - 2.0 * x + half),
        fifth,
        0.5 * q * g0 * g0,
        q * g0 * g1 - middle,
        middle,
        0.5 * q * g1 * g1,
        q * (e * (0.5 * y - 0.25 * y * y + 0.125 * y3) + 3.0 * fifth / 16.0),
    )


@kernel
def factor(kind, rate, dt, A, Q, P):
    """Fill A, Q and the stationary P of one factor of variance 1; return the size of its state."""
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
    if RBF_4 <= kind < TURN:
        return smooth(kind - RBF_4, min(rate * dt, _GONE), A, Q, P)
    P[0, 0], Q[0, 0], A[0, 0] = 1.0, 0.0, 1.0
    if kind == CONSTANT:
        return 1
    A[0, 0] = A[1, 1] = P[1, 1] = 1.0
    Q[0, 1] = Q[1, 0] = Q[1, 1] = P[0, 1] = P[1, 0] = 0.0
    if kind == LINE:
        A[0, 1], A[1, 0] = dt, 0.0
        return 2
    # For a turn the rate is the period: whole periods are left out exactly.
    angle = 2.0 * math.pi * ((kind - TURN) * (dt % rate / rate) % 1.0)
    A[0, 0] = A[1, 1] = math.cos(angle)
    A[0, 1] = -math.sin(angle)
    A[1, 0] = math.sin(angle)
    return 2


@kernel
def fill(dt, chain, A, Q, work):
    """Fill the transitions of all terms, blocks on the diagonal of A and Q (d, d).

    `chain` is that of `qpruntime.inference.markov.wide`. `work` (9, d + 3, d + 3) is for products,
    which are built up factor by factor: Q = Q1 x P2 + A1 P1 A1' x Q2.
    """
    first, kinds, rates, variance, offset, _, _ = chain
    a, q, p = work[0], work[1], work[2]
    for b in range(variance.size):
        low = offset[b]
        size = factor(kinds[first[b]], rates[first[b]], dt, work[3], work[4], work[5])
        one, two = 3, 6
        for f in range(first[b] + 1, first[b + 1]):
            more = factor(kinds[f], rates[f], dt, a, q, p)
            A1, Q1, P1 = work[one], work[one + 1], work[one + 2]
            A2, Q2, P2 = work[two], work[two + 1], work[two + 2]
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
            one, two = two, one
        A1, Q1 = work[one], work[one + 1]
        for i in range(size):
            for j in range(size):
                A[low + i, low + j] = A1[i, j]
                Q[low + i, low + j] = variance[b] * Q1[i, j]
