"""Covariances of new points with known ones, as operations of a graph."""

from __future__ import annotations

import math

import numpy as np
from sklearn.gaussian_process.kernels import RBF, DotProduct, Matern, RationalQuadratic

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.tree import Leaf, Multiplied, Node
from qpruntime.onnx.graph import Graph

__all__ = ["covariance", "variance"]

#: Polynomials of Matern kernels in r sqrt(2 nu), from the highest power on.
_MATERN = {0.5: [1.0], 1.5: [1.0, 1.0], 2.5: [1.0 / 3.0, 1.0, 1.0]}


def covariance(graph: Graph, node: Node, X: str, Z: Array) -> str:
    """Return k(X, Z), shape (T, M); white noise of new points is no other's.

    Raises
    ------
    InputError
        If a kernel has no formula here.
    """
    if not isinstance(node, Leaf):
        operation = "Mul" if isinstance(node, Multiplied) else "Add"
        one, two = (covariance(graph, part, X, Z) for part in (node.one, node.two))
        return graph.add(operation, one, two)
    kernel, parts = node.kernel, node.parts
    if parts.constant:
        return graph.constant([[node.value]])
    if parts.noise:
        return graph.constant([[0.0]])
    if type(kernel) is DotProduct:
        return graph.add("Add", graph.add("MatMul", X, Z.T), kernel.sigma_0**2)
    if type(kernel) in (RBF, Matern, RationalQuadratic):
        squares = _squares(graph, X, Z, np.broadcast_to(kernel.length_scale, Z.shape[1]))
        return _radial(graph, kernel, squares)
    raise _unknown(kernel)


def _squares(graph: Graph, X: str, Z: Array, scale: Array) -> str:
    """Squared distances in length-scales: by differences, which do not cancel as products do."""
    found = ""
    for k, length in enumerate(scale):
        gap = graph.add("Sub", graph.columns(X, [k]), Z[:, k][None, :])
        gap = graph.add("Div", gap, float(length))
        square = graph.add("Mul", gap, gap)
        found = graph.add("Add", found, square) if found else square
    return found


def _radial(graph: Graph, kernel: RBF | Matern | RationalQuadratic, squares: str) -> str:
    nu = getattr(kernel, "nu", math.inf)
    if type(kernel) is RationalQuadratic:
        base = graph.add("Add", graph.add("Div", squares, 2.0 * kernel.alpha), 1.0)
        return graph.add("Pow", base, -float(kernel.alpha))
    if nu == math.inf:
        return graph.add("Exp", graph.add("Mul", squares, -0.5))
    if nu not in _MATERN:
        raise _unknown(kernel)
    distance = graph.add("Sqrt", graph.add("Mul", squares, 2.0 * nu))
    decay = graph.add("Exp", graph.add("Neg", distance))
    if nu == 0.5:
        return decay
    return graph.add("Mul", graph.polynomial(distance, _MATERN[nu]), decay)


def variance(graph: Graph, node: Node, X: str) -> str:
    """Return k(x, x), shape (T, 1) or (1, 1)."""
    if not isinstance(node, Leaf):
        operation = "Mul" if isinstance(node, Multiplied) else "Add"
        one, two = (variance(graph, part, X) for part in (node.one, node.two))
        return graph.add(operation, one, two)
    if node.parts.constant or node.parts.noise:
        return graph.constant([[node.value]])
    if type(node.kernel) is DotProduct:
        return graph.add("Add", graph.squares(X), node.kernel.sigma_0**2)
    return graph.constant([[1.0]])


def _unknown(kernel: object) -> InputError:
    return InputError(
        f"{kernel} has no formula in an ONNX graph: sums and products of ConstantKernel, RBF, "
        "Matern with nu 1/2, 3/2 or 5/2, RationalQuadratic, DotProduct and WhiteKernel have"
    )
