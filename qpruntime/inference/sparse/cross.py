"""Covariances between rows and inducing inputs, and slopes contracted with them.

scikit-learn has no slope of k(X, Z), neither in its parameters nor in Z. Squared exponentials,
Matérn 1/2, 3/2 and 5/2, constants, white noise, sums and products are contracted here, block by
block of rows, and nothing of shape (n, M, d) is formed. Any other kernel goes by differences in its
parameters; its inducing inputs stay where they are (`moves_inputs`). White noise is on the diagonal
of rows alone: neither in k(X, Z) nor in k(Z, Z).

With u the distance in length-scales and k = f(u), let W = H * g, g = -f'(u)/u. Then

    dk/dlog l_d:  [x_d^2 (W1) - 2 x_d (WZ)_d + z_d^2 (W^T 1)]/l_d^2, summed;
    dk/dz_m:      [(W^T X)_m - z_m (W^T 1)_m]/l^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Matern,
    Product,
    Sum,
    WhiteKernel,
)

from qpruntime.arrays import Array
from qpruntime.inference.sparse.squares import squared_distances

__all__ = [
    "contract",
    "contract_diagonal",
    "contract_square",
    "cross_covariance",
    "diagonal",
    "is_radial",
    "moves_inputs",
    "shape",
]

# Numbers in a block of rows: what is formed on the way stays in the cache.
_NUMBERS = 2**18
_FEWEST_ROWS = 32
# Step of differences in log parameters: their error is about its square, rounding 1e-12.
_STEP = 1e-4
_MATERN = (0.5, 1.5, 2.5)


def cross_covariance(
    kernel: Any, X: Array, Z: Array, dtype: DTypeLike = np.float64, out: Any = None
) -> Any:
    """Return k(X, Z) (n, M) for points X (n, d), Z (M, d), without white noise; in `out` if given.

    In float32 distances are still taken in float64, so that it is right to that format's rounding.
    """
    out = np.empty((len(X), len(Z)), dtype) if out is None else out
    for rows in _blocks(len(X), len(Z)):
        out[rows] = _values(kernel, X[rows], Z, out.dtype)
    return out


def diagonal(kernel: Any, X: Array, noise: bool = True) -> Array:
    """Return k(x_n, x_n) (n,), white noise among it unless that is left out."""
    if not noise:
        if type(kernel) is Sum:
            return diagonal(kernel.k1, X, False) + diagonal(kernel.k2, X, False)
        if type(kernel) is Product:
            return diagonal(kernel.k1, X, False) * diagonal(kernel.k2, X, False)
        if type(kernel) is WhiteKernel:
            return np.zeros(len(X))
    return np.asarray(kernel.diag(X), dtype=float)


def moves_inputs(kernel: Any) -> bool:
    """Whether slopes in Z are known, for every part of the kernel."""
    if type(kernel) in (Sum, Product):
        return moves_inputs(kernel.k1) and moves_inputs(kernel.k2)
    return type(kernel) in (ConstantKernel, WhiteKernel) or is_radial(kernel)


def contract(kernel: Any, X: Array, Z: Array, H: Array, rho: Array) -> tuple[Array, Array]:
    """Contract the slopes of k(X, Z) with H and those of the variances of rows with rho.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X, Z : ndarray, shapes (n, d), (M, d)
    H : ndarray, shape (n, M)
        Weights of k(x_n, z_m); float32 or float64, in which the work is done.
    rho : ndarray, shape (n,)
        Weights of k(x_n, x_n), as they are: no half is taken.

    Returns
    -------
    dtheta : ndarray, shape (p,)
        Sum H_nm dk(x_n, z_m)/dtheta + sum rho_n dk(x_n, x_n)/dtheta, of log parameters.
    dZ : ndarray, shape (M, d)
        Sum over rows H_nm dk(x_n, z_m)/dz_m; zeros unless `moves_inputs`.
    """
    dtheta, dZ = contract_diagonal(kernel, X, rho), np.zeros(Z.shape)
    for rows in _blocks(len(X), len(Z)):
        part = _contract(kernel, X[rows], Z, H[rows])
        dtheta += part.theta
        dZ += part.z
    return dtheta, dZ if moves_inputs(kernel) else np.zeros(Z.shape)


def contract_square(kernel: Any, Z: Array, S: Array) -> tuple[Array, Array]:
    """Contract the slopes of k(Z, Z), without white noise, with a symmetric S (M, M).

    Returns
    -------
    dtheta : ndarray, shape (p,)
        Sum S_ij dk(z_i, z_j)/dtheta.
    dZ : ndarray, shape (M, d)
        Of the same sum, in which every z stands twice.
    """
    dtheta, dZ = contract(kernel, Z, Z, S, np.zeros(len(Z)))
    return dtheta, 2.0 * dZ


def contract_diagonal(kernel: Any, X: Array, rho: Array) -> Array:
    """Return sum_n rho_n dk(x_n, x_n)/dtheta (p,)."""
    return np.array(_diagonal_slopes(kernel, X, rho), dtype=float)


class _Part(NamedTuple):
    """Of a part of a kernel: sum of H k, of H dk/dtheta, and of H dk/dz."""

    value: float
    theta: Array
    z: Array | float


def _blocks(n: int, width: int) -> Iterator[slice]:
    step = max(_FEWEST_ROWS, _NUMBERS // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def is_radial(kernel: Any) -> bool:
    """Whether it is a function of the distance in length-scales alone that `shape` knows."""
    return type(kernel) is RBF or (type(kernel) is Matern and kernel.nu in _MATERN)


def _values(kernel: Any, X: Array, Z: Array, dtype: Any) -> Any:
    """k(X, Z), or a number where it is constant."""
    if type(kernel) is Sum:
        return _values(kernel.k1, X, Z, dtype) + _values(kernel.k2, X, Z, dtype)
    if type(kernel) is Product:
        return _values(kernel.k1, X, Z, dtype) * _values(kernel.k2, X, Z, dtype)
    if type(kernel) is ConstantKernel:
        return float(kernel.constant_value)
    if type(kernel) is WhiteKernel:
        return 0.0
    if is_radial(kernel):
        x, z, _ = _scaled(kernel, X, Z)
        return shape(kernel, _squares(x, z, dtype), slope=False)[0]
    return np.asarray(kernel(X, Z)).astype(dtype, copy=False)


def _scaled(kernel: Any, X: Array, Z: Array) -> tuple[Array, Array, Array]:
    """Points in length-scales, about the middle of Z, where their squares cancel least."""
    length = np.asarray(kernel.length_scale, dtype=float)
    centre = np.median(Z, axis=0)  # which one input far away does not move
    return (X - centre) / length, (Z - centre) / length, length


def _squares(x: Array, z: Array, dtype: Any) -> Array:
    """Squared distances: exact in float64; a product, for speed, where float32 is enough."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == np.float64:
            return squared_distances(x, z)
        one = np.ones
        left = np.column_stack([x, np.einsum("nd,nd->n", x, x), one(len(x))])
        right = np.column_stack([-2.0 * z, one(len(z)), np.einsum("nd,nd->n", z, z)])
        squares = left @ right.T
        # Infinity less infinity: far, whichever way.
        return np.fmax(squares, 0.0, out=squares).astype(dtype)


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """f(u) and -f'(u)/u of squared distances, which are used up; the second 0 at u = 0."""
    if type(kernel) is RBF:
        squares *= -0.5
        f = np.exp(squares, out=squares)
        return f, f
    u = np.sqrt(squares, out=squares)
    scale = math.sqrt(2.0 * kernel.nu)
    u *= scale
    e = np.exp(-u)
    # Beyond, e is 0 and u may be infinite.
    np.minimum(u, 1e4, out=u)
    if kernel.nu == 0.5:
        g = np.divide(e, u, out=np.zeros_like(u), where=u > 0.0) if slope else e
        return e, g
    if kernel.nu == 1.5:
        return (1.0 + u) * e, 3.0 * e
    return (1.0 + u + u * u / 3.0) * e, (5.0 / 3.0) * (1.0 + u) * e


