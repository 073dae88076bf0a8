"""Covariances between rows and inducing inputs, and slopes contracted with them.

scikit-learn has no slope of k(X, Z), neither in its parameters nor in Z. Radial kernels, constants,
white noise, sums and products are contracted here, block by block of rows, and nothing of shape
(n, M, d) is formed. Any other kernel goes by differences in its parameters; its inducing inputs
stay where they are (`moves_inputs`). White noise is on the diagonal of rows alone: neither in
k(X, Z) nor in k(Z, Z).

Let r be the distance in length-scales, k = f(r) and W = H * g with g = -f'(r)/r. Then

    dk/dlog l_d:  [x_d^2 (W1) - 2 x_d (WZ)_d + z_d^2 (W^T 1)]/l_d^2, summed;
    dk/dz_m:      [(W^T X)_m - z_m (W^T 1)_m]/l^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.kernels.mixed_inputs import contracted
from qpruntime.kernels.radial_kernels import squared_distances
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, Seen, level_and_shape, read

__all__ = ["contract", "contract_square", "cross_covariance", "diagonal", "moves_inputs"]

# Numbers in a block of rows: what is formed on the way stays in the cache.
_NUMBERS = 2**18
_FEWEST_ROWS = 32
# Step of differences in log parameters: their error is about its square, rounding 1e-12.
_STEP = 1e-4


def cross_covariance(
    kernel: Kernel,
    X: Array,
    Z: Array,
    dtype: DTypeLike = np.float64,
    out: NDArray[np.floating] | None = None,
) -> NDArray[np.floating]:
    """Return k(X, Z) (n, M) for points X (n, d), Z (M, d), without white noise; in `out` if given.

    Distances are computed in float64 even for float32 results, which are then right to rounding.
    """
    out = np.empty((len(X), len(Z)), dtype) if out is None else out
    node = read(kernel)
    for rows in _blocks(len(X), len(Z)):
        out[rows] = _values(node, X[rows], Z, out.dtype)
    return out


def diagonal(kernel: Kernel, X: Array, noise: bool = True) -> Array:
    """Return k(x_n, x_n) (n,), white noise among it unless that is left out."""
    return np.asarray(kernel.diag(X), dtype=float) if noise else _without_noise(read(kernel), X)


def moves_inputs(kernel: Kernel) -> bool:
    """Decide whether slopes in Z are known, for every part of the kernel."""
    return _moves(read(kernel))


def contract(kernel: Kernel, X: Array, Z: Array, H: Array, rho: Array) -> tuple[Array, Array]:
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
    node = read(kernel)
    dtheta, dZ = np.array(_diagonal_slopes(node, X, rho), dtype=float), np.zeros(Z.shape)
    for rows in _blocks(len(X), len(Z)):
        part = _contract(node, X[rows], Z, H[rows])
        dtheta += part.theta
        dZ += part.z
    return dtheta, dZ if _moves(node) else np.zeros(Z.shape)


def contract_square(kernel: Kernel, Z: Array, S: Array) -> tuple[Array, Array]:
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


class _Part(NamedTuple):
    """Sums over one part of a kernel: of H k, of H dk/dtheta, and of H dk/dz."""

    value: float
    theta: Array
    z: Array | float


def _blocks(n: int, width: int) -> Iterator[slice]:
    step = max(_FEWEST_ROWS, _NUMBERS // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _moves(node: Node) -> bool:
    if isinstance(node, Seen):
        return _moves(node.inner)
    if isinstance(node, Leaf):
        parts = node.parts
        return parts.shape is not None or bool(parts.constant or parts.noise or parts.levels)
    return _moves(node.first) and _moves(node.second)


def _without_noise(node: Node, X: Array) -> Array:
    if isinstance(node, Added):
        return _without_noise(node.first, X) + _without_noise(node.second, X)
    if isinstance(node, Multiplied):
        return _without_noise(node.first, X) * _without_noise(node.second, X)
    if isinstance(node, Seen):
        return _without_noise(node.inner, node.kernel.of(X))
    if node.parts.noise:
        return np.zeros(len(X))
    return np.asarray(node.kernel.diag(X), dtype=float)


def _values(node: Node, X: Array, Z: Array, dtype: DTypeLike) -> Array | float:
    """k(X, Z), or a number where it is constant."""
    if isinstance(node, Added):
        return _values(node.first, X, Z, dtype) + _values(node.second, X, Z, dtype)
    if isinstance(node, Multiplied):
        return _values(node.first, X, Z, dtype) * _values(node.second, X, Z, dtype)
    if isinstance(node, Seen):
        return _values(node.inner, node.kernel.of(X), node.kernel.of(Z), dtype)
    kernel, parts = node.kernel, node.parts
    if parts.constant:
        return node.value
    if parts.noise:
        return 0.0
    if parts.shape is not None:
        x, z, _ = _scaled(node, X, Z)
        return parts.shape(kernel, _squares(x, z, dtype), False)[0]
    return np.asarray(kernel(X, Z)).astype(dtype, copy=False)


def _scaled(leaf: Leaf, X: Array, Z: Array) -> tuple[Array, Array, Array | float]:
    """Points in length-scales, about the middle of Z, where their squares cancel least."""
    length: Array | float = 1.0
    if leaf.parts.scaled:
        length = np.asarray(leaf.kernel.length_scale, dtype=float)
    centre = np.median(Z, axis=0)  # which one input far away does not move
    return (X - centre) / length, (Z - centre) / length, length


def _squares(x: Array, z: Array, dtype: DTypeLike) -> Array:
    """Squared distances: exact in float64; a product, for speed, where float32 is enough."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == np.float64:
            return squared_distances(x, z)
        left_factor = np.column_stack([x, np.einsum("nd,nd->n", x, x), np.ones(len(x))])
        right = np.column_stack([-2.0 * z, np.ones(len(z)), np.einsum("nd,nd->n", z, z)])
        squares = left_factor @ right.T
        # Infinity less infinity: far, whichever way.
        return np.asarray(np.fmax(squares, 0.0, out=squares).astype(dtype))


