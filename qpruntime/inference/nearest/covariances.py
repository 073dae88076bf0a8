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
    """Return covariances of the points of b sets (b, k, d), without white noise.

    The lower triangles, row by row, of shape (b, k (k + 1)/2): exponentials are most of the cost.
    """
    k = X.shape[1]
    found = np.asarray(_values(kernel, X), dtype=float)
    return np.full((len(X), k * (k + 1) // 2), found) if found.ndim == 0 else found


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
        squares = np.empty((len(X), X.shape[1] * (X.shape[1] + 1) // 2))
        length = np.broadcast_to(np.asarray(kernel.length_scale, dtype=float), X.shape[2:])
        _squares(X / length, squares)
        return shape(kernel, squares, slope=False)[0]
    lower = np.tril_indices(X.shape[1])
    return np.stack([cross_covariance(kernel, some, some)[lower] for some in X])


@summed
def _squares(x, found):
    """Squared distances in each set."""
    b, k, d = x.shape
    for s in range(b):
        at = 0
        for i in range(k):
            for j in range(i + 1):
                square = 0.0
                for f in range(d):
                    step = x[s, i, f] - x[s, j, f]
                    square += step * step
                found[s, at] = square
                at += 1