def _contract(kernel: Any, X: Array, Z: Array, H: Array) -> _Part:
    if type(kernel) is Sum:
        one, two = (_contract(k, X, Z, H) for k in (kernel.k1, kernel.k2))
        return _Part(one.value + two.value, np.concatenate([one.theta, two.theta]), one.z + two.z)
    if type(kernel) is Product:
        return _product(kernel, X, Z, H)
    if type(kernel) is ConstantKernel:
        value = float(kernel.constant_value) * _total(H)
        fixed = kernel.hyperparameter_constant_value.fixed
        return _Part(value, np.array([] if fixed else [value]), 0.0)
    if type(kernel) is WhiteKernel:
        return _Part(0.0, np.zeros(0 if kernel.hyperparameter_noise_level.fixed else 1), 0.0)
    if is_radial(kernel):
        return _radial(kernel, X, Z, H)
    return _by_differences(kernel, X, Z, H)


def _product(kernel: Any, X: Array, Z: Array, H: Array) -> _Part:
    left, right = kernel.k1, kernel.k2
    if type(left) is ConstantKernel:
        c, part = float(left.constant_value), _contract(right, X, Z, H)
        own = [] if left.hyperparameter_constant_value.fixed else [c * part.value]
        return _Part(c * part.value, np.concatenate([own, c * part.theta]), c * part.z)
    one = _contract(left, X, Z, H * _values(right, X, Z, H.dtype))
    two = _contract(right, X, Z, H * _values(left, X, Z, H.dtype))
    return _Part(one.value, np.concatenate([one.theta, two.theta]), one.z + two.z)


