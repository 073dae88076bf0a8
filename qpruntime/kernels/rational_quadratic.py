"""The rational quadratic, (1 + r^2/(2 alpha))^-alpha: squared exponentials of many lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.kernel_parts import KernelParts

__all__ = ["PARTS"]


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """The slope is the power above."""
    alpha = float(kernel.alpha)
    base = 1.0 + squares / (2.0 * alpha)
    f = base**-alpha
    return f, f / base if slope else f


def by_alpha(kernel: Any, r: Array) -> Array:
    """Derivative by log alpha."""
    alpha = float(kernel.alpha)
    share = r * r / (2.0 * alpha)
    base = 1.0 + share
    found: Array = alpha * base**-alpha * (share / base - np.log1p(share))
    return found


def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
    """Precisions of the squared exponentials have a gamma distribution of mean 1."""
    alpha = float(kernel.alpha)
    return np.sqrt(rng.gamma(alpha, 1.0 / alpha, count))


PARTS = KernelParts(shape=shape, slopes={"alpha": by_alpha}, frequencies=frequencies)
