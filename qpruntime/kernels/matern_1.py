"""Matérn 1/2, exp(-r), and its state f."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.exponential import student
from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.kinds import MATERN_1
from qpruntime.kernels.markov import Factor, States, one_length

__all__ = ["PARTS"]

STATES = States([[-1.0]], [[1.0]], MATERN_1, forgets=1.0)


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Return exp(-r) and exp(-r)/r, the second 0 at r = 0."""
    r = np.sqrt(squares, out=squares)
    e = np.exp(-r)
    g = np.divide(e, r, out=np.zeros_like(r), where=r > 0.0) if slope else e
    return e, g


def state_space(kernel: Any) -> Factor:
    """The Ornstein-Uhlenbeck process."""
    return Factor(STATES, 1.0 / one_length(kernel), "length_scale")


def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
    """Those of a Cauchy distribution."""
    return student(1.0, count, rng)


PARTS = KernelParts(
    shape=shape, state_space=state_space, frequencies=frequencies, compiled=MATERN_1
)