def _radial(kernel: Any, X: Array, Z: Array, H: Array) -> _Part:
    x, z, length = _scaled(kernel, X, Z)
    squares = _squares(x, z, H.dtype)
    same = squares == 0.0
    f, W = shape(kernel, squares, slope=True)
    if W is f:
        W *= H
        value = _total(W)
    else:
        value = float(np.vdot(H, f))
        W *= H
    # Points have no distance from themselves, but x_d^2 twice, to cancel.
    W[same] = 0.0
    x, z = x.astype(H.dtype, copy=False), z.astype(H.dtype, copy=False)
    by_row = (W @ np.column_stack([z, np.ones(len(z), H.dtype)])).astype(float)
    by_input = (W.T @ np.column_stack([x, np.ones(len(x), H.dtype)])).astype(float)
    spread = by_row[:, -1] @ x.astype(float) ** 2 + by_input[:, -1] @ z.astype(float) ** 2
    spread -= 2.0 * np.einsum("nd,nd->d", x, by_row[:, :-1])
    dz = (by_input[:, :-1] - z * by_input[:, -1:]) / length
    if kernel.hyperparameter_length_scale.fixed:
        spread = spread[:0]
    elif np.ndim(kernel.length_scale) == 0 or len(np.atleast_1d(kernel.length_scale)) == 1:
        spread = np.array([spread.sum()])
    return _Part(value, spread, dz)


def _by_differences(kernel: Any, X: Array, Z: Array, H: Array) -> _Part:
    def value(k: Any) -> float:
        return float(np.vdot(H, k(X, Z)))

    theta = np.array(kernel.theta, dtype=float)
    return _Part(value(kernel), _differences(kernel, theta, value), 0.0)


def _differences(kernel: Any, theta: Array, value: Any) -> Array:
    steps = _STEP * np.eye(theta.size)
    pairs = [[value(kernel.clone_with_theta(theta + s)) for s in (h, -h)] for h in steps]
    return np.array([(up - down) / (2.0 * _STEP) for up, down in pairs])


def _total(H: Array) -> float:
    return float(H.sum(dtype=float))


def _diagonal_slopes(kernel: Any, X: Array, rho: Array) -> list[float]:
    if type(kernel) is Sum:
        return _diagonal_slopes(kernel.k1, X, rho) + _diagonal_slopes(kernel.k2, X, rho)
    if type(kernel) is Product:
        one, two = kernel.k1.diag(X), kernel.k2.diag(X)
        first = _diagonal_slopes(kernel.k1, X, rho * two)
        return first + _diagonal_slopes(kernel.k2, X, rho * one)
    if type(kernel) is ConstantKernel:
        fixed = kernel.hyperparameter_constant_value.fixed
        return [] if fixed else [float(kernel.constant_value * rho.sum())]
    if type(kernel) is WhiteKernel:
        fixed = kernel.hyperparameter_noise_level.fixed
        return [] if fixed else [float(kernel.noise_level * rho.sum())]
    theta = np.array(kernel.theta, dtype=float)
    if is_radial(kernel):
        return [0.0] * theta.size
    return list(_differences(kernel, theta, lambda k: float(rho @ k.diag(X))))
