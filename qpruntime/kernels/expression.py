"""Kernels of scikit-learn as expressions: sums and products of leaves whose parts are known.

Everybody who has to know what a kernel is made of asks `read`, and walks what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sklearn.gaussian_process.kernels import Exponentiation, Kernel, Product, Sum

from qpruntime.kernels.base import FOREIGN, KernelParts
from qpruntime.kernels.mixed_inputs import On
from qpruntime.kernels.registry import parts_of

__all__ = [
    "Added",
    "Leaf",
    "Multiplied",
    "Node",
    "PowerNode",
    "Seen",
    "level_and_shape",
    "raised",
    "read",
]


@dataclass(eq=False)
class Leaf:
    """A kernel that is made of no others, or of others in a way that is not read."""

    kernel: Kernel
    parts: KernelParts

    @cached_property
    def free(self) -> list[str]:
        """Names of its free parameters, in scikit-learn's order, where its parts name them."""
        kernel = self.kernel
        return [
            name
            for name in self.parts.parameters
            if not getattr(kernel, f"hyperparameter_{name}").fixed
        ]

    @cached_property
    def is_free(self) -> bool:
        """True if it has a free parameter; ``n_dims`` takes ten times as long."""
        return bool(self.free if self.parts.parameters else self.kernel.n_dims)

    @property
    def value(self) -> float:
        """Value of a constant, or variance of white noise."""
        return float(getattr(self.kernel, self.parts.constant or self.parts.noise))


@dataclass(eq=False)
class Seen(Leaf):
    """A kernel of some columns: for those who ask what is in it; for others nothing is known."""

    kernel: On
    inner: Node

    @cached_property
    def is_free(self) -> bool:
        """True if it has a free parameter."""
        return self.inner.is_free


@dataclass(eq=False)
class Added:
    """A sum of two; its parameters are those of the first, then those of the second."""

    kernel: Kernel
    first: Node
    second: Node

    @cached_property
    def is_free(self) -> bool:
        """True if it has a free parameter."""
        return self.first.is_free or self.second.is_free


@dataclass(eq=False)
class Multiplied:
    """A product of two."""

    kernel: Kernel
    first: Node
    second: Node

    @cached_property
    def is_free(self) -> bool:
        """True if it has a free parameter."""
        return self.first.is_free or self.second.is_free


Node = Leaf | Added | Multiplied


class PowerNode(NamedTuple):
    """A power of one, for those who ask; for others it is a leaf of which nothing is known."""

    base: Node
    exponent: float


def read(kernel: Kernel) -> Node:
    """Return the tree of a scikit-learn kernel."""
    kind = type(kernel)
    if kind is Sum:
        return Added(kernel, read(kernel.k1), read(kernel.k2))
    if kind is Product:
        return Multiplied(kernel, read(kernel.k1), read(kernel.k2))
    if kind is On:
        return Seen(kernel, FOREIGN, read(kernel.kernel))
    return Leaf(kernel, parts_of(kernel))


def raised(leaf: Leaf) -> PowerNode | None:
    """Return a leaf that is a power of a kernel as one; None for others."""
    if type(leaf.kernel) is Exponentiation:
        return PowerNode(read(leaf.kernel.kernel), float(leaf.kernel.exponent))
    return None


def level_and_shape(node: Node) -> tuple[float | None, Node]:
    """Split a constant off the front of a product; None if there is none."""
    if isinstance(node, Multiplied) and isinstance(node.first, Leaf) and node.first.parts.constant:
        return node.first.value, node.second
    return None, node
