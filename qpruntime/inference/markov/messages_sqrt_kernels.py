"""Messages in factors for states of any size, used if sites outweigh the prior. Kernels only.

The messages are those of `qpruntime.inference.markov.messages_trio_kernels`: P = L diag(p) L'
forwards, and J = U diag(e) U', eta = U z backwards. The steps are those of Thornton, Bierman, and
Agee and Turner (Bierman 1977, Factorization Methods, III, V and VI), which subtract nothing while
sites are positive. Factors are stored as symmetric matrices F: the diagonal, and column j of the
factor in row j. Rows of the buffer are those of
`qpruntime.inference.markov.messages_covariance_kernels`, with F for the matrix.
"""

from __future__ import annotations

import numpy as np

from qpruntime._numba import contracted, inlined, kernel
from qpruntime._typing import Array, Arrays, IntArray
from qpruntime.inference.markov.messages_covariance_kernels import (
    Chain,
    Pair,
    load,
    place,
    spans,
    store,
)
from qpruntime.inference.markov.messages_small_kernels import (
    SeriesRows,
    SeriesRules,
    absorbed,
    revise,
)
from qpruntime.kernels.transition_kernels import fill
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = ["careful_pass", "careful_sweep"]


@contracted
def factors(Q: Array, low: IntArray, high: IntArray, K: Array) -> None:
    """Fill K with the factors of Q, block by block: diagonal, and unit lower triangle."""
    for j in range(Q.shape[0]):
        for i in range(low[j], j + 1):
            total = Q[j, i]
            for k in range(low[j], i):
                total -= K[j, k] * K[k, k] * K[i, k]
            if i < j:
                K[j, i] = total / K[i, i] if K[i, i] != 0.0 else 0.0
            else:
                # A variance that consists of rounding alone counts as zero.
                K[j, j] = total if total > 1e-15 * Q[j, j] else 0.0


@contracted
def orthogonal(W: Array, weights: Array, ahead: bool, F: Array) -> None:
    """Let F be the factors of W diag(weights) W', whose rows are orthogonalised."""
    d, r = F.shape[0], weights.size
    for a in range(d):
        i = a if ahead else d - 1 - a
        total = 0.0
        for k in range(r):
            total += W[i, k] * W[i, k] * weights[k]
        F[i, i] = total
        inverse = 1.0 / total if total > 1e-290 else 0.0
        for b in range(a + 1, d):
            j = b if ahead else d - 1 - b
            total = 0.0
            for k in range(r):
                total += W[i, k] * W[j, k] * weights[k]
            total *= inverse
            F[i, j] = F[j, i] = total
            for k in range(r):
                W[j, k] -= total * W[i, k]


@contracted
def condense(F: Array, f: Array, q: float, ahead: bool, b: Array, z: Array) -> float:
    """Replace the factors of M by those of M - M l l' M q/(1 + q l' M l), for l of the factor f.

    b becomes M l, and 1 + q l' M l is returned. z (zeros for forward messages) becomes that of (I -
    M l l' q/(...)) eta.
    """
    d = f.size
    alpha, weighted_sum = 1.0, 0.0
    for i in range(d):
        b[i] = 0.0
    for a in range(d):
        j = d - 1 - a if ahead else a
        if f[j] == 0.0:
            continue
        gain = F[j, j] * f[j]
        more = alpha + q * f[j] * gain
        inverse = 1.0 / more
        old = z[j]
        z[j] = (alpha * old - q * gain * weighted_sum) * inverse
        weighted_sum += f[j] * old
        F[j, j] *= alpha * inverse
        ratio = q * f[j] / alpha
        for i in range(j + 1 if ahead else 0, d if ahead else j):
            value = F[j, i]
            F[j, i] = value - ratio * b[i]
            b[i] += value * gain
        b[j] = gain
        alpha = more
    return alpha


@contracted
def step_ahead(
    A: Array, K: Array, low: Array, high: Array, m: Array, F: Array, W: Array, weights: Array
) -> None:
    """Replace a forward message by the one after a step; K has the factors of Q."""
    d = m.size
    for i in range(d):
        total = 0.0
        for k in range(low[i], high[i]):
            total += A[i, k] * m[k]
        weights[i] = total
        for k in range(d):
            # Rows are A L, with column k of L in row k of F.
            total = A[i, k] if low[i] <= k < high[i] else 0.0
            for c in range(max(low[i], k + 1), high[i]):
                total += A[i, c] * F[k, c]
            W[i, k] = total
            W[i, d + k] = K[i, k] if low[i] <= k < i else 0.0
        W[i, d + i] = 1.0
    for i in range(d):
        m[i] = weights[i]
    for i in range(d):
        weights[i], weights[d + i] = F[i, i], K[i, i]
    orthogonal(W, weights, True, F)


