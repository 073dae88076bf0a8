"""Forward and backward messages as covariances, for states of any size. Kernels only."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import contracted, inlined, kernel
from qpruntime._typing import Array, IntArray
from qpruntime.inference.markov.messages_small_kernels import (
    SeriesRows,
    SeriesRules,
    absorbed,
    revise,
)
from qpruntime.kernels.transition_kernels import fill
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = [
    "eliminate",
    "level",
    "load",
    "meet",
    "one_plus_product",
    "spans",
    "step_ahead",
    "step_back",
    "store",
    "take_in",
    "wide_pass",
    "wide_slope",
    "wide_sweep",
]

# --- Steps, sites and marginals
#
# A forward message is a mean and a covariance (m, P), a backward one is exp(eta' x - x' J x / 2).
# Rows of a buffer have the vector and a triangle of the matrix.

#: States with more components have many blocks, for which sums over blocks suit vector registers.
_FEW = 8


@contracted
def eliminate(M: Array, right: Array, r: int) -> None:
    """Solve M x = right in place, for r columns, by elimination with partial pivoting."""
    d = M.shape[0]
    for k in range(d):
        best = k
        for i in range(k + 1, d):
            if abs(M[i, k]) > abs(M[best, k]):
                best = i
        if best != k:
            for j in range(k, d):
                M[k, j], M[best, j] = M[best, j], M[k, j]
            for j in range(r):
                right[k, j], right[best, j] = right[best, j], right[k, j]
        inverse = 1.0 / M[k, k]
        for i in range(k + 1, d):
            ratio = M[i, k] * inverse
            if ratio != 0.0:
                for j in range(k + 1, d):
                    M[i, j] -= ratio * M[k, j]
                for j in range(r):
                    right[i, j] -= ratio * right[k, j]
    # Elimination row by row uses vector registers, and takes a third of the time of sums by column.
    for k in range(d - 1, -1, -1):
        inverse = 1.0 / M[k, k]
        for j in range(r):
            right[k, j] *= inverse
        for i in range(k):
            ratio = M[i, k]
            for j in range(r):
                right[i, j] -= ratio * right[k, j]


@contracted
def one_plus_product(left: Array, right: Array, out: Array) -> None:
    """Let out = I + left right, four rows at once, because sums would wait for memory."""
    d = left.shape[0]
    whole = d - d % 4
    for i in range(d):
        for j in range(d):
            out[i, j] = 1.0 if i == j else 0.0
        for k in range(0, whole, 4):
            first, second, third, fourth = (
                left[i, k],
                left[i, k + 1],
                left[i, k + 2],
                left[i, k + 3],
            )
            for j in range(d):
                out[i, j] += (
                    first * right[k, j]
                    + second * right[k + 1, j]
                    + third * right[k + 2, j]
                    + fourth * right[k + 3, j]
                )
        for k in range(whole, d):
            value = left[i, k]
            for j in range(d):
                out[i, j] += value * right[k, j]


@kernel
def store(buffer: Array, i: int, vector: Array, matrix: Array) -> None:
    """Write a message: the vector, and one triangle of the matrix."""
    d = vector.size
    place = d
    for a in range(d):
        buffer[i, a] = vector[a]
        for b in range(a + 1):
            buffer[i, place] = matrix[a, b]
            place += 1


@kernel
def load(buffer: Array, i: int, vector: Array, matrix: Array) -> None:
    """Read a message."""
    d = vector.size
    place = d
    for a in range(d):
        vector[a] = buffer[i, a]
        for b in range(a + 1):
            matrix[a, b] = matrix[b, a] = buffer[i, place]
            place += 1


@contracted
def step_ahead(
    A: Array, Q: Array, low: IntArray, high: IntArray, m: Array, P: Array, work: Array
) -> None:
    """Let m, P = A m, A P A' + Q; A and Q have blocks on the diagonal."""
    d = m.size
    for i in range(d):
        total = 0.0
        for j in range(d):
            work[i, j] = 0.0
        for k in range(low[i], high[i]):
            value = A[i, k]
            total += value * m[k]
            for j in range(d):
                work[i, j] += value * P[k, j]
        work[i, d] = total
    for i in range(d):
        m[i] = work[i, d]
        for j in range(i + 1):
            total = Q[i, j]
            for k in range(low[j], high[j]):
                total += work[i, k] * A[j, k]
            P[i, j] = P[j, i] = total


