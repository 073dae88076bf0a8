"""Prior covariances inside many small sets of points at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, Product, Sum, WhiteKernel

from qpruntime.arrays import Array
from qpruntime.inference.sparse.cross import cross_covariance, is_radial, shape
from qpruntime.jit import summed

__all__ = ["within"]


def within(kernel: Any, X: Array) -> Array:
    """Return covariances (b, k, k) of the points of b sets (b, k, d), without white noise."""
    found = _values(kernel, X)
    if np.ndim(found) == 0:
        return np.full((*X.shape[:2], X.shape[1]), float(found))
    return np.asarray(found)


def _values(kernel: Any, X: Array) -> Any:
    """Covariances, or a number where they are constant."""
    if type(kernel) is Sum:
        return _values(kernel.k1, X) + _values(kernel.k2, X)
    if type(kernel) is Product:
        return _values(kernel.k1, X) * _values(kernel.k2, X)
    if type(kernel) is ConstantKernel:
        return float(kernel.constant_value)
    if type(kernel) is WhiteKernel:
        return 0.0
    if is_radial(kernel):
        squares = np.empty((len(X), X.shape[1], X.shape[1]))
        length = np.broadcast_to(np.asarray(kernel.length_scale, dtype=float), X.shape[2:])
        _squares(X / length, squares)
        return shape(kernel, squares, slope=False)[0]
    return np.stack([cross_covariance(kernel, some, some) for some in X])


@summed
def _squares(x, found):
    """Squared distances in each set."""
    b, k, d = x.shape
    for s in range(b):
        for i in range(k):
            found[s, i, i] = 0.0
            for j in range(i):
                square = 0.0
                for f in range(d):
                    step = x[s, i, f] - x[s, j, f]
                    square += step * step
                found[s, i, j] = square
                found[s, j, i] = square
