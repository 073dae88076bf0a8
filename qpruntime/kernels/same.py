"""1 where two rows are the same, 0 elsewhere: a value of its own for every group or player."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array

__all__ = ["Same"]


class Same(Kernel):
    """The covariance of independent values, one for each distinct row.

    k(x, z) is 1 where x = z, else 0. Unlike white noise it holds between rows of two sets: rows of
    one group share their value. A constant before it is the variance of the values.

    Examples
    --------
    >>> from qpruntime.kernels import Same
    >>> Same()([[1.0], [2.0]], [[2.0]]).tolist()
    [[0.0], [1.0]]
    """

    def __init__(self) -> None:
        """Take no parameters; scikit-learn reads the signature."""

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        X = np.atleast_2d(X)
        K: Array = (cdist(X, X if Y is None else np.atleast_2d(Y), "cityblock") == 0.0).astype(
            float
        )
        return (K, np.empty((len(X), len(X), 0))) if eval_gradient else K

    def diag(self, X: Any) -> Array:
        """k(x, x), which is 1, shape (N,)."""
        return np.ones(len(X))

    def is_stationary(self) -> bool:
        """Whether it depends on differences of rows alone."""
        return True

    def __repr__(self) -> str:
        return "Same()"