@contracted
def step_back(
    A: Array,
    Q: Array,
    low: IntArray,
    high: IntArray,
    eta: Array,
    J: Array,
    system: Array,
    work: Array,
) -> None:
    """Let J, eta = A' (I + J Q)^-1 J A, A' (I + J Q)^-1 eta."""
    d = eta.size
    if d > _FEW:
        many_back(A, Q, low, high, eta, J, system, work)
        return
    for i in range(d):
        for j in range(d):
            total = 1.0 if i == j else 0.0
            for k in range(low[j], high[j]):
                total += J[i, k] * Q[k, j]
            system[i, j] = total
            work[i, j] = J[i, j]
        work[i, d] = eta[i]
    eliminate(system, work, d + 1)
    for i in range(d):
        for j in range(d):
            total = 0.0
            for k in range(low[j], high[j]):
                total += work[i, k] * A[k, j]
            system[i, j] = total
    for i in range(d):
        total = 0.0
        for k in range(low[i], high[i]):
            total += A[k, i] * work[k, d]
        eta[i] = total
        for j in range(i + 1):
            upper, lower = 0.0, 0.0
            for k in range(low[i], high[i]):
                upper += A[k, i] * system[k, j]
            for k in range(low[j], high[j]):
                lower += A[k, j] * system[k, i]
            J[i, j] = J[j, i] = 0.5 * (upper + lower)


@contracted
def many_back(
    A: Array,
    Q: Array,
    low: IntArray,
    high: IntArray,
    eta: Array,
    J: Array,
    system: Array,
    work: Array,
) -> None:
    """Apply `step_back` block by block of Q, in half the time if there are many blocks.

    For the block of Q that is noise, (I + J Q)^-1 J = J - J_b M J_b' with M = (I + Q_b J_bb)^-1
    Q_b. Blocks of periodic and constant terms have no noise.
    """
    d = eta.size
    first = 0
    while first < d:
        end = high[first]
        if Q[first, first] > 0.0 or Q[end - 1, end - 1] > 0.0:
            widen(Q, first, end, eta, J, system, work)
        first = end
    # The loops form A' J transposed, twice.
    for turn in range(2):
        for i in range(d):
            for j in range(d):
                system[i, j] = 0.0
            for k in range(low[i], high[i]):
                value = A[k, i]
                for j in range(d):
                    system[i, j] += value * J[k, j]
        for i in range(d):
            if turn:
                for j in range(i + 1):
                    J[i, j] = J[j, i] = 0.5 * (system[i, j] + system[j, i])
            else:
                for j in range(d):
                    J[j, i] = system[i, j]
    for i in range(d):
        total = 0.0
        for k in range(low[i], high[i]):
            total += A[k, i] * eta[k]
        work[i, 0] = total
    for i in range(d):
        eta[i] = work[i, 0]


@contracted
def widen(Q: Array, first: int, end: int, eta: Array, J: Array, system: Array, work: Array) -> None:
    """Let J, eta = (I + J Q)^-1 J, (I + J Q)^-1 eta for one block of Q."""
    d, size = eta.size, end - first
    M, G = system[:size, :size], work[:size]
    for i in range(size):
        for j in range(size):
            total = 1.0 if i == j else 0.0
            for k in range(size):
                total += Q[first + i, first + k] * J[first + k, first + j]
            M[i, j] = total
            G[i, j] = Q[first + i, first + j]
    eliminate(M, G, size)
    for i in range(size):
        for j in range(size):
            M[i, j] = 0.5 * (G[i, j] + G[j, i])
    # The columns are M J_b', followed by M eta_b.
    for i in range(size):
        for j in range(d):
            G[i, j] = 0.0
        G[i, d] = 0.0
        for k in range(size):
            value = M[i, k]
            for j in range(d):
                G[i, j] += value * J[first + k, j]
            G[i, d] += value * eta[first + k]
    hold, whole = system[0], size - size % 4
    for i in range(d):
        for k in range(size):
            hold[k] = J[i, first + k]
            eta[i] -= hold[k] * G[k, d]
        for k in range(0, whole, 4):
            hold_0, hold_1, hold_2, hold_3 = hold[k], hold[k + 1], hold[k + 2], hold[k + 3]
            for j in range(d):
                J[i, j] -= (
                    hold_0 * G[k, j]
                    + hold_1 * G[k + 1, j]
                    + hold_2 * G[k + 2, j]
                    + hold_3 * G[k + 3, j]
                )
        for k in range(whole, size):
            for j in range(d):
                J[i, j] -= hold[k] * G[k, j]


