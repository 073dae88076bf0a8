"""Prior covariances inside many small sets of points at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import summed
from qpruntime.kernels.cross import cross_covariance
from qpruntime.kernels.tree import Added, Multiplied, Node, Seen, read

__all__ = ["within"]


def within(kernel: Any, X: Array) -> Array:
    """Return covariances of the points of b sets (b, k, d), without white noise.

    The lower triangles, row by row, of shape (b, k (k + 1)/2): exponentials are most of the cost.
    """
    k = X.shape[1]
    found = np.asarray(_values(read(kernel), X), dtype=float)
    return np.full((len(X), k * (k + 1) // 2), found) if found.ndim == 0 else found


def _values(node: Node, X: Array) -> Any:
    """Covariances, or a number where they are constant."""
    if isinstance(node, Added):
        return _values(node.one, X) + _values(node.two, X)
    if isinstance(node, Multiplied):
        return _values(node.one, X) * _values(node.two, X)
    if isinstance(node, Seen):
        return _values(node.inner, np.ascontiguousarray(X[:, :, list(node.kernel.columns)]))
    kernel, parts = node.kernel, node.parts
    if parts.constant:
        return node.value
    if parts.noise:
        return 0.0
    if parts.shape is not None:
        squares = np.empty((len(X), X.shape[1] * (X.shape[1] + 1) // 2))
        length = np.asarray(kernel.length_scale if parts.scaled else 1.0, dtype=float)
        _squares(X / np.broadcast_to(length, X.shape[2:]), squares)
        return parts.shape(kernel, squares, False)[0]
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
