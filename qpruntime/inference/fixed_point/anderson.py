"""Anderson acceleration of a fixed-point iteration x <- x + r(x) (D. G. Anderson, 1965).

The last few steps and residuals give a secant model of r; the next x is where the model's residual
is smallest. Parallel EP alternates around its fixed point when the evidence is steep (separable
data, large prior variance): plain iterations shrink the error by 0.6 each, accelerated ones reach
1e-6 in a third of the number.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel, summed

__all__ = ["Anderson", "solve_positive"]

_RIDGE = 1e-10


@kernel
def solve_positive(A: Array, b: Array) -> None:
    """Turn b into A^-1 b for a tiny positive definite A, which is used up."""
    n = b.size
    for j in range(n):
        for i in range(j, n):
            for k in range(j):
                A[i, j] -= A[i, k] * A[j, k]
        A[j, j] = math.sqrt(max(A[j, j], 1e-300))
        for i in range(j + 1, n):
            A[i, j] /= A[j, j]
        for k in range(j):
            b[j] -= A[j, k] * b[k]
        b[j] /= A[j, j]
    for j in range(n - 1, -1, -1):
        for i in range(j + 1, n):
            b[j] -= A[i, j] * b[i]
        b[j] /= A[j, j]


@summed
def secant_step(
    steps: Array, changes: Array, count: int, residual: Array, unit: Array, scaled: Array
) -> Array:
    """Return the step to where the model's residual is smallest, from the last `count` changes."""
    n = residual.size
    weighted = np.empty((count, n))
    norm, gamma, gram = np.empty(count), np.zeros(count), np.zeros((count, count))
    for i in range(count):
        row, change, square = weighted[i], changes[i], 0.0
        for j in range(n):
            row[j] = change[j] * unit[j]
            square += row[j] * row[j]
        # Unit rows: differences of all ages count alike, and the ridge keeps nearly parallel ones
        # from cancelling into noise.
        norm[i] = math.sqrt(square) if square > 0.0 else 1.0
        for k in range(i + 1):
            other, total = weighted[k], 0.0
            for j in range(n):
                total += row[j] * other[j]
            gram[i, k] = total / (norm[i] * norm[k])
        gram[i, i] += _RIDGE
        total = 0.0
        for j in range(n):
            total += row[j] * scaled[j]
        gamma[i] = total / norm[i]
    solve_positive(gram, gamma)
    move = residual.copy()
    for i in range(count):
        share, step, change = gamma[i] / norm[i], steps[i], changes[i]
        for j in range(n):
            move[j] -= share * (step[j] + change[j])
    return move


class Anderson:
    """Proposes steps; forgets what it learned when that made matters worse.

    One object may serve a sequence of related problems, such as the same data under slowly
    changing hyper-parameters: after `restart` the secant model is kept if the new problem is near.

    Parameters
    ----------
    memory : int
        Past differences kept.
    begin : float
        Root mean squared weighted residual below which the secant model is trusted.
    near : float
        First residual below which a new problem is so near that the old model is kept.
    """

    def __init__(self, memory: int = 6, begin: float = 0.3, near: float = 0.01) -> None:
        self.memory = memory
        self.begin = begin
        self.near = near
        self._steps = self._changes = np.empty((0, 0))
        self._count = self._next = 0
        self.restart()

    def restart(self) -> None:
        """Begin a new iteration."""
        self._last: tuple[Array, Array] | None = None
        self._size = np.inf

    def step(self, x: Array, residual: Array, unit: Array) -> Array:
        """Return the step to take from `x`, where the plain iteration would take `residual`.

        `unit` weighs the components of a residual against each other.
        """
        scaled = residual * unit
        size = math.sqrt(float(scaled @ scaled) / scaled.size)
        if self._steps.shape[1] != x.size:
            self._steps, self._changes = np.empty((2, self.memory, x.size))
            self._count = 0
        fresh = self._last is None and size > self.near
        if size > self.begin or size > 2.0 * self._size or fresh:
            self._count = self._next = 0
        elif self._last is not None:
            self._steps[self._next] = x - self._last[0]
            self._changes[self._next] = residual - self._last[1]
            self._next = (self._next + 1) % self.memory
            self._count = min(self._count + 1, self.memory)
        self._last, self._size = (x, residual), size
        if not self._count:
            return residual
        return secant_step(self._steps, self._changes, self._count, residual, unit, scaled)
