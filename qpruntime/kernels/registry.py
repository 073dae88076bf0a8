"""Kernels whose parts are known, and expressions of them: sums and products of leaves.

Everybody who has to know what a kernel is made of asks `read`, and walks what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Kernel,
    Matern,
    Product,
    RationalQuadratic,
    Sum,
    WhiteKernel,
)

from qpruntime.errors import InputError
from qpruntime.kernels import mixed_inputs, simple, stationary
from qpruntime.kernels.base import FOREIGN, KernelParts
from qpruntime.kernels.mixed_inputs import On
from qpruntime.kernels.stationary import matern

__all__ = [
    "Added",
    "Leaf",
    "Multiplied",
    "Node",
    "PowerNode",
    "Seen",
    "level_and_shape",
    "parts_of",
    "raised",
    "read",
    "register",
]

_KNOWN: dict[type, KernelParts | Callable[[Kernel], KernelParts]] = {
    ConstantKernel: simple.CONSTANT_PARTS,
    WhiteKernel: simple.WHITE_PARTS,
    RBF: stationary.RBF_PARTS,
    Matern: matern,
    RationalQuadratic: stationary.RATIONAL_QUADRATIC_PARTS,
    ExpSineSquared: simple.PERIODIC_PARTS,
    DotProduct: simple.LINE_PARTS,
    mixed_inputs.Categories: mixed_inputs.CATEGORICAL_PARTS,
}
#: A class carries its parts itself, also to processes that it is sent to by value.
_ATTRIBUTE = "_qpruntime_parts"
_PARAMETER = "hyperparameter_"


def parts_of(kernel: Kernel) -> KernelParts:
    """Return what is known of a kernel by its class, which a subclass does not inherit."""
    parts: KernelParts | Callable[[Kernel], KernelParts] = _KNOWN.get(type(kernel)) or vars(
        type(kernel)
    ).get(_ATTRIBUTE, FOREIGN)
    return parts if isinstance(parts, KernelParts) else parts(kernel)


def register(kernel_class: type, parts: KernelParts) -> None:
    """Make a class of kernels known: sparse fits learn its inducing inputs, series take it.

    Register it where it is defined, so that processes that import the class know it too.
    Registering again replaces what was known.

    Parameters
    ----------
    kernel_class : type
        A subclass of ``sklearn.gaussian_process.kernels.Kernel``; its own subclasses are others.
    parts : KernelParts

    Raises
    ------
    InputError
        If the class is none of a kernel, is built in, or has parameters of which `parts` has no
        slope.

    See Also
    --------
    qpruntime.kernels.KernelParts

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.kernels import KernelParts, register
    >>> from qpruntime import GPClassifier
    >>> class Smooth(RBF):
    ...     pass
    ...
    >>> def covariance(kernel, r):
    ...     return np.exp(-0.5 * r**2)
    ...
    >>> register(Smooth, KernelParts(radial=covariance, slope=covariance))
    >>> X = np.linspace(-2.0, 2.0, 50)[:, None]
    >>> model = GPClassifier(1.0 * Smooth(1.0), inducing=5, random_state=0).fit(X, X[:, 0] > 0.0)
    >>> model.predict([[-1.0], [1.0]]).tolist()
    [False, True]
    """
    if not (isinstance(kernel_class, type) and issubclass(kernel_class, Kernel)):
        raise InputError(
            "kernel_class must be a class derived from sklearn.gaussian_process.kernels.Kernel, "
            f"got {kernel_class!r}"
        )
    name = kernel_class.__name__
    if kernel_class in _KNOWN or kernel_class in (Sum, Product, Exponentiation):
        raise InputError(f"{name} is built in: register a class of your own, derived from Kernel")
    if not isinstance(parts, KernelParts):
        raise InputError(f"parts must be a KernelParts, got {parts!r}")
    if parts.shape is not None:
        free = {p.removeprefix(_PARAMETER) for p in dir(kernel_class) if p.startswith(_PARAMETER)}
        known = set(parts.parameters)
        if unknown := sorted(free - known):
            raise InputError(
                f"{name} has the parameter {unknown[0]}, of which parts have no slope: add "
                f'slopes={{"{unknown[0]}": function}}'
            )
        if absent := sorted(known - free):
            raise InputError(
                f"{name} has no parameter {absent[0]}: add hyperparameter_{absent[0]} to the "
                "class" + (", or scaled=False to its parts" if absent[0] == "length_scale" else "")
            )
    setattr(kernel_class, _ATTRIBUTE, parts)


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
