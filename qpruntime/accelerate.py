"""Anderson acceleration of a fixed-point iteration x <- x + r(x) (D. G. Anderson, 1965).

The last few steps and residuals give a secant model of r; the next x is where the model's residual
is smallest. Parallel EP alternates around its fixed point when the evidence is steep (separable
data, large prior variance): plain iterations shrink the error by 0.6 each, accelerated ones reach
1e-6 in a third of the number.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Anderson"]

Array = NDArray[np.float64]


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
        steps, changes = self._steps[: self._count], self._changes[: self._count]
        # Unit rows: differences of all ages count alike, and the ridge keeps nearly parallel
        # ones from cancelling into noise.
        weighted = changes * unit
        norm = np.sqrt(np.einsum("ij,ij->i", weighted, weighted))
        norm[norm == 0.0] = 1.0
        weighted /= norm[:, None]
        gram = weighted @ weighted.T
        gram.flat[:: len(gram) + 1] += 1e-10
        gamma = np.linalg.solve(gram, weighted @ scaled) / norm
        return residual - gamma @ steps - gamma @ changes