def _contract(node: Node, X: Array, Z: Array, H: Array) -> _Part:
    if isinstance(node, Added):
        first, second = (_contract(child, X, Z, H) for child in (node.first, node.second))
        return _Part(
            first.value + second.value,
            np.concatenate([first.theta, second.theta]),
            first.z + second.z,
        )
    if isinstance(node, Multiplied):
        return _product(node, X, Z, H)
    if isinstance(node, Seen):
        return _seen(node, X, Z, H)
    if node.parts.levels:
        W = H * _values(node, X, Z, H.dtype)
        return _Part(_total(W), contracted(node.kernel, X, Z, W), 0.0)
    if node.parts.constant:
        value = node.value * _total(H)
        return _Part(value, np.array([value] * len(node.free)), 0.0)
    if node.parts.noise:
        return _Part(0.0, np.zeros(len(node.free)), 0.0)
    if node.parts.shape is not None:
        return _radial(node, X, Z, H)
    return _by_differences(node.kernel, X, Z, H)


def _product(node: Multiplied, X: Array, Z: Array, H: Array) -> _Part:
    level, shape = level_and_shape(node)
    if level is not None:
        part = _contract(shape, X, Z, H)
        level_slope = [level * part.value] if node.first.is_free else []
        return _Part(
            level * part.value, np.concatenate([level_slope, level * part.theta]), level * part.z
        )
    first = _contract(node.first, X, Z, H * _values(node.second, X, Z, H.dtype))
    second = _contract(node.second, X, Z, H * _values(node.first, X, Z, H.dtype))
    return _Part(first.value, np.concatenate([first.theta, second.theta]), first.z + second.z)


def _seen(node: Seen, X: Array, Z: Array, H: Array) -> _Part:
    kernel = node.kernel
    part, width = _contract(node.inner, kernel.of(X), kernel.of(Z), H), len(kernel.columns)
    dz = np.zeros(Z.shape)
    for k, column_slope in zip(
        kernel.columns, np.broadcast_to(part.z, (len(Z), width)).T, strict=True
    ):
        dz[:, k] += column_slope  # a column may be seen twice
    return part._replace(z=dz)


def _radial(leaf: Leaf, X: Array, Z: Array, H: Array) -> _Part:
    kernel, parts = leaf.kernel, leaf.parts
    assert parts.shape is not None
    x, z, length = _scaled(leaf, X, Z)
    squares = _squares(x, z, H.dtype)
    same = squares == 0.0
    distance = np.sqrt(squares) if parts.slopes else squares
    f, W = parts.shape(kernel, squares, True)
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
    dz = (by_input[:, :-1] - z * by_input[:, -1:]) / length
    theta: list[float | Array] = []
    for name in leaf.free:
        if name in parts.slopes:
            theta.append(float(np.vdot(H, parts.slopes[name](kernel, distance))))
            continue
        spread = by_row[:, -1] @ x.astype(float) ** 2 + by_input[:, -1] @ z.astype(float) ** 2
        spread -= 2.0 * np.einsum("nd,nd->d", x, by_row[:, :-1])
        theta += [spread.sum()] if np.size(kernel.length_scale) == 1 else [*spread]
    return _Part(value, np.array(theta, dtype=float), dz)


def _by_differences(kernel: Kernel, X: Array, Z: Array, H: Array) -> _Part:
    def value(k: Kernel) -> float:
        return float(np.vdot(H, k(X, Z)))

    theta = np.array(kernel.theta, dtype=float)
    return _Part(value(kernel), _differences(kernel, theta, value), 0.0)


def _differences(kernel: Kernel, theta: Array, value: Callable[[Kernel], float]) -> Array:
    steps = _STEP * np.eye(theta.size)
    pairs = [[value(kernel.clone_with_theta(theta + s)) for s in (h, -h)] for h in steps]
    return np.array([(up - down) / (2.0 * _STEP) for up, down in pairs])


def _total(H: Array) -> float:
    return float(H.sum(dtype=float))


def _diagonal_slopes(node: Node, X: Array, rho: Array) -> list[float]:
    if isinstance(node, Added):
        return _diagonal_slopes(node.first, X, rho) + _diagonal_slopes(node.second, X, rho)
    if isinstance(node, Multiplied):
        scale_first, scale_second = node.first.kernel.diag(X), node.second.kernel.diag(X)
        first = _diagonal_slopes(node.first, X, rho * scale_second)
        return first + _diagonal_slopes(node.second, X, rho * scale_first)
    if isinstance(node, Seen):
        return _diagonal_slopes(node.inner, node.kernel.of(X), rho)
    kernel, parts = node.kernel, node.parts
    if parts.constant or parts.noise:
        return [node.value * float(rho.sum())] * len(node.free)
    if parts.shape is not None or parts.levels:
        free = (getattr(kernel, f"hyperparameter_{name}") for name in node.free)
        return [0.0] * sum(parameter.n_elements for parameter in free)
    theta = np.array(kernel.theta, dtype=float)
    return list(_differences(kernel, theta, lambda k: float(rho @ k.diag(X))))
