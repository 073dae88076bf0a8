"""Covariances of a function and its slopes, and their own slopes contracted.

Let r be the distance in length-scales, D_d = (x_d - z_d)/l_d^2, and f, g, h, q those of
`KernelParts.bends`:

    Cov(F(x), F(z)) = f,                   Cov(F(x), dF/dz_e) = g D_e,
    Cov(dF/dx_d, F(z)) = -g D_d,           Cov(dF/dx_d, dF/dz_e) = [d = e] g/l_d^2 - h D_d D_e;

by log l_k, w_k = (x_k - z_k)^2/l_k^2, the derivatives of f, g and h are g w_k, h w_k and q w_k.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, level_and_shape, read

__all__ = ["DerivativeRows", "contract", "covariance", "diagonal", "require_slopes"]


class DerivativeRows(NamedTuple):
    """Values of a function at points, and then slopes of it at others.

    Attributes
    ----------
    points : ndarray, shape (n + m, d)
    feature : ndarray of int, shape (n + m,)
        The feature that a slope is along; -1 for a value.
    """

    points: Array
    feature: NDArray[np.intp]

    @classmethod
    def values(cls, points: Array) -> DerivativeRows:
        """Return rows of values alone."""
        return cls(points, np.full(len(points), -1))

    @classmethod
    def both(cls, points: Array, where: Array, feature: NDArray[np.intp]) -> DerivativeRows:
        """Return rows of values at points (n, d), then of slopes at `where` (m, d)."""
        none = np.full(len(points), -1)
        return cls(np.vstack([points, where]), np.concatenate([none, feature]))


def require_slopes(kernel: Kernel) -> None:
    """Raise `InputError` for a kernel whose functions have no slopes that are known here."""
    _check(read(kernel), kernel)


def covariance(kernel: Kernel, one: DerivativeRows, other: DerivativeRows | None = None) -> Array:
    """Return covariances (N, M) of two sets; white noise is on values of one set alone."""
    return _values(read(kernel), one, other)


def diagonal(kernel: Kernel, asked: DerivativeRows) -> Array:
    """Return prior variances, shape (N,)."""
    return _variances(read(kernel), asked)


def contract(kernel: Kernel, asked: DerivativeRows, M: Array) -> Array:
    """Return sum_ij M_ij dK_ij/dtheta (p,) for a symmetric M, of log parameters theta."""
    return np.array(_contracted(read(kernel), asked, M), dtype=float)


def _check(node: Node, kernel: Kernel) -> None:
    if isinstance(node, Added):
        _check(node.first, kernel)
        _check(node.second, kernel)
        return
    if isinstance(node, Multiplied):
        level, shape = level_and_shape(node)
        if level is not None:
            _check(shape, kernel)
            return
    elif node.parts.bends is not None or node.parts.constant or node.parts.noise:
        return
    raise InputError(
        f"slopes of functions of the kernel {shown(kernel)} are not known: give a sum of constants "
        "times RBF or Matern(nu=2.5), or leave kernel=None"
    )


def _values(node: Node, one: DerivativeRows, other: DerivativeRows | None) -> Array:
    if isinstance(node, Added):
        return _values(node.first, one, other) + _values(node.second, one, other)
    if isinstance(node, Multiplied):
        level, shape = level_and_shape(node)
        return (level or 0.0) * _values(shape, one, other)
    far = one if other is None else other
    valued = np.outer(one.feature < 0, far.feature < 0)
    if node.parts.constant:
        return node.value * valued.astype(float)
    if node.parts.noise:
        if other is not None:
            return np.zeros(valued.shape)
        return np.diag(np.where(one.feature < 0, node.value, 0.0))
    return _Pairs(node, one, far).covariance()


def _variances(node: Node, asked: DerivativeRows) -> Array:
    if isinstance(node, Added):
        return _variances(node.first, asked) + _variances(node.second, asked)
    if isinstance(node, Multiplied):
        level, shape = level_and_shape(node)
        return (level or 0.0) * _variances(shape, asked)
    valued = asked.feature < 0
    if node.parts.constant or node.parts.noise:
        return np.where(valued, node.value, 0.0)
    length = np.broadcast_to(node.kernel.length_scale, asked.points.shape[1:])
    # f(0) = 1, and g(0)/l^2 along a feature.
    assert node.parts.bends is not None
    g = float(node.parts.bends(node.kernel, np.zeros(1))[1][0])
    return np.where(valued, 1.0, g / length[asked.feature] ** 2)


def _contracted(node: Node, asked: DerivativeRows, M: Array) -> list[float]:
    if isinstance(node, Added):
        return _contracted(node.first, asked, M) + _contracted(node.second, asked, M)
    if isinstance(node, Multiplied):
        level, shape = level_and_shape(node)
        assert level is not None
        level_slope = (
            [level * float(np.vdot(M, _values(shape, asked, None)))] if node.first.is_free else []
        )
        return level_slope + [level * slope for slope in _contracted(shape, asked, M)]
    if node.parts.constant or node.parts.noise:
        return [float(np.vdot(M, _values(node, asked, None)))] * len(node.free)
    if not node.is_free:
        return []
    return _Pairs(node, asked, asked).contracted(M)


class _Pairs:
    """All pairs of two sets, under a radial kernel: rows of the first, columns of the second."""

    def __init__(self, leaf: Leaf, one: DerivativeRows, other: DerivativeRows) -> None:
        d = one.points.shape[1]
        self._isotropic = np.size(leaf.kernel.length_scale) == 1
        self._length = np.array(np.broadcast_to(leaf.kernel.length_scale, (d,)), dtype=float)
        self._left, self._right = one.points / self._length, other.points / self._length
        self._rows, self._columns = one.feature, other.feature
        assert leaf.parts.bends is not None
        distance = cdist(self._left, self._right)
        self.f, self.g, self.h, self.q = leaf.parts.bends(leaf.kernel, distance)
        # D of the row's feature and of the column's; 0 for values.
        self._by_row = np.zeros(distance.shape)
        self._by_column = np.zeros(distance.shape)
        self._alike = np.zeros(distance.shape)
        for k in range(d):
            along, across = self._rows == k, self._columns == k
            step = self._step(k) / self._length[k]
            self._by_row[along] = step[along]
            self._by_column[:, across] = step[:, across]
            self._alike[np.ix_(along, across)] = self._length[k] ** -2.0
        self._valued = self._rows < 0, self._columns < 0

    def _step(self, k: int) -> Array:
        return np.asarray(self._left[:, k, None] - self._right[:, k])

    def covariance(self) -> Array:
        """Return the covariances, shape (N, M)."""
        rows, columns = self._valued
        values = self._alike * self.g - self._by_row * self._by_column * self.h
        values[rows] += self.g[rows] * self._by_column[rows]
        values[:, columns] -= self.g[:, columns] * self._by_row[:, columns]
        values[np.ix_(rows, columns)] += self.f[np.ix_(rows, columns)]
        return values

    def contracted(self, M: Array) -> list[float]:
        """Return sums of M and the derivatives by log length-scales."""
        rows, columns = self._valued
        same_column = np.outer(rows, columns)
        product = self._by_row * self._by_column
        # The factor of w_k.
        moved = self._alike * self.h - product * np.where(product == 0.0, 0.0, self.q)
        moved += self.h * (rows[:, None] * self._by_column - columns * self._by_row)
        moved += np.where(same_column, self.g, 0.0)
        moved *= M
        slopes = []
        for k in range(self._length.size):
            along, across = self._rows == k, self._columns == k
            spread = float(np.vdot(moved, self._step(k) ** 2))
            # The explicit powers of l_k: 1/l_k^2 for each slope along k, of a pair along k one.
            times = along[:, None].astype(float) + across
            explicit = -product * self.h * times + self._alike * self.g * (times > 1.0)
            explicit += self.g * across * (rows[:, None] * self._by_column)
            explicit -= self.g * along[:, None] * (columns * self._by_row)
            slopes.append(spread - 2.0 * float(np.vdot(M, explicit)))
        return [sum(slopes)] if self._isotropic else slopes
