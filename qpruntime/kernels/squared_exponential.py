"""The squared exponential, exp(-r^2/2), scikit-learn's RBF, and states that stand for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.kinds import RBF
from qpruntime.kernels.parts import KernelParts

__all__ = ["PARTS", "SHAPE_ALONE"]


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Value and slope are the same, and one array."""
    squares *= -0.5
    f = np.exp(squares, out=squares)
    return f, f


def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
    """Normal as they are."""
    return np.ones(count)


PARTS = KernelParts(shape=shape, frequencies=frequencies, compiled=RBF)
#: Of a Matérn kernel of infinite nu, which is one.
SHAPE_ALONE = KernelParts(shape=shape, frequencies=frequencies)
