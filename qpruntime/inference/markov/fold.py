"""The rows of a part of a series, one after the other, as one step. Kernels only."""

from __future__ import annotations

import numpy as np

from qpruntime.inference.markov import pair
from qpruntime.inference.markov.covariances import spans, step_ahead, take_in
from qpruntime.inference.markov.sites import absorbed
from qpruntime.jit import kernel
from qpruntime.kernels.transitions import fill

__all__ = ["fold", "pair_fold"]


@kernel
def pair_fold(chain, steps, observed, sites, found):
    """`fold` for the states of `qpruntime.inference.markov.pair`, in its factors."""
    kind, rate, variance = chain
    noise, scale = observed
    tau, nu = sites
    move = pair.transition(kind, variance, 0.0)
    message = 0.0, 0.0, 0.0, 0.0, 0.0
    p00, p01, p10, p11 = 1.0, 0.0, 0.0, 1.0
    e0, e1, j00, j01, j11 = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(tau.size):
        step = rate * steps[i]
        if step != move[7]:
            move = pair.transition(kind, variance, step)
        if step > 1e-60:
            message = pair.forward(message, move)
            a00, a01, a10, a11 = move[0], move[1], move[2], move[3]
            p00, p01, p10, p11 = (
                a00 * p00 + a01 * p10,
                a00 * p01 + a01 * p11,
                a10 * p00 + a11 * p10,
                a10 * p01 + a11 * p11,
            )
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        m0, _, D, c, _ = message
        inverse = 1.0 / (1.0 + T * D)
        pull, ratio = (N - T * m0) * inverse, T * inverse
        e0 += p00 * pull
        e1 += p01 * pull
        j00 += p00 * p00 * ratio
        j01 += p00 * p01 * ratio
        j11 += p01 * p01 * ratio
        p10 -= c * D * ratio * p00
        p11 -= c * D * ratio * p01
        p00 *= inverse
        p01 *= inverse
        message = pair.take_in(T, N, message, True)
    move_out, b, C, eta, J = found
    move_out[0, 0], move_out[0, 1], move_out[1, 0], move_out[1, 1] = p00, p01, p10, p11
    m0, m1, D, c, s = message
    b[0], b[1], eta[0], eta[1] = m0, m1, e0, e1
    C[0, 0], C[0, 1], C[1, 0], C[1, 1] = D, c * D, c * D, s + c * c * D
    J[0, 0], J[0, 1], J[1, 0], J[1, 1] = j00, j01, j01, j11


@kernel
def fold(chain, steps, observed, sites, found):
    """Fill a `qpruntime.inference.markov.transfer.Transfer` with the rows of a part."""
    heads = chain[5]
    noise, scale = observed
    tau, nu = sites
    move, b, C, eta, J = found
    d = heads.size
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, work, a = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d + 1)), np.zeros(d)
    last = 0.0
    for i in range(tau.size):
        step = steps[i]
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            step_ahead(A, Q, low, high, b, C, work)
            for j in range(d):
                for k in range(d):
                    work[j, k] = 0.0
                for m in range(low[j], high[j]):
                    for k in range(d):
                        work[j, k] += A[j, m] * move[m, k]
            for j in range(d):
                for k in range(d):
                    move[j, k] = work[j, k]
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        level, square = 0.0, 0.0
        for j in range(d):
            a[j] = 0.0
        for j in range(d):
            if heads[j] != 0.0:
                level += b[j]
                for k in range(d):
                    a[k] += move[j, k]
                    square += C[j, k] * heads[k]
        gain = 1.0 + T * square
        pull, ratio = (N - T * level) / gain, T / gain
        for j in range(d):
            eta[j] += a[j] * pull
            for k in range(d):
                J[j, k] += a[j] * a[k] * ratio
        # A loses C h a' T/S, as C loses C h h' C T/S.
        for j in range(d):
            shared = 0.0
            for k in range(d):
                shared += C[j, k] * heads[k]
            for k in range(d):
                move[j, k] -= shared * a[k] * ratio
        take_in(T, N, heads, b, C, True, work)