@contracted
def step_back(
    A: Array,
    K: Array,
    low: Array,
    high: Array,
    z: Array,
    F: Array,
    W: Array,
    weights: Array,
    f: Array,
    b: Array,
) -> None:
    """Replace a backward message by the one before a step."""
    d = z.size
    for k in range(d - 1, -1, -1):
        q = K[k, k]
        if q == 0.0:
            continue
        for j in range(d):
            f[j] = 0.0
        for j in range(k, d):
            total = 1.0 if j == k else (K[j, k] if j < high[k] else 0.0)
            if j > k:
                total += F[j, k]
                for i in range(k + 1, min(j, high[k])):
                    total += F[j, i] * K[i, k]
            f[j] = total
        condense(F, f, q, False, b, z)
    for i in range(d):
        for k in range(d):
            # Rows are A' U, with column k of U in row k of F.
            total = A[k, i] if low[i] <= k < high[i] else 0.0
            for c in range(low[i], min(high[i], k)):
                total += A[c, i] * F[k, c]
            W[i, k] = total
    for i in range(d):
        weights[i] = F[i, i]
    orthogonal(W, weights[:d], False, F)
    for i in range(d):
        total = 0.0
        for k in range(d):
            total += W[i, k] * z[k]
        f[i] = total
    for i in range(d):
        z[i] = f[i]


@contracted
def level(m: Array, F: Array, heads: Array, f: Array) -> tuple[float, float]:
    """Return mean and variance of f under a forward message; f becomes L' h."""
    mean, variance = 0.0, 0.0
    d = m.size
    for j in range(d):
        total = heads[j]
        for i in range(j + 1, d):
            total += F[j, i] * heads[i]
        f[j] = total
        mean += heads[j] * m[j]
        variance += total * total * F[j, j]
    return mean, variance


@contracted
def meet(
    m: Array,
    L: Array,
    z: Array,
    U: Array,
    heads: Array,
    mean: Array,
    F: Array,
    f: Array,
    b: Array,
    zero: Array,
) -> tuple[float, float]:
    """Return mean and variance of f = heads . x under both messages, column by column of U."""
    d = m.size
    for i in range(d):
        mean[i] = m[i]
        for j in range(d):
            F[i, j] = L[i, j]
    for k in range(d):
        e = U[k, k]
        if e == 0.0 and z[k] == 0.0:
            continue
        said = mean[k]
        for i in range(k):
            said += U[k, i] * mean[i]
        for j in range(d):
            f[j] = 0.0
        for j in range(k + 1):
            total = 1.0 if j == k else U[k, j] + F[j, k]
            for i in range(j + 1, k):
                total += F[j, i] * U[k, i]
            f[j] = total
        pull = (z[k] - e * said) / condense(F, f, e, True, b, zero)
        for i in range(d):
            mean[i] += b[i] * pull
    return level(mean, F, heads, f)


@contracted
def take_in(
    T: float,
    N: float,
    heads: Array,
    vector: Array,
    F: Array,
    ahead: bool,
    f: Array,
    b: Array,
    zero: Array,
) -> None:
    """Multiply the message of a pass by a site of f."""
    d = vector.size
    if ahead:
        mean, _ = level(vector, F, heads, f)
        pull = (N - T * mean) / condense(F, f, T, True, b, zero)
        for i in range(d):
            vector[i] += b[i] * pull
            for j in range(i):
                F[i, j] = F[j, i]
        return
    # This combines two rows of a least squares problem at a time: one of a state, and the remainder
    # of the site.
    for i in range(d):
        b[i] = heads[i]
    for j in range(d - 1, -1, -1):
        head = b[j]
        if head == 0.0:
            continue
        old, e = vector[j], F[j, j]
        new = e + T * head * head
        vector[j] = old + head * N
        F[j, j] = new
        inverse = 1.0 / new if new > 1e-290 else 0.0
        ratio = T * head * inverse
        if inverse != 0.0:
            N = (e * N - T * head * old) * inverse
            T *= e * inverse
        for i in range(j):
            b[i] -= head * F[j, i]
            F[j, i] += ratio * b[i]
            F[i, j] = F[j, i]


