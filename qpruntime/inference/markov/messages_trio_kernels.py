"""Messages of states with three components, Matérn 5/2. Kernels only."""

from __future__ import annotations

import numpy as np

from qpruntime._numba import inlined, kernel
from qpruntime._typing import Array, Floats
from qpruntime.inference.markov.messages_small_kernels import (
    NEGLIGIBLE,
    SeriesRows,
    SeriesRules,
    absorbed,
    revise,
)
from qpruntime.kernels.stationary import matern_5_step as matern_5
from qpruntime.quadrature.sigma_star_kernels import OK

__all__ = ["trio_pass", "trio_slope", "trio_sweep"]

# Forward messages are N(m, P), P = L diag(p) L' with unit lower L; backward ones are exp(eta' x -
# x' J x / 2), J = U diag(e) U' with unit upper U, and eta = U z. An observation changes p0 or (z0,
# e0) alone. Steps are those of Thornton and Bierman (Bierman 1977, Factorization Methods, V and
# VI): rows are orthogonalised under weights, and noise is added column by column. Every diagonal is
# a sum of squares while sites are positive. `qpruntime.inference.markov.messages_small_kernels`
# explains the arguments. Rows have the vector and the lower triangle of a matrix with the diagonal,
# and L or U' below it.


@kernel
def transition_three(variance: float, x: float) -> Floats:
    """Return (A by rows, diagonal of Q's factors, l10, l20, l21 of these, x) at x = rate * time."""
    near = min(x, 700.0)
    if near < 1e-60:
        return 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, x
    a00, a01, a02, a10, a11, a12, a20, a21, a22, q00, q01, q02, q11, q12, q22 = matern_5(near)
    inverse = 1.0 / q00
    k10, k20 = q01 * inverse, q02 * inverse
    conditional = q11 - k10 * q01
    cross = q12 - k20 * q01
    k21 = cross / conditional
    last = q22 - k20 * q02 - k21 * cross
    q0, q1, q2 = variance * q00, variance * conditional, variance * last
    return a00, a01, a02, a10, a11, a12, a20, a21, a22, q0, q1, q2, k10, k20, k21, x


@kernel
def inverted(value: float) -> float:
    """Return 1 / value, or 0 for a negligible value, whose factor says nothing."""
    return 1.0 / value if abs(value) > NEGLIGIBLE else 0.0


@kernel
def forward_three(message: Floats, move: Floats) -> Floats:
    """Return the forward message after a step: orthogonalise rows of [A L, L of Q] from the top."""
    m0, m1, m2, p0, p1, p2, l10, l20, l21 = message
    a00, a01, a02, a10, a11, a12, a20, a21, a22, q0, q1, q2, k10, k20, k21, _ = move
    w00, w01 = a00 + a01 * l10 + a02 * l20, a01 + a02 * l21
    w10, w11 = a10 + a11 * l10 + a12 * l20, a11 + a12 * l21
    w20, w21 = a20 + a21 * l10 + a22 * l20, a21 + a22 * l21
    b0, b1, b2 = w00 * p0, w01 * p1, a02 * p2
    d0 = w00 * b0 + w01 * b1 + a02 * b2 + q0
    inverse = inverted(d0)
    n10 = (w10 * b0 + w11 * b1 + a12 * b2 + k10 * q0) * inverse
    n20 = (w20 * b0 + w21 * b1 + a22 * b2 + k20 * q0) * inverse
    r0, r1, r2, r3 = w10 - n10 * w00, w11 - n10 * w01, a12 - n10 * a02, k10 - n10
    s0, s1, s2, s3 = w20 - n20 * w00, w21 - n20 * w01, a22 - n20 * a02, k20 - n20
    b0, b1, b2, b3 = r0 * p0, r1 * p1, r2 * p2, r3 * q0
    d1 = r0 * b0 + r1 * b1 + r2 * b2 + r3 * b3 + q1
    n21 = (s0 * b0 + s1 * b1 + s2 * b2 + s3 * b3 + k21 * q1) * inverted(d1)
    s0, s1, s2, s3, s4 = s0 - n21 * r0, s1 - n21 * r1, s2 - n21 * r2, s3 - n21 * r3, k21 - n21
    d2 = s0 * s0 * p0 + s1 * s1 * p1 + s2 * s2 * p2 + s3 * s3 * q0 + s4 * s4 * q1 + q2
    return (
        a00 * m0 + a01 * m1 + a02 * m2,
        a10 * m0 + a11 * m1 + a12 * m2,
        a20 * m0 + a21 * m1 + a22 * m2,
        d0,
        d1,
        d2,
        n10,
        n20,
        n21,
    )


