"""The gradient of a kernel matrix, contracted without being formed.

scikit-learn returns dK/dtheta as an N x N x p array: 80 MB for 1000 points and 10 parameters.
All that inference needs are the p numbers sum_ij M_ij dK_ij/dtheta. Sums, products, constants,
white noise and squared exponentials are contracted directly; any other kernel goes through
scikit-learn's own gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Product,
    Sum,
    WhiteKernel,
)

from qpruntime.arrays import Array

__all__ = ["by_feature", "contract_gradient", "evaluate", "is_free", "level_and_shape"]


def level_and_shape(kernel: Any) -> tuple[Any, Any]:
    """Split a constant off a kernel; None if there is none."""
    if type(kernel) is Product and type(kernel.k1) is ConstantKernel:
        return kernel.k1, kernel.k2
    return None, kernel


def evaluate(kernel: Any, X: Array) -> Array:
    """Return ``kernel(X)``; a constant factor is a number, where scikit-learn fills a matrix."""
    level, shape = level_and_shape(kernel)
    K = np.asarray(shape(X))
    if level is not None:
        K *= level.constant_value
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
    return np.array(_contract(kernel, X, M, K), dtype=float)


def _contract(kernel: Any, X: Array, M: Array, K: Array | None) -> list[float]:
    if not is_free(kernel):
        return []
    if type(kernel) is Sum:
        return _contract(kernel.k1, X, M, None) + _contract(kernel.k2, X, M, None)
    if type(kernel) is Product:
        return _product(kernel, X, M, K)
    if type(kernel) is ConstantKernel:
        return [kernel.constant_value * float(M.sum())]
    if type(kernel) is WhiteKernel:
        return [kernel.noise_level * float(M.trace())]
    if type(kernel) is RBF:
        W = M * (kernel(X) if K is None else K)
        return _squared_exponential(kernel, X, *_without_diagonal(W)[1:])
    gradient = kernel(X, eval_gradient=True)[1]
    return list(np.tensordot(M, gradient, axes=([0, 1], [0, 1])))


def is_free(kernel: Any) -> bool:
    """Whether the kernel has a parameter that is not fixed; ``n_dims`` takes ten times as long."""
    if type(kernel) in (Sum, Product):
        return is_free(kernel.k1) or is_free(kernel.k2)
    if type(kernel) is ConstantKernel:
        return not kernel.hyperparameter_constant_value.fixed
    if type(kernel) is RBF:
        return not kernel.hyperparameter_length_scale.fixed
    return bool(kernel.n_dims)


def _product(kernel: Any, X: Array, M: Array, K: Array | None) -> list[float]:
    left, right = kernel.k1, kernel.k2
    if type(left) is ConstantKernel:
        # K = c K2, and K2's gradient scales with c: contract it with c M.
        K = kernel(X) if K is None else K
        if type(right) is RBF:
            own, W, rows = _without_diagonal(M * K)
            level = [own + float(rows.sum())] if is_free(left) else []
            return level + (_squared_exponential(right, X, W, rows) if is_free(right) else [])
        level = [float(np.vdot(M, K))] if is_free(left) else []
        c = left.constant_value
        return level + _contract(right, X, c * M, K / c)
    first = _contract(left, X, M * right(X), None) if is_free(left) else []
    return first + (_contract(right, X, M * left(X), None) if is_free(right) else [])


def _without_diagonal(W: Array) -> tuple[float, Array, Array]:
    """Trace of W; W with a diagonal of zeros, in place; the sums of its rows.

    Points have no distance from themselves, but x_d^2 twice, to cancel.
    """
    trace = float(W.trace())
    W.flat[:: len(W) + 1] = 0.0
    return trace, W, W.sum(axis=1)


def _squared_exponential(kernel: Any, X: Array, W: Array, rows: Array) -> list[float]:
    """dK/dlog l_d = K (x_d - x'_d)^2/l_d^2, summed with W = M K by one matrix product."""
    spread = by_feature((X - X.mean(axis=0)) / kernel.length_scale, W, rows)
    if kernel.anisotropic:
        return [2.0 * float(s) for s in spread]
    return [2.0 * float(spread.sum())]


def by_feature(scaled: Array, W: Array, rows: Array) -> Array:
    """Half of sum_ij W_ij (x_d - x'_d)^2 for every feature d; `rows` are the sums of W's rows."""
    spread: Array = rows @ scaled**2 - np.einsum("ij,ij->j", scaled, W @ scaled)
    return spread
