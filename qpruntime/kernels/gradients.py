"""Gradients of a covariance, contracted with the derivatives of an objective."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.kernels.base import RBF
from qpruntime.kernels.mixed_inputs import contracted
from qpruntime.kernels.radial_kernels import contract_squares, fill_radial, squared_distances
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, Seen, level_and_shape, read

__all__ = [
    "Covariance",
    "Isotropic",
    "Radial",
    "RadialByFeature",
    "by_feature",
    "contract_gradient",
    "covariance_function",
    "evaluate",
    "quickest",
]

# --- Covariances as functions of theta

# Squared distances are kept for so many points at most: beyond, factorisations take all the time.
_KEPT = 1000


class Covariance:
    """``kernel(X)`` and its contracted gradient as functions of theta; it is not changed.

    Attributes
    ----------
    arrays : int
        How many N x N arrays it holds at least, K among them.
    """

    arrays = 1

    def __init__(self, kernel: Kernel, X: Array) -> None:
        self._kernel, self._X = clone(kernel), X
        self._node = read(self._kernel)  # whose leaves change with theta
        self._K: Array | None = None

    def at(self, theta: Array) -> Array:
        """Return K (N, N) at these log parameters."""
        self._kernel.theta = theta
        self._K = evaluate(self._node, self._X)
        return self._K

    def contract(self, M: Array) -> Array:
        """Return sum_ij M_ij dK_ij/dtheta (p,) where K was asked for last; M is symmetric."""
        return contract_gradient(self._node, self._X, M, self._K)


class Isotropic(Covariance):
    """A squared exponential of one length-scale, or a constant times it: from squared distances.

    scikit-learn forms the distances, a copy of the kernel and its list of parameters every time.
    """

    arrays = 2

    def __init__(self, kernel: Kernel, X: Array) -> None:
        _, level, shape = _split(read(kernel))
        self._squares = cdist(X, X, "sqeuclidean")
        self._free = np.array([level is not None and level.is_free, shape.is_free])
        # A list of one length-scale is one.
        length = float(np.squeeze(shape.kernel.length_scale))
        self._logs = np.log([1.0 if level is None else level.value, length])

    def at(self, theta: Array) -> Array:
        """Return the covariance matrix for these hyper-parameters."""
        self._logs[self._free] = theta
        level, length = np.exp(self._logs)
        self._rate = 0.5 / length / length
        with np.errstate(over="ignore", invalid="ignore"):
            K: Array = np.exp(self._squares * -self._rate)
        K *= level
        K.flat[:: len(K) + 1] = level
        self._K = K
        return K

    def contract(self, M: Array) -> Array:
        """Return sum_ij M_ij dK_ij/dtheta, as `Covariance` does."""
        total, spread = contract_squares(M, self._K, self._squares, 2.0 * self._rate)
        return np.asarray(np.array([total, spread])[self._free])


class Radial(Covariance):
    """A constant plus a level times a squared exponential or Matérn kernel of one length-scale.

    Distances are kept; K and its slope in the log length-scale are filled together, one triangle
    computed: seven times faster than by arrays.
    """

    arrays = 3

    def __init__(self, kernel: Kernel, X: Array) -> None:
        offset, level, shape = _split(read(kernel))
        self._X, self._kind = X, shape.parts.compiled
        lengths = np.atleast_1d(np.asarray(shape.kernel.length_scale, dtype=float))
        free = [part is not None and part.is_free for part in (offset, level, shape)]
        self._free = np.repeat(free, [1, 1, lengths.size])
        values = [0.0 if offset is None else offset.value]
        values += [1.0 if level is None else level.value, *lengths]
        with np.errstate(divide="ignore"):
            self._logs = np.log(values)
        self._distances = self._measure(lengths)
        self._full, self._slope = np.empty((2, len(X), len(X)))

    def at(self, theta: Array) -> Array:
        """Return the covariance matrix, whose memory the next call overwrites."""
        self._logs[self._free] = theta
        (self._offset, level), lengths = np.exp(self._logs[:2]), np.exp(self._logs[2:])
        length = self._unit(lengths)
        K = self._full
        fill_radial(self._distances, length, self._offset, level, self._kind, K, self._slope)
        return K

    def contract(self, M: Array) -> Array:
        """Return sum_ij M_ij dK_ij/dtheta, as `Covariance` does."""
        flat = np.ascontiguousarray(M).ravel()
        offset = self._offset * float(flat.sum())
        level = float(flat @ self._full.ravel()) - offset
        return np.asarray(np.array([offset, level, *self._spread(M)])[self._free])

    def _measure(self, lengths: Array) -> Array:
        return cdist(self._X, self._X)

    def _unit(self, lengths: Array) -> float:
        """Return the length-scale of the distances that are kept."""
        return float(lengths[0])

    def _spread(self, M: Array) -> Array:
        """Return the contraction with the slopes in the log length-scales."""
        return np.array([np.vdot(M, self._slope)])


class RadialByFeature(Radial):
    """`Radial` with a length-scale for each feature: distances are measured anew every time."""

    def _measure(self, lengths: Array) -> Array:
        self._scaled = (self._X - self._X.mean(axis=0)) / lengths
        return cdist(self._scaled, self._scaled)

    def _unit(self, lengths: Array) -> float:
        self._distances = self._measure(lengths)
        return 1.0

    def _spread(self, M: Array) -> Array:
        """Each feature's share of the slope is that of its square in the squared distance."""
        squares = self._distances**2
        W = M * np.divide(self._slope, squares, out=np.zeros_like(squares), where=squares > 0.0)
        return 2.0 * by_feature(self._scaled, W, W.sum(axis=1))