@kernel
def spread(message: Floats, noise: Floats) -> Floats:
    """Return a backward message of x + N(0, L diag(q) L'): J -> (I + J Q)^-1 J."""
    z0, z1, z2, e0, e1, e2, u01, u02, u12 = message
    q0, q1, q2, k10, k20, k21 = noise
    # The last column of L is (0, 0, 1).
    inverse = 1.0 / (1.0 + q2 * e2)
    e2, z2 = e2 * inverse, z2 * inverse
    # The second column of L is (0, 1, k21).
    f2 = u12 + k21
    v1, v2 = q1 * e1, q1 * e2 * f2
    pivot_1 = 1.0 + v1
    pivot_2 = pivot_1 + f2 * v2
    inverse, last = 1.0 / pivot_1, 1.0 / pivot_2
    z2 = (pivot_1 * z2 - v2 * z1) * last
    e2 *= pivot_1 * last
    u02 -= u01 * (v1 * f2 * inverse)
    u12 = (u12 - k21 * v1) * inverse
    z1, e1 = z1 * inverse, e1 * inverse
    # The first column of L is (1, k10, k20).
    f1, f2 = u01 + k10, u02 + u12 * k10 + k20
    v0, v1, v2 = q0 * e0, q0 * e1 * f1, q0 * e2 * f2
    pivot_1 = 1.0 + v0
    pivot_2 = pivot_1 + f1 * v1
    pivot_3 = pivot_2 + f2 * v2
    first, second, third = 1.0 / pivot_1, 1.0 / pivot_2, 1.0 / pivot_3
    # Terms that cancel in u - f (...) are left out.
    new_u12 = (u12 * (pivot_1 + v1 * u01) - v1 * (u02 + k20)) * second
    u02 = (u02 * (1.0 + k10 * v1) - (u12 * k10 + k20) * (v0 + u01 * v1)) * second
    return (
        z0 * first,
        (pivot_1 * z1 - v1 * z0) * second,
        (pivot_2 * z2 - v2 * (z0 + f1 * z1)) * third,
        e0 * first,
        e1 * pivot_1 * second,
        e2 * pivot_2 * third,
        (u01 - k10 * v0) * first,
        u02,
        new_u12,
    )


@kernel
def backward_three(message: Floats, move: Floats) -> Floats:
    """Return the backward message before a step: orthogonalise rows of A' U from the bottom."""
    a00, a01, a02, a10, a11, a12, a20, a21, a22 = move[:9]
    z0, z1, z2, e0, e1, e2, u01, u02, u12 = spread(message, move[9:15])
    w01, w02 = a00 * u01 + a10, a00 * u02 + a10 * u12 + a20
    w11, w12 = a01 * u01 + a11, a01 * u02 + a11 * u12 + a21
    w21, w22 = a02 * u01 + a12, a02 * u02 + a12 * u12 + a22
    b0, b1, b2 = a02 * e0, w21 * e1, w22 * e2
    d2 = a02 * b0 + w21 * b1 + w22 * b2
    inverse = inverted(d2)
    n12 = (a01 * b0 + w11 * b1 + w12 * b2) * inverse
    n02 = (a00 * b0 + w01 * b1 + w02 * b2) * inverse
    r0, r1, r2 = a01 - n12 * a02, w11 - n12 * w21, w12 - n12 * w22
    s0, s1, s2 = a00 - n02 * a02, w01 - n02 * w21, w02 - n02 * w22
    b0, b1, b2 = r0 * e0, r1 * e1, r2 * e2
    d1 = r0 * b0 + r1 * b1 + r2 * b2
    n01 = (s0 * b0 + s1 * b1 + s2 * b2) * inverted(d1)
    s0, s1, s2 = s0 - n01 * r0, s1 - n01 * r1, s2 - n01 * r2
    return (
        s0 * z0 + s1 * z1 + s2 * z2,
        r0 * z0 + r1 * z1 + r2 * z2,
        a02 * z0 + w21 * z1 + w22 * z2,
        s0 * s0 * e0 + s1 * s1 * e1 + s2 * s2 * e2,
        d1,
        d2,
        n01,
        n02,
        n12,
    )


