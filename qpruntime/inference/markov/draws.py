"""Joint draws of a series from its posterior."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import kernel
from qpruntime._typing import Array
from qpruntime.inference.markov.messages_covariance_kernels import (
    Chain,
    eliminate,
    load,
    one_plus_product,
    spans,
    step_back,
    store,
    take_in,
)
from qpruntime.inference.markov.messages_small_kernels import absorbed
from qpruntime.inference.markov.passes import Rows
from qpruntime.kernels.transition_kernels import fill

__all__ = ["draw", "draw_states"]

#: Random numbers that are drawn at once.
_NUMBERS = 4_000_000


def draw(rows: Rows, place: NDArray[np.intp], count: int, rng: np.random.Generator) -> Array:
    """Return draws of f at chosen rows, (count, size of `place`)."""
    series, d = rows.series, rows.space.dimension
    n = series.t.size
    wanted = np.zeros(n, dtype=np.bool_)
    wanted[place] = True
    column = np.cumsum(wanted) - 1
    draws = np.empty((count, place.size))
    most = max(1, _NUMBERS // (n * d))
    chain = rows.space.arrays(float(series.t[0]))
    model = chain, series.steps, (rows.noise, series.scales), (rows.tau, rows.nu)
    for begin in range(0, count, most):
        batch = slice(begin, min(begin + most, count))
        normal = rng.standard_normal((n, d, batch.stop - batch.start))
        out = np.empty((int(wanted.sum()), batch.stop - batch.start))
        draw_states(*model, np.empty((n, d + d * (d + 1) // 2)), normal, wanted, out)
        draws[batch] = out[column[place]].T
    return draws


@kernel
def root(C: Array, L: Array) -> None:
    """Fill the Cholesky factor of a covariance, with zeros where no variance is left."""
    d = C.shape[0]
    for i in range(d):
        for j in range(i + 1):
            total = C[i, j]
            for k in range(j):
                total -= L[i, k] * L[j, k]
            if i == j:
                # A variance that consists of rounding alone counts as zero.
                L[i, i] = math.sqrt(total) if total > 1e-15 * C[i, i] else 0.0
            else:
                L[i, j] = total / L[j, j] if L[j, j] > 0.0 else 0.0
        for j in range(i + 1, d):
            L[i, j] = 0.0


@kernel
def draw_states(
    chain: Chain,
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    buffer: Array,
    normal: Array,
    wanted: NDArray[np.bool_],
    out: Array,
) -> None:
    """Fill `out` (wanted rows, draws) with f, from standard normal numbers (N, d, draws).

    Given x_{i-1}, x_i is N((I + Q J)^-1 (A x_{i-1} + Q eta), (I + Q J)^-1 Q). The factor exp(eta' x
    - x' J x/2) is the information of row i and all later ones about x_i. Q of the first row is
    its covariance.
    """
    heads, start = chain[5], chain[6]
    noise, scale = observed
    tau, nu = sites
    n, d, count = normal.shape
    low, high = spans(chain[4])
    tensor = np.zeros((9, d + 3, d + 3))
    A, Q, system = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    work, solved = np.zeros((d, d + 1)), np.zeros((d, 2 * d + 1))
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
            # These are (I + Q J)^-1 times Q, times Q eta and times A.
            for a in range(d):
                solved[a, d] = 0.0
                for b in range(d):
                    solved[a, b] = Q[a, b]
                    solved[a, d] += Q[a, b] * eta[b]
                    solved[a, d + 1 + b] = A[a, b]
            eliminate(system, solved, 2 * d + 1)
            for a in range(d):
                for b in range(d):
                    C[a, b] = 0.5 * (solved[a, b] + solved[b, a])
            root(C, L)
            for a in range(d):
                for s in range(count):
                    total = solved[a, d]
                    for b in range(d):
                        total += solved[a, d + 1 + b] * x[b, s] + L[a, b] * normal[i, b, s]
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
