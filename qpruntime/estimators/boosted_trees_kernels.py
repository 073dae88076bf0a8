"""Sums of boosted trees. Kernels only."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import kernel
from qpruntime._typing import Array, IntArray

__all__ = ["add_trees"]


@kernel
def add_trees(
    X: Array,
    roots: IntArray,
    children: IntArray,
    feature: IntArray,
    threshold: Array,
    missing_left: NDArray[np.bool_],
    value: Array,
    sums: Array,
) -> None:
    """Add the leaf values of trees to sums (T, K), which tree t adds to in column t mod K.

    A leaf is its own left child; other nodes precede their children, so that each walk ends.
    """
    for i in range(X.shape[0]):
        for t in range(roots.size):
            node = roots[t]
            while children[node, 0] > node:
                x = X[i, feature[node]]
                left = missing_left[node] if math.isnan(x) else x <= threshold[node]
                node = children[node, 0 if left else 1]
            sums[i, t % sums.shape[1]] += value[node]