@kernel
def left(ahead: Floats, behind: Floats) -> tuple[float, float, float]:
    """Return z of a backward message about x - m, where m is the mean of a forward one."""
    m0, m1, m2 = ahead[:3]
    z0, z1, z2, e0, e1, e2, u01, u02, u12 = behind
    return (
        z0 - e0 * m0,
        z1 - e1 * (u01 * m0 + m1),
        z2 - e2 * (u02 * m0 + u12 * m1 + m2),
    )


@kernel
def meet_three(ahead: Floats, behind: Floats) -> tuple[float, float]:
    """Return mean and variance of the first state under both messages, without a site.

    Let x = m + L w. The backward precision is V diag(e) V', V = L' U. The noises w2 and w1 are
    added as in `spread`, and the remainder concerns w0 alone.
    """
    z0, z1, z2 = left(ahead, behind)
    _, _, _, e0, e1, e2, u01, u02, u12 = behind
    m0, _, _, p0, p1, p2, l10, l20, l21 = ahead
    v01, v02, v12 = u01 + l10, u02 + l10 * u12 + l20, u12 + l21
    inverse = 1.0 / (1.0 + p2 * e2)
    e2, z2 = e2 * inverse, z2 * inverse
    ratio, cross = p1 * e1, p1 * e2 * v12
    pivot_1 = 1.0 + ratio
    pivot_2 = pivot_1 + v12 * cross
    inverse, last = 1.0 / pivot_1, 1.0 / pivot_2
    v02 -= v12 * v01 * (ratio * inverse)
    e2 *= pivot_1 * last
    z2 = (pivot_1 * z2 - cross * z1) * last
    known = e0 + v01 * v01 * e1 * inverse + v02 * v02 * e2
    variance = p0 / (1.0 + p0 * known)
    return m0 + variance * (z0 + v01 * z1 * inverse + v02 * z2), variance


@kernel
def take_in_three(T: float, N: float, message: Floats, ahead: bool) -> Floats:
    """Return the message of a pass times a site of f."""
    a0, a1, a2, b0, b1, b2, c0, c1, c2 = message
    if ahead:
        share = b0 / (1.0 + T * b0)
        gain = (N - T * a0) * share
        return a0 + gain, a1 + c0 * gain, a2 + c1 * gain, share, b1, b2, c0, c1, c2
    return a0 + N, a1, a2, b0 + T, b1, b2, c0, c1, c2


@inlined
def taken(rows: Array, i: int) -> Floats:
    """Return a stored message."""
    row = rows[i]
    return row[0], row[1], row[2], row[3], row[5], row[8], row[4], row[6], row[7]


@kernel
def put(rows: Array, i: int, message: Floats) -> None:
    """Store a message."""
    row = rows[i]
    row[0], row[1], row[2], row[3], row[5], row[8], row[4], row[6], row[7] = message


@inlined
def reach_three(
    chain: tuple[float, float],
    steps: Array,
    count: int,
    ahead: bool,
    message: Floats,
    move: Floats,
) -> tuple[int, Floats, Floats]:
    """Move the message of a pass by a step; return (row, message there, transition)."""
    rate, variance = chain
    i = count if ahead else steps.size - 2 - count
    step = rate * (steps[i] if ahead else steps[i + 1])
    if step != move[15]:
        move = transition_three(variance, step)
    if step > 1e-60:
        message = forward_three(message, move) if ahead else backward_three(message, move)
    return i, message, move


@kernel
def trio_pass(
    chain: tuple[float, float],
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    report: Array,
) -> None:
    """Run `messages_small_kernels.pair_pass` for Matern 5/2; `chain` = (rate, variance)."""
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    a, move = taken(edges, 0 if ahead else 1), transition_three(chain[1], 0.0)
    for count in range(tau.size):
        i, a, move = reach_three(chain, steps, count, ahead, a, move)
        if report.shape[0]:
            b = taken(buffer, i)
            forward, backward = (a, b) if ahead else (b, a)
            report[i, 0], report[i, 1] = meet_three(forward, backward)
            report[i, 2], report[i, 3] = forward[0], forward[3]
        put(buffer, i, a)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        a = take_in_three(T, N, a, ahead)
    put(edges, 2 if ahead else 3, a)