@contracted
def meet(
    m: Array, P: Array, eta: Array, J: Array, heads: Array, system: Array, work: Array
) -> tuple[float, float]:
    """Return mean and variance of f = heads . x under both messages: z = (I + J P)^-1 h."""
    d = m.size
    one_plus_product(J, P, system)
    for i in range(d):
        work[i, 0] = heads[i]
    eliminate(system, work, 1)
    mean, variance = 0.0, 0.0
    for i in range(d):
        row_variance, pulled = 0.0, m[i]
        for j in range(d):
            row_variance += P[i, j] * heads[j]
            pulled += P[i, j] * eta[j]
        mean += work[i, 0] * pulled
        variance += work[i, 0] * row_variance
    return mean, variance


@contracted
def level(m: Array, P: Array, heads: Array) -> tuple[float, float]:
    """Return mean and variance of f under a forward message alone."""
    mean, variance = 0.0, 0.0
    for i in range(m.size):
        if heads[i] != 0.0:
            mean += m[i]
            for j in range(m.size):
                variance += P[i, j] * heads[j]
    return mean, variance


@contracted
def take_in(
    T: float, N: float, heads: Array, vector: Array, matrix: Array, ahead: bool, work: Array
) -> None:
    """Multiply the message of a pass by a site of f."""
    d = vector.size
    if not ahead:
        for i in range(d):
            if heads[i] != 0.0:
                vector[i] += N
                for j in range(d):
                    matrix[i, j] += T * heads[j]
        return
    mean, variance = level(vector, matrix, heads)
    gain = 1.0 + T * variance
    for i in range(d):
        total = 0.0
        for j in range(d):
            total += matrix[i, j] * heads[j]
        work[i, 0] = total
    pull, ratio = (N - T * mean) / gain, T / gain
    for i in range(d):
        vector[i] += work[i, 0] * pull
        for j in range(i + 1):
            matrix[i, j] = matrix[j, i] = matrix[i, j] - work[i, 0] * work[j, 0] * ratio


@kernel
def spans(offset: IntArray) -> tuple[IntArray, IntArray]:
    """Return first and last state, exclusive, of the block that every state belongs to."""
    d = offset[offset.size - 1]
    low, high = np.zeros(d, np.int64), np.zeros(d, np.int64)
    for b in range(offset.size - 1):
        for i in range(offset[b], offset[b + 1]):
            low[i], high[i] = offset[b], offset[b + 1]
    return low, high


# --- Passes
#
# `chain` is (first, kinds, rates, variance, offset, heads, start): the factors of the terms, the
# first states of terms, and P of the first row. One buffer (N, d + d (d + 1)/2) holds the messages
# from the other direction ahead of a pass, and the messages of the pass behind it. `edges` are
# those of `qpruntime.inference.markov.messages_small_kernels`, in rows like those of the buffer.

#: `chain`, as a state space makes it.
Pair = tuple[Array, Array]
Chain = tuple[IntArray, IntArray, Array, Array, IntArray, Array, Array]


@inlined
def begin(
    chain: Chain, edges: Array, ahead: bool
) -> tuple[Pair, Pair, tuple[Array, Array, IntArray, IntArray, Array], Pair]:
    """Return (first message of a pass, room for another one, room for transitions and products).

    Callers unpack it before their loop, because taking arrays out of tuples for every row costs a
    quarter of the time of a state of three numbers.
    """
    d = chain[5].size
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, system, work = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d + 1))
    a, B, b, C = np.zeros(d), np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
    load(edges, 0 if ahead else 1, a, B)
    return (a, B), (b, C), (A, Q, low, high, tensor), (system, work)


@kernel
def place(steps: Array, count: int, ahead: bool) -> tuple[int, float]:
    """Return the row that a pass reaches, and the step of time that leads there."""
    i = count if ahead else steps.size - 2 - count
    return i, steps[i] if ahead else steps[i + 1]


