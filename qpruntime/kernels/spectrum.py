"""Kernels as sums of stationary terms whose spectra are known: what functions are drawn from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.tree import Added, Leaf, Multiplied, Node, read

__all__ = ["Stationary", "stationary_terms"]


class Stationary(NamedTuple):
    """A variance times a radial kernel; times 1 if there is none."""

    variance: float
    leaf: Leaf | None

    @property
    def length(self) -> Array:
        """Length-scales."""
        return np.atleast_1d(self.kernel.length_scale)

    @property
    def kernel(self) -> Any:
        """The radial kernel."""
        assert self.leaf is not None
        return self.leaf.kernel

    def frequencies(self, count: int, d: int, rng: np.random.Generator) -> Array:
        """Draws (count, d) from the spectrum."""
        assert self.leaf is not None
        assert self.leaf.parts.frequencies is not None
        drawn: Array = rng.standard_normal((count, d)) / self.length
        drawn *= self.leaf.parts.frequencies(self.kernel, count, rng)[:, None]
        return drawn

    def slope(self, x: Array, X: Array) -> tuple[Array, Array]:
        """k(x, X), shape (n,), and its gradient in x, shape (n, d)."""
        if self.leaf is None:
            return np.full(len(X), self.variance), np.zeros(X.shape)
        assert self.leaf.parts.shape is not None
        u = (x - X) / self.length
        value, g = self.leaf.parts.shape(self.kernel, np.einsum("nd,nd->n", u, u), True)
        return self.variance * value, -self.variance * g[:, None] * u / self.length


def stationary_terms(kernel: Any) -> list[Stationary]:
    """Return the terms of a kernel; white noise is none.

    Raises
    ------
    InputError
        If the spectrum of a part is not known.
    """
    return _terms(read(kernel), 1.0)


def _terms(node: Node, variance: float) -> list[Stationary]:
    if isinstance(node, Added):
        return _terms(node.one, variance) + _terms(node.two, variance)
    if isinstance(node, Multiplied):
        for one, other in ((node.one, node.two), (node.two, node.one)):
            if isinstance(one, Leaf) and one.parts.constant:
                return _terms(other, variance * one.value)
    elif node.parts.constant:
        return [Stationary(variance * node.value, None)]
    elif node.parts.noise:
        return []
    elif node.parts.frequencies is not None and node.parts.shape is not None:
        return [Stationary(variance, node)]
    raise InputError(
        f"functions cannot be drawn with the kernel {node.kernel}: its spectrum is not known; use "
        "RBF, Matern, RationalQuadratic and WhiteKernel, their sums, and products with constants"
    )