@inlined
def begin(
    chain: Chain, edges: Array, ahead: bool
) -> tuple[Pair, Pair, tuple[Array, Array, Array, IntArray, IntArray, Array], Arrays]:
    """Return (first message of a pass, room for another, for transitions, and for products)."""
    d = chain[5].size
    low, high = spans(chain[4])
    A, Q, K, tensor = (
        np.zeros((d, d)),
        np.zeros((d, d)),
        np.zeros((d, d)),
        np.zeros((9, d + 3, d + 3)),
    )
    a, B, b, C = np.zeros(d), np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
    W, weights, F = np.zeros((d, 2 * d)), np.zeros(2 * d), np.zeros((d, d))
    load(edges, 0 if ahead else 1, a, B)
    room = W, weights, F, np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d)
    return (a, B), (b, C), (A, Q, K, low, high, tensor), room


@kernel
def advance(
    step: float,
    last: float,
    chain: Arrays,
    ahead: bool,
    message: tuple[Array, Array],
    system: Arrays,
    room: Arrays,
) -> float:
    """Move a message over a step; return the step of the system's matrices."""
    if not step > 0.0:
        return last
    a, B = message
    A, Q, K, low, high, tensor = system
    W, weights, f, gain = room
    if step != last:
        fill(step, chain, A, Q, tensor)
        factors(Q, low, high, K)
    if ahead:
        step_ahead(A, K, low, high, a, B, W, weights)
    else:
        step_back(A, K, low, high, a, B, W, weights, f, gain)
    return step


@kernel
def careful_pass(
    chain: Arrays,
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    report: Array,
) -> None:
    """Pass messages in factors along a series; edges are factors, too."""
    heads = chain[5]
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    (a, B), (b, C), system, room = begin(chain, edges, ahead)
    W, weights, F, mean, f, gain, zero = room
    last = 0.0
    for count in range(tau.size):
        i, step = place(steps, count, ahead)
        last = advance(step, last, chain, ahead, (a, B), system, (W, weights, f, gain))
        if report.shape[0]:
            load(buffer, i, b, C)
            if ahead:
                report[i, 0], report[i, 1] = meet(a, B, b, C, heads, mean, F, f, gain, zero)
                report[i, 2], report[i, 3] = level(a, B, heads, f)
            else:
                report[i, 0], report[i, 1] = meet(b, C, a, B, heads, mean, F, f, gain, zero)
                report[i, 2], report[i, 3] = level(b, C, heads, f)
        store(buffer, i, a, B)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        take_in(T, N, heads, a, B, ahead, f, gain, zero)
    store(edges, 2 if ahead else 3, a, B)


@kernel
def careful_sweep(
    chain: Arrays,
    steps: Array,
    rows: SeriesRows,
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    rules: SeriesRules,
    tally: Array,
) -> tuple[int, int]:
    """Run `careful_pass` and update every site on the way; return (status, site)."""
    heads = chain[5]
    noise, scale, y, prior, weights = rows
    tau, nu = sites
    buffer, edges = messages
    (a, B), (b, C), system, room = begin(chain, edges, ahead)
    W, shares, F, mean, f, gain, zero = room
    last, scratch = 0.0, np.empty((1, 4))
    for count in range(tau.size):
        i, step = place(steps, count, ahead)
        last = advance(step, last, chain, ahead, (a, B), system, (W, shares, f, gain))
        load(buffer, i, b, C)
        if ahead:
            cavity = meet(a, B, b, C, heads, mean, F, f, gain, zero)
        else:
            cavity = meet(b, C, a, B, heads, mean, F, f, gain, zero)
        store(buffer, i, a, B)
        row = noise, scale[i], y[i], prior[i], weights[i]
        status, site, (T, N) = revise(rules, row, (tau[i], nu[i]), cavity, scratch, tally, i)
        if status != OK:
            return status, i
        tau[i], nu[i] = site
        take_in(T, N, heads, a, B, ahead, f, gain, zero)
    store(edges, 2 if ahead else 3, a, B)
    return OK, 0