@kernel
def trio_sweep(
    chain: tuple[float, float],
    steps: Array,
    rows: SeriesRows,
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    rules: SeriesRules,
    tally: Array,
) -> tuple[int, int]:
    """Run `trio_pass` and update every site on the way; return (status, site)."""
    noise, scale, y, prior, weights = rows
    tau, nu = sites
    buffer, edges = messages
    scratch = np.empty((1, 4))
    a, move = taken(edges, 0 if ahead else 1), transition_three(chain[1], 0.0)
    for count in range(tau.size):
        i, a, move = reach_three(chain, steps, count, ahead, a, move)
        b = taken(buffer, i)
        put(buffer, i, a)
        cavity = meet_three(a, b) if ahead else meet_three(b, a)
        row = noise, scale[i], y[i], prior[i], weights[i]
        status, site, (T, N) = revise(rules, row, (tau[i], nu[i]), cavity, scratch, tally, i)
        if status != OK:
            return status, i
        tau[i], nu[i] = site
        a = take_in_three(T, N, a, ahead)
    put(edges, 2 if ahead else 3, a)
    return OK, 0


@kernel
def trio_slope(
    chain: tuple[float, float],
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    limits: tuple[float, bool],
    sums: Array,
) -> None:
    """Sum the gradient as `messages_small_kernels.pair_slope` does, for Matern 5/2."""
    rate, variance = chain
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    far, first = limits
    message, move = taken(edges, 1), transition_three(variance, 0.0)
    W, P = np.zeros((3, 3)), np.zeros((3, 3))
    for count in range(tau.size):
        i, message, move = reach_three(chain, steps, count, False, message, move)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        message = take_in_three(T, N, message, False)
        ahead = taken(buffer, i)
        m0, m1, m2, p0, p1, p2, l10, l20, l21 = ahead
        # The matrix W = l l' - (J^-1 + P)^-1 is that of a step with noise P.
        z0, z1, z2, e0, e1, e2, u01, u02, u12 = spread(
            left(ahead, message) + message[3:], ahead[3:]
        )
        pull = z0 + u01 * z1 + u02 * z2, z1 + u12 * z2, z2
        W[0, 0] = pull[0] * pull[0] - (e0 + u01 * u01 * e1 + u02 * u02 * e2)
        W[0, 1] = W[1, 0] = pull[0] * pull[1] - (u01 * e1 + u02 * u12 * e2)
        W[0, 2] = W[2, 0] = pull[0] * pull[2] - u02 * e2
        W[1, 1] = pull[1] * pull[1] - (e1 + u12 * u12 * e2)
        W[1, 2] = W[2, 1] = pull[1] * pull[2] - u12 * e2
        W[2, 2] = pull[2] * pull[2] - e2
        if i == 0 and first:
            weight = W[0, 0] + W[2, 2] + (W[1, 1] - 2.0 * W[0, 2]) / 3.0
            sums[2, 0, 0] += 0.5 * variance * weight
        x = rate * steps[i]
        if x != move[15]:
            move = transition_three(variance, x)
        q0, q1, q2, k10, k20, k21 = move[9:15]
        weight = q0 * (W[0, 0] + k10 * k10 * W[1, 1] + k20 * k20 * W[2, 2])
        weight += 2.0 * q0 * (k10 * W[0, 1] + k20 * W[0, 2] + k10 * k20 * W[1, 2])
        weight += q1 * (W[1, 1] + 2.0 * k21 * W[1, 2] + k21 * k21 * W[2, 2]) + q2 * W[2, 2]
        sums[2, 0, 0] += 0.5 * weight
        if x < far:
            dt, m = steps[i], (m0, m1, m2)
            P[0, 0], P[0, 1], P[0, 2] = p0, l10 * p0, l20 * p0
            P[1, 1], P[1, 2] = p1 + l10 * l10 * p0, l21 * p1 + l10 * l20 * p0
            P[2, 2] = p2 + l21 * l21 * p1 + l20 * l20 * p0
            P[1, 0], P[2, 0], P[2, 1] = P[0, 1], P[0, 2], P[1, 2]
            for j in range(3):
                for k in range(3):
                    product = W[j, 0] * P[0, k] + W[j, 1] * P[1, k] + W[j, 2] * P[2, k]
                    sums[0, j, k] += dt * (pull[j] * m[k] + product)
                    sums[1, j, k] += dt * W[j, k]
