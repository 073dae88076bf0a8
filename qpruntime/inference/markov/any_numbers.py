"""States of any size: messages as a mean and a covariance ahead, as eta and J behind.

`chain` is (first, kinds, rates, variance, offset, heads, start): the factors of the terms,
where their states begin, and P of the first row. One buffer (N, d + d (d + 1)/2) holds the messages
that come from where a pass goes to, and those of the pass behind it; `edges` are those of
`qpruntime.inference.markov.two_numbers`, in rows as of the buffer. Kernels only.
"""

from __future__ import annotations

import numpy as np

from qpruntime.inference.markov.covariances import (
    eliminate,
    level,
    load,
    meet,
    one_plus_product,
    spans,
    step_ahead,
    step_back,
    store,
    take_in,
)
from qpruntime.inference.markov.site_step import absorbed, revise
from qpruntime.jit import inlined, kernel
from qpruntime.kernels.transitions import fill
from qpruntime.quadrature.sigma_star import OK

__all__ = ["wide_pass", "wide_slope", "wide_sweep"]


@inlined
def begin(chain, edges, ahead):
    """(message of a pass as it begins, room for another one, room for transitions and products).

    Callers unpack it before their loop: to take arrays out of tuples for every row costs a quarter
    of the time of a state of three numbers.
    """
    d = chain[5].size
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, system, work = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d + 1))
    a, B, b, C = np.zeros(d), np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
    load(edges, 0 if ahead else 1, a, B)
    return (a, B), (b, C), (A, Q, low, high, tensor), (system, work)


@kernel
def place(steps, count, ahead):
    """Row of a pass, and the step of time that leads there."""
    i = count if ahead else steps.size - 2 - count
    return i, steps[i] if ahead else steps[i + 1]


@kernel
def wide_pass(chain, steps, observed, sites, messages, ahead, report):
    """Pass messages along a series: `two_numbers.pair_pass` for any state."""
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
def wide_sweep(chain, steps, rows, sites, messages, ahead, rules, found):
    """`wide_pass` that updates every site when it comes to it; return (status, site)."""
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
        status, site, (T, N) = revise(rules, row, (tau[i], nu[i]), cavity, scratch, found, i)
        if status != OK:
            return status, i
        tau[i], nu[i] = site
        take_in(T, N, heads, a, B, ahead, work)
    store(edges, 2 if ahead else 3, a, B)
    return OK, 0


@kernel
def wide_slope(chain, steps, observed, sites, messages, limits, sums):
    """`qpruntime.inference.markov.two_numbers.pair_slope` for any state.

    sums (3, d, d): dt (l m' + W P) and dt W on the blocks of the terms, unless the step is longer
    than `far` of the term, and the shares of the variances at sums[2, b, 0]; the block of W at the
    first row is added to sums[2], shifted by one column.
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
