"""States drawn row by row. Kernels only."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.markov.covariances import (
    eliminate,
    load,
    one_plus_product,
    spans,
    step_back,
    store,
    take_in,
)
from qpruntime.inference.markov.site_step import absorbed
from qpruntime.jit import kernel
from qpruntime.kernels.transitions import fill

__all__ = ["draw_states"]


@kernel
def root(C, L):
    """Cholesky factor of a covariance, zero where there is no variance left."""
    d = C.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = C[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            if i == j:
                # What is left of a variance after roundings alone is none.
                L[i, i] = math.sqrt(total) if total > 1e-15 * C[i, i] else 0.0
            else:
                L[i, j] = total / L[j, j] if L[j, j] > 0.0 else 0.0
        for j in range(i + 1, d):
            L[i, j] = 0.0


@kernel
def draw_states(chain, steps, observed, sites, buffer, normal, wanted, out):
    """Fill `out` (wanted rows, draws) with f, from standard normal numbers (N, d, draws).

    x_i given x_{i-1} is N((I + Q J)^-1 (A x_{i-1} + Q eta), (I + Q J)^-1 Q), exp(eta' x - x' J x/2)
    being what row i and all later ones say of x_i; of the first row Q is its covariance.
    """
    heads, start = chain[5], chain[6]
    noise, scale = observed
    tau, nu = sites
    n, d, count = normal.shape
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, system = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    work, both = np.zeros((d, d + 1)), np.zeros((d, 2 * d + 1))
    eta, J, C, L = np.zeros(d), np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    x, moved = np.zeros((d, count)), np.zeros((d, count))
    last = 0.0
    for i in range(n - 1, -1, -1):
        step = steps[i + 1]
        if step > 0.0:
            if step != last:
                fill(step, chain, A, Q, tensor)
                last = step
            step_back(A, Q, low, high, eta, J, system, work)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        take_in(T, N, heads, eta, J, False, work)
        store(buffer, i, eta, J)
    place = 0
    for i in range(n):
        step = steps[i]
        if i == 0 or step > 0.0:
            if i == 0:
                for a in range(d):
                    for b in range(d):
                        A[a, b] = 0.0
                        Q[a, b] = start[a, b]
            else:
                fill(step, chain, A, Q, tensor)
            load(buffer, i, eta, J)
            one_plus_product(Q, J, system)
            # (I + Q J)^-1 of Q, of Q eta and of A.
            for a in range(d):
                both[a, d] = 0.0
                for b in range(d):
                    both[a, b] = Q[a, b]
                    both[a, d] += Q[a, b] * eta[b]
                    both[a, d + 1 + b] = A[a, b]
            eliminate(system, both, 2 * d + 1)
            for a in range(d):
                for b in range(d):
                    C[a, b] = 0.5 * (both[a, b] + both[b, a])
            root(C, L)
            for a in range(d):
                for s in range(count):
                    total = both[a, d]
                    for b in range(d):
                        total += both[a, d + 1 + b] * x[b, s] + L[a, b] * normal[i, b, s]
                    moved[a, s] = total
            for a in range(d):
                for s in range(count):
                    x[a, s] = moved[a, s]
        if wanted[i]:
            for s in range(count):
                out[place, s] = 0.0
                for a in range(d):
                    out[place, s] += heads[a] * x[a, s]
            place += 1