def covariance_function(kernel: Kernel, X: Array) -> Covariance:
    """Return the covariance of points X (N, d), by the quickest way to it."""
    return quickest(kernel, len(X))(kernel, X)


def quickest(kernel: Kernel, n: int) -> type[Covariance]:
    """Return the class for n points that is quickest."""
    offset, _, shape = _split(read(kernel))
    if not isinstance(shape, Leaf) or shape.parts.compiled < 0:
        return Covariance
    several = np.size(shape.kernel.length_scale) > 1
    if shape.parts.compiled == RBF and offset is None:
        return Isotropic if not several and n <= _KEPT else Covariance
    return RadialByFeature if several else Radial


def _split(node: Node) -> tuple[Leaf | None, Leaf | None, Any]:
    """Return offset, level and shape of offset + level * shape; None what is absent."""
    offset, level = None, None
    if isinstance(node, Added) and _is_constant(node.first):
        offset, node = node.first, node.second
    if isinstance(node, Multiplied) and _is_constant(node.first):
        level, node = node.first, node.second
    return offset, level, node


def _is_constant(node: Node) -> TypeGuard[Leaf]:
    return isinstance(node, Leaf) and bool(node.parts.constant)


# --- Contracted gradients
#
# scikit-learn returns dK/dtheta as an N x N x p array: 80 MB for 1000 points and 10 parameters.
# All that inference needs are the p numbers sum_ij M_ij dK_ij/dtheta. Sums, products, constants,
# white noise and radial kernels are contracted directly; any other kernel goes through
# scikit-learn's own gradient.


def evaluate(node: Node, X: Array) -> Array:
    """Return ``kernel(X)``; a constant factor is a number, where scikit-learn fills a matrix."""
    level, shape = level_and_shape(node)
    K = np.asarray(shape.kernel(X))
    if level is not None:
        K *= level
    return K


def contract_gradient(node: Node, X: Array, M: Array, K: Array | None = None) -> Array:
    """Return sum_ij M_ij dK_ij/dtheta for every free parameter theta of a kernel, shape (p,).

    Parameters
    ----------
    node : Node
        The kernel, `read`; theta are its log-transformed parameters, as in ``kernel.theta``.
    X : ndarray, shape (N, d)
    M : ndarray, shape (N, N)
        Symmetric.
    K : ndarray, shape (N, N), optional
        ``kernel(X)``, if it is at hand.
    """
    return np.array(_contract(node, X, M, K), dtype=float)


def _contract(node: Node, X: Array, M: Array, K: Array | None) -> list[float]:
    if not node.is_free:
        return []
    if isinstance(node, Added):
        return _contract(node.first, X, M, None) + _contract(node.second, X, M, None)
    if isinstance(node, Multiplied):
        return _product(node, X, M, K)
    if isinstance(node, Seen):
        return _contract(node.inner, node.kernel.of(X), M, K)
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
        free = node.first.is_free
        if _is_its_slope(right):
            total, W, rows = _without_diagonal(M * K)
            first = [total + float(rows.sum())] if free else []
            return first + (_spread(right, X, W, rows) if right.is_free else [])
        first = [float(np.vdot(M, K))] if free else []
        return first + _contract(right, X, level * M, K / level)
    first = _contract(node.first, X, M * node.second.kernel(X), None) if node.first.is_free else []
    return first + (
        _contract(node.second, X, M * node.first.kernel(X), None) if node.second.is_free else []
    )


def _is_its_slope(node: Node) -> TypeGuard[Leaf]:
    """Decide whether it is a squared exponential, whose value is -f'(r)/r."""
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
    slopes: list[float] = []
    for name in leaf.free:
        if name in parts.slopes:
            slopes.append(float(np.vdot(M, parts.slopes[name](kernel, distance))))
        else:
            slopes += _spread(leaf, X, W, W.sum(axis=1))
    return slopes


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
    return np.asarray(rows @ scaled**2 - np.einsum("ij,ij->j", scaled, W @ scaled))