@kernel
def wide_pass(
    chain: Chain,
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    report: Array,
) -> None:
    """Pass messages along a series: `messages_small_kernels.pair_pass` for states of any size."""
    heads = chain[5]
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    (a, B), (b, C), (A, Q, low, high, tensor), (system, work) = begin(chain, edges, ahead)
    last = 0.0
    for count in range(tau.size):
        i, step = place(steps, count, ahead)
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            if ahead:
                step_ahead(A, Q, low, high, a, B, work)
            else:
                step_back(A, Q, low, high, a, B, system, work)
        if report.shape[0]:
            load(buffer, i, b, C)
            if ahead:
                report[i, 0], report[i, 1] = meet(a, B, b, C, heads, system, work)
                report[i, 2], report[i, 3] = level(a, B, heads)
            else:
                report[i, 0], report[i, 1] = meet(b, C, a, B, heads, system, work)
                report[i, 2], report[i, 3] = level(b, C, heads)
        store(buffer, i, a, B)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        take_in(T, N, heads, a, B, ahead, work)
    store(edges, 2 if ahead else 3, a, B)


@kernel
def wide_sweep(
    chain: Chain,
    steps: Array,
    rows: SeriesRows,
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    rules: SeriesRules,
    tally: Array,
) -> tuple[int, int]:
    """Run `wide_pass` and update every site on the way; return (status, site)."""
    heads = chain[5]
    noise, scale, y, prior, weights = rows
    tau, nu = sites
    buffer, edges = messages
    (a, B), (b, C), (A, Q, low, high, tensor), (system, work) = begin(chain, edges, ahead)
    last, scratch = 0.0, np.empty((1, 4))
    for count in range(tau.size):
        i, step = place(steps, count, ahead)
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            if ahead:
                step_ahead(A, Q, low, high, a, B, work)
            else:
                step_back(A, Q, low, high, a, B, system, work)
        load(buffer, i, b, C)
        if ahead:
            cavity = meet(a, B, b, C, heads, system, work)
        else:
            cavity = meet(b, C, a, B, heads, system, work)
        store(buffer, i, a, B)
        row = noise, scale[i], y[i], prior[i], weights[i]
        status, site, (T, N) = revise(rules, row, (tau[i], nu[i]), cavity, scratch, tally, i)
        if status != OK:
            return status, i
        tau[i], nu[i] = site
        take_in(T, N, heads, a, B, ahead, work)
    store(edges, 2 if ahead else 3, a, B)
    return OK, 0


@kernel
def wide_slope(
    chain: Chain,
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    limits: tuple[Array, bool],
    sums: Array,
) -> None:
    """Sum the gradient as `messages_small_kernels.pair_slope` does, for states of any size.

    The sums (3, d, d) are dt (l m' + W P) and dt W on the blocks of the terms, unless the step is
    longer than `far` of the term. The shares of the variances are at sums[2, b, 0]. The block of W
    at the first row is added to sums[2], shifted by one column.
    """
    _, _, _, variance, offset, heads, start = chain
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    far, first = limits
    n, d = tau.size, heads.size
    (eta, J), (m, P), (A, Q, low, high, tensor), (system, work) = begin(chain, edges, False)
    W, pull = np.zeros((d, d)), np.zeros(d)
    last = 0.0
    for count in range(n):
        i, step = place(steps, count, False)
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            step_back(A, Q, low, high, eta, J, system, work)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        take_in(T, N, heads, eta, J, False, work)
        dt = steps[i]
        if not (dt > 0.0 or (i == 0 and first)):
            continue
        load(buffer, i, m, P)
        one_plus_product(J, P, system)
        for a in range(d):
            total = eta[a]
            for b in range(d):
                total -= J[a, b] * m[b]
                work[a, b] = J[a, b]
            work[a, d] = total
        eliminate(system, work, d + 1)
        for a in range(d):
            pull[a] = work[a, d]
        for a in range(d):
            for b in range(d):
                W[a, b] = pull[a] * pull[b] - 0.5 * (work[a, b] + work[b, a])
        if i == 0 and first:
            for b in range(variance.size):
                for j in range(offset[b], offset[b + 1]):
                    for k in range(offset[b], offset[b + 1]):
                        sums[2, b, 0] += 0.5 * W[j, k] * start[j, k]
            for j in range(d):
                for k in range(d):
                    sums[3, j, k] = W[j, k]
            break
        if dt != last:
            fill(dt, chain, A, Q, tensor)
            last = dt
        for b in range(variance.size):
            near = dt < far[b]
            for j in range(offset[b], offset[b + 1]):
                for k in range(offset[b], offset[b + 1]):
                    sums[2, b, 0] += 0.5 * W[j, k] * Q[j, k]
                    if near:
                        total = pull[j] * m[k]
                        for c in range(d):
                            total += W[j, c] * P[c, k]
                        sums[0, j, k] += dt * total
                        sums[1, j, k] += dt * W[j, k]
