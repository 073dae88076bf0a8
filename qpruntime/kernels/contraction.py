"""The gradient of a kernel matrix, contracted without being formed.

scikit-learn returns dK/dtheta as an N x N x p array: 80 MB for 1000 points and 10 parameters.
All that inference needs are the p numbers sum_ij M_ij dK_ij/dtheta. Sums, products, constants,
white noise and radial kernels are contracted directly; any other kernel goes through scikit-learn's
own gradient.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.categorical import contracted
from qpruntime.kernels.kinds import RBF
from qpruntime.kernels.squares import squared_distances
from qpruntime.kernels.tree import Added, Leaf, Multiplied, Node, Seen, level_and_shape, read

__all__ = ["by_feature", "contract_gradient", "contract_read", "evaluate"]


def evaluate(node: Node, X: Array) -> Array:
    """Return ``kernel(X)``; a constant factor is a number, where scikit-learn fills a matrix."""
    level, shape = level_and_shape(node)
    K = np.asarray(shape.kernel(X))
    if level is not None:
        K *= level
    return K


def contract_gradient(kernel: Any, X: Array, M: Array, K: Array | None = None) -> Array:
    """Return sum_ij M_ij dK_ij/dtheta for every free parameter theta of `kernel`, shape (p,).

    Parameters
    ----------
    kernel : scikit-learn kernel
        theta are its log-transformed parameters, as in ``kernel.theta``.
    X : ndarray, shape (N, d)
    M : ndarray, shape (N, N)
        Symmetric.
    K : ndarray, shape (N, N), optional
        ``kernel(X)``, if it is at hand.
    """
    return contract_read(read(kernel), X, M, K)


def contract_read(node: Node, X: Array, M: Array, K: Array | None = None) -> Array:
    """`contract_gradient` of a kernel that has been read."""
    return np.array(_contract(node, X, M, K), dtype=float)


def _contract(node: Node, X: Array, M: Array, K: Array | None) -> list[float]:
    if not node.is_free:
        return []
    if isinstance(node, Added):
        return _contract(node.one, X, M, None) + _contract(node.two, X, M, None)
    if isinstance(node, Multiplied):
        return _product(node, X, M, K)
    if isinstance(node, Seen):
        return _contract(node.inner, node.of(X), M, K)
    if node.parts.levels:
        return [*contracted(node.kernel, X, X, M * (node.kernel(X) if K is None else K))]
    if node.parts.constant:
        return [node.value * float(M.sum())]
    if node.parts.noise:
        return [node.value * float(M.trace())]
    if node.parts.shape is not None:
        return _radial(node, X, M, K)
    gradient = node.kernel(X, eval_gradient=True)[1]
    return list(np.tensordot(M, gradient, axes=([0, 1], [0, 1])))


def _product(node: Multiplied, X: Array, M: Array, K: Array | None) -> list[float]:
    level, right = level_and_shape(node)
    if level is not None:
        # K = c K2, and K2's gradient scales with c: contract it with c M.
        K = node.kernel(X) if K is None else K
        free = node.one.is_free
        if _is_its_slope(right):
            own, W, rows = _without_diagonal(M * K)
            first = [own + float(rows.sum())] if free else []
            return first + (_spread(right, X, W, rows) if right.is_free else [])
        first = [float(np.vdot(M, K))] if free else []
        return first + _contract(right, X, level * M, K / level)
    first = _contract(node.one, X, M * node.two.kernel(X), None) if node.one.is_free else []
    return first + (
        _contract(node.two, X, M * node.one.kernel(X), None) if node.two.is_free else []
    )


def _is_its_slope(node: Node) -> TypeGuard[Leaf]:
    """Whether it is a squared exponential, whose value is -f'(r)/r."""
    return isinstance(node, Leaf) and node.parts.compiled == RBF


def _radial(leaf: Leaf, X: Array, M: Array, K: Array | None) -> list[float]:
    kernel, parts = leaf.kernel, leaf.parts
    if _is_its_slope(leaf):
        W = M * (kernel(X) if K is None else K)
        return _spread(leaf, X, *_without_diagonal(W)[1:])
    assert parts.shape is not None
    x = _scaled(leaf, X)
    squares = squared_distances(x, x)
    distance = np.sqrt(squares) if parts.slopes else squares
    W = parts.shape(kernel, squares, True)[1]
    # Points have no distance from themselves.
    W.flat[:: len(W) + 1] = 0.0
    W *= M
    found: list[float] = []
    for name in leaf.free:
        if name in parts.slopes:
            found.append(float(np.vdot(M, parts.slopes[name](kernel, distance))))
        else:
            found += _spread(leaf, X, W, W.sum(axis=1))
    return found


def _without_diagonal(W: Array) -> tuple[float, Array, Array]:
    """Trace of W; W with a diagonal of zeros, in place; the sums of its rows.

    Points have no distance from themselves, but x_d^2 twice, to cancel.
    """
    trace = float(W.trace())
    W.flat[:: len(W) + 1] = 0.0
    return trace, W, W.sum(axis=1)


def _scaled(leaf: Leaf, X: Array) -> Array:
    """Points about their middle, in length-scales."""
    centred: Array = X - X.mean(axis=0)
    return centred / leaf.kernel.length_scale if leaf.parts.scaled else centred


def _spread(leaf: Leaf, X: Array, W: Array, rows: Array) -> list[float]:
    """dK/dlog l_d = g (x_d - x'_d)^2/l_d^2, summed with W = M g by one matrix product."""
    spread = by_feature(_scaled(leaf, X), W, rows)
    if np.size(leaf.kernel.length_scale) > 1:
        return [2.0 * float(s) for s in spread]
    return [2.0 * float(spread.sum())]


def by_feature(scaled: Array, W: Array, rows: Array) -> Array:
    """Half of sum_ij W_ij (x_d - x'_d)^2 for every feature d; `rows` are the sums of W's rows."""
    spread: Array = rows @ scaled**2 - np.einsum("ij,ij->j", scaled, W @ scaled)
    return spread
