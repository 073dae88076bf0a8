"""Evaluate a scikit-learn kernel, and contract the gradient of K without forming it.

scikit-learn returns dK/dtheta as an N x N x p array: 80 MB for 1000 points and 10 parameters.
All that inference needs are the p numbers sum_ij M_ij dK_ij/dtheta. Sums, products, constants,
white noise and squared exponentials are contracted directly; any other kernel goes through
scikit-learn's own gradient. `covariance_function` is for optimisers, which call it again and again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Matern,
    Sum,
)

from qpruntime.arrays import Array
from qpruntime.jit import summed
from qpruntime.learning.contraction import (
    by_feature,
    contract_gradient,
    evaluate,
    is_free,
    level_and_shape,
)

__all__ = [
    "Covariance",
    "Isotropic",
    "Radial",
    "RadialByFeature",
    "covariance_function",
    "quickest",
]

# Squared distances are kept for so many points at most: beyond, factorisations take all the time.
_KEPT = 1000
# Either shape is zero, in double precision, at so many length-scales.
_FAR = 760.0


class Covariance:
    """``kernel(X)`` and its contracted gradient as functions of theta; it is not changed.

    Attributes
    ----------
    arrays : int
        How many N x N arrays it holds at least, K among them.
    """

    arrays = 1

    def __init__(self, kernel: Any, X: Array) -> None:
        self._kernel, self._X = clone(kernel), X
        self._K: Array | None = None

    def at(self, theta: Array) -> Array:
        """Return K (N, N) at these log parameters."""
        self._kernel.theta = theta
        self._K = evaluate(self._kernel, self._X)
        return self._K

    def contract(self, M: Array) -> Array:
        """Return sum_ij M_ij dK_ij/dtheta (p,) where K was asked for last; M is symmetric."""
        return contract_gradient(self._kernel, self._X, M, self._K)


class Isotropic(Covariance):
    """A squared exponential of one length-scale, or a constant times it: from squared distances.

    scikit-learn forms the distances, a copy of the kernel and its list of parameters every time.
    """

    arrays = 2

    def __init__(self, kernel: Any, X: Array) -> None:
        level, shape = level_and_shape(kernel)
        self._squares = cdist(X, X, "sqeuclidean")
        self._free = np.array([level is not None and is_free(level), is_free(shape)])
        # A list of one length-scale is one.
        length = float(np.squeeze(shape.length_scale))
        self._logs = np.log([1.0 if level is None else level.constant_value, length])

    def at(self, theta: Array) -> Array:
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
        own, spread = contract_squares(M, self._K, self._squares, 2.0 * self._rate)
        return np.array([own, spread])[self._free]


@summed
def contract_squares(M: Array, K: Array, squares: Array, rate: float) -> tuple[float, float]:
    """Return the sums of M K and of M K squares rate; of distance 0 or K = 0 none."""
    own, spread = 0.0, 0.0
    n = len(K)
    for i in range(n):
        left, row, square = M[i], K[i], squares[i]
        for j in range(n):
            both = left[j] * row[j]
            own += both
            spread += both * square[j] * rate if (row[j] > 0.0) & (square[j] > 0.0) else 0.0
    return own, spread


class Radial(Covariance):
    """A constant plus a level times a squared exponential or Matérn kernel of one length-scale.

    Distances are kept; K and its slope in the log length-scale are filled together, one triangle
    computed: seven times faster than by arrays.
    """

    arrays = 3

    def __init__(self, kernel: Any, X: Array) -> None:
        offset, rest = _offset_and_rest(kernel)
        level, shape = level_and_shape(rest)
        self._X, self._twice_nu = X, _twice_nu(shape)
        lengths = np.atleast_1d(np.asarray(shape.length_scale, dtype=float))
        free = [part is not None and is_free(part) for part in (offset, level, shape)]
        self._free = np.repeat(free, [1, 1, lengths.size])
        values = [0.0 if offset is None else offset.constant_value]
        values += [1.0 if level is None else level.constant_value, *lengths]
        with np.errstate(divide="ignore"):
            self._logs = np.log(values)
        self._distances = self._measure(lengths)
        self._full, self._slope = np.empty((2, len(X), len(X)))

    def at(self, theta: Array) -> Array:
        self._logs[self._free] = theta
        (self._offset, level), lengths = np.exp(self._logs[:2]), np.exp(self._logs[2:])
        length = self._unit(lengths)
        K = self._full
        fill_radial(self._distances, length, self._offset, level, self._twice_nu, K, self._slope)
        return K

    def contract(self, M: Array) -> Array:
        flat = np.ascontiguousarray(M).ravel()
        offset = self._offset * float(flat.sum())
        level = float(flat @ self._full.ravel()) - offset
        return np.array([offset, level, *self._spread(M)])[self._free]

    def _measure(self, lengths: Array) -> Array:
        return cdist(self._X, self._X)

    def _unit(self, lengths: Array) -> float:
        """Length-scale of the distances that are kept."""
        return float(lengths[0])

    def _spread(self, M: Array) -> Array:
        """Contraction with the slopes in the log length-scales."""
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


@summed
def fill_radial(
    distances: Array,
    length: float,
    offset: float,
    level: float,
    twice_nu: int,
    K: Array,
    slope: Array,
) -> None:
    """Fill K and dK/dlog length, of a Matérn kernel, or with 0 of a squared exponential."""
    rate = math.sqrt(float(twice_nu))
    for i in range(len(distances)):
        for j in range(i + 1):
            u = distances[i, j] / length
            k, d = 0.0, 0.0
            if twice_nu:
                u *= rate
                if u < _FAR:
                    e = level * math.exp(-u)
                    if twice_nu == 5:
                        t = u * u / 3.0
                        k, d = (1.0 + u + t) * e, t * (1.0 + u) * e
                    elif twice_nu == 3:
                        k, d = (1.0 + u) * e, u * u * e
                    else:
                        k, d = e, u * e
            elif u < _FAR:
                t = u * u
                k = level * math.exp(-0.5 * t)
                d = t * k
            K[i, j] = K[j, i] = offset + k
            slope[i, j] = slope[j, i] = d


def covariance_function(kernel: Any, X: Array) -> Covariance:
    """Return the covariance of points X (N, d), by the quickest way to it."""
    return quickest(kernel, len(X))(kernel, X)


def quickest(kernel: Any, n: int) -> type[Covariance]:
    """Return the class for n points that is quickest."""
    offset, rest = _offset_and_rest(kernel)
    _, shape = level_and_shape(rest)
    if type(shape) is RBF and offset is None:
        return Isotropic if not shape.anisotropic and n <= _KEPT else Covariance
    if _twice_nu(shape) >= 0:
        return RadialByFeature if shape.anisotropic else Radial
    return Covariance


def _twice_nu(shape: Any) -> int:
    """Return 2 nu of a Matérn kernel that is known, 0 for a squared exponential, else -1."""
    if type(shape) is RBF:
        return 0
    known = type(shape) is Matern and shape.nu in (0.5, 1.5, 2.5)
    return round(2.0 * shape.nu) if known else -1


def _offset_and_rest(kernel: Any) -> tuple[Any, Any]:
    """Split a constant off a sum; None if there is none."""
    if type(kernel) is Sum and type(kernel.k1) is ConstantKernel:
        return kernel.k1, kernel.k2
    return None, kernel
