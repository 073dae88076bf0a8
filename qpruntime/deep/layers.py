"""Layers of Gaussian processes: parameters, what all rows share, and moments passed upwards.

A layer has Q independent outputs of one squared exponential over D inputs, and M inducing inputs Z.
Let K(Z, Z) = L L^T. Output q has u = L w, w ~ N(0, I), and q(w) has precision I + R R^T and
precision times mean eta, which stand for N tied sites. Removing the share epsilon of them leaves a
cavity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray

__all__ = [
    "FLOOR",
    "JITTER",
    "Batch",
    "Layer",
    "LogNormaliser",
    "Shared",
    "at_normals",
    "at_points",
    "energy",
    "forward",
    "shared",
]

#: Arrays of JAX while a model is trained, and of NumPy before and after.
Stored: TypeAlias = "jax.Array | NDArray[np.float64]"

#: Added to the diagonal of K, in units of the variance of the layer.
JITTER = 1e-6
#: Least variance of an output, in the same units.
FLOOR = 1e-10


@jax.custom_vjp
def whitener(A: jax.Array) -> jax.Array:
    """L^-1 of A = L L^T, (Q, M, M).

    Its slope is products alone. Autodiff's solves of several triangles at once, which XLA unrolls,
    took four fifths of compiling a step.
    """
    eye = np.eye(A.shape[-1])
    # One by one they are LAPACK's.
    return jnp.stack(
        [solve_triangular(factor, eye, lower=True) for factor in jnp.linalg.cholesky(A)]
    )


def _whiten(A: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = whitener(A)
    return inverse, inverse


def _whiten_back(inverse: jax.Array, slope: jax.Array) -> tuple[jax.Array]:
    # W A W^T = I: dW = -low(W dA W^T) W, where low takes half of the diagonal and what is below.
    m = inverse.shape[-1]
    low = np.tril(np.ones((m, m))) - 0.5 * np.eye(m)
    full = inverse.mT @ (low * (slope @ inverse.mT)) @ inverse
    return (-0.5 * (full + full.mT),)


whitener.defvjp(_whiten, _whiten_back)


@jax.custom_vjp
def gram(a: jax.Array) -> jax.Array:
    """Return a a^T, whose slope is one product where autodiff takes two."""
    return a @ a.mT


gram.defvjp(lambda a: (gram(a), a), lambda a, slope: ((slope + slope.mT) @ a,))


class Layer(NamedTuple):
    """Parameters of one layer, NumPy's or JAX's arrays.

    Z is (M, D), log_scale (D,) the logarithm of length-scales, log_variance and log_noise numbers
    (of variances), eta (Q, M), root (Q, M, M) whose lower triangle is R. slope (Q, D) is that of
    a linear mean, which is not learnt, or None.
    """

    Z: Stored
    log_scale: Stored
    log_variance: Stored
    log_noise: Stored
    eta: Stored
    root: Stored
    slope: Stored | None


class Shared(NamedTuple):
    """Parts of the cavity, or of q, that no row changes.

    inverse is L^-1, white (Q, M) the mean of w, spread (Q, M, M) a W with covariance W^T W of w,
    inner (Q, M, M) the second moment of w less that of the prior.
    """

    inverse: Stored
    white: Stored
    spread: Stored
    inner: Stored


@cache
def upper(m: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the pairs i <= j, and the number of its pair for every (i, j)."""
    i, j = np.triu_indices(m)
    number = np.zeros((m, m), dtype=np.int64)
    number[i, j] = number[j, i] = np.arange(i.size)
    return i, j, number


@jax.custom_vjp
def packed(symmetric: jax.Array) -> jax.Array:
    """Return upper triangles of (Q, M, M), doubled off the diagonal: (Q, M (M + 1) / 2)."""
    i, j, _ = upper(symmetric.shape[-1])
    return symmetric[:, i, j] * np.where(i == j, 1.0, 2.0)


@jax.custom_vjp
def paired(Z: jax.Array) -> jax.Array:
    """Both members of every pair, (2, M (M + 1) / 2, D)."""
    i, j, _ = upper(Z.shape[0])
    return jnp.stack([Z[i], Z[j]])


def _pair(Z: jax.Array) -> tuple[jax.Array, tuple[()]]:
    return paired(Z), ()


def _unpair(kept: tuple[()], slope: jax.Array) -> tuple[jax.Array]:
    m = math.isqrt(2 * slope.shape[1])
    number, rows = upper(m)[2], np.arange(m)
    # Pairs in which a point comes first, then those in which it comes second.
    first = jnp.where((rows[:, None] <= rows)[:, :, None], slope[0][number], 0.0)
    second = jnp.where((rows[:, None] >= rows)[:, :, None], slope[1][number], 0.0)
    return (jnp.sum(first + second, axis=1),)


paired.defvjp(_pair, _unpair)


def _pack(symmetric: jax.Array) -> tuple[jax.Array, tuple[int, ...]]:
    return packed(symmetric), symmetric.shape


def _unpack(shape: tuple[int, ...], slope: jax.Array) -> tuple[jax.Array]:
    # Halves on both sides of the diagonal: gathering where autodiff would scatter.
    return (slope[:, upper(math.isqrt(2 * slope.shape[-1]))[2]],)


packed.defvjp(_pack, _unpack)


def shared(layers: Sequence[Layer], epsilon: float | jax.Array) -> tuple[list[Shared], jax.Array]:
    """Compute what no row changes, once a step, and the layers' part of the energy.

    Outputs of all layers are taken together: a step compiles in half the time. The energy is in a
    form in which nothing cancels: with q = L_B^-1 eta, S = L_B^-1 R R^T L_B^-T and L_c L_c^T = I -
    epsilon S each output has -sum log L_B,ii + q^T q / 2 - sum log L_c,ii / epsilon + [(epsilon -
    2) q^T q + (1 - epsilon)^2 q^T (I - epsilon S)^-1 S q] / 2. The energy is not defined at epsilon
    = 0, where the cavity is q itself.
    """
    m = layers[0].Z.shape[0]
    eye = np.eye(m)
    inverses = whitener(jnp.stack([_covariance(layer, eye) for layer in layers]))
    eta = jnp.concatenate([layer.eta for layer in layers])
    root = jnp.concatenate([layer.root for layer in layers]) * np.tril(np.ones((m, m)))
    unit = whitener(eye + gram(root))
    half = unit @ root
    unit_c = whitener(eye - epsilon * gram(half))
    spread = unit_c @ unit
    q = _times(unit, eta)
    turned = _times(unit_c, q)
    white = (1.0 - epsilon) * _times(spread.mT, turned)
    # (I - epsilon S)^-1 q, and S between it and q.
    between = _times(half.mT, _times(unit_c.mT, turned)) * _times(half.mT, q)
    logs = jnp.log(unit * eye + (1.0 - eye)), jnp.log(unit_c * eye + (1.0 - eye))
    energy = (
        jnp.sum(logs[0] + logs[1] / epsilon)
        + 0.5 * (epsilon - 1.0) * jnp.sum(q * q)
        + 0.5 * (1.0 - epsilon) ** 2 * jnp.sum(between)
    )
    inner = gram(spread.mT) - eye + white[:, :, None] * white[:, None, :]
    known, end = [], 0
    for layer, inverse in zip(layers, inverses, strict=True):
        columns = slice(end, end + layer.eta.shape[0])
        end = columns.stop
        known.append(Shared(inverse, white[columns], spread[columns], inner[columns]))
    return known, energy


def at_points(layer: Layer, known: Shared, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Means and variances (rows, Q) of the outputs at known inputs x (rows, D)."""
    scale, variance = jnp.exp(layer.log_scale), jnp.exp(layer.log_variance)
    k = variance * jnp.exp(-0.5 * _squares(x / scale, layer.Z / scale))
    phi = k @ known.inverse.T
    mean = phi @ known.white.T
    if layer.slope is not None:
        mean = mean + x @ layer.slope.T
    spread = known.spread @ phi.T  # (Q, M, rows)
    residual = variance - jnp.sum(phi * phi, axis=1) + jnp.sum(spread**2, axis=1)
    return mean, jnp.maximum(residual, FLOOR * variance).T


def at_normals(
    layer: Layer, known: Shared, m: jax.Array, s: jax.Array, dtype: jnp.dtype | None = None
) -> tuple[jax.Array, jax.Array]:
    """Means and variances (rows, Q) of the outputs at inputs N(m, diag s), both (rows, D).

    The expectation of k(w, z) k(w, z') is needed for all pairs z <= z', but only its product with
    one matrix per output, which all rows share. `dtype` is that of what pairs hold: exponentials.
    Logarithms and products stay in double precision, for coefficients reach 1 / `JITTER` and
    cancel: of Boston's rows the slope of the energy was a third wrong without, and is a thirtieth.
    """
    variance = jnp.exp(layer.log_variance)
    psi1 = expected(layer, m, s)
    weights = known.white @ known.inverse
    mean = psi1 @ weights.T
    coefficients = packed(known.inverse.T @ known.inner @ known.inverse)
    log_psi2, factor = log_pairs(layer, m, s)
    psi2 = jnp.exp(log_psi2 if dtype is None else log_psi2.astype(dtype))
    second = variance + factor[:, None] * (psi2.astype(mean.dtype) @ coefficients.T)
    residual = jnp.maximum(second - mean * mean, FLOOR * variance)
    if layer.slope is None:
        return mean, residual
    # Linear means add to the function; their covariance with it is Stein's.
    lever = s / (jnp.exp(2.0 * layer.log_scale) + s)
    covariance = (m * lever) @ layer.slope.T * mean - jnp.einsum(
        "nz,qz,zd,nd,qd->nq", psi1, weights, layer.Z, lever, layer.slope
    )
    return mean + m @ layer.slope.T, residual + s @ (layer.slope**2).T - 2.0 * covariance


def expected(layer: Layer, m: jax.Array, s: jax.Array) -> jax.Array:
    """psi1, (rows, M): the expectation of k(w, z) for w ~ N(m, diag s)."""
    square = jnp.exp(2.0 * layer.log_scale)
    width = square + s
    gaps = (m[:, None, :] - layer.Z) ** 2 / width[:, None, :]
    log_factor = layer.log_variance - 0.5 * jnp.sum(jnp.log1p(s / square), axis=1)
    return jnp.exp(log_factor[:, None] - 0.5 * jnp.sum(gaps, axis=2))


def log_pairs(layer: Layer, m: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log psi2 but for a factor of each row: (rows, M (M + 1) / 2) and (rows,).

    One product of what rows and what pairs bring.
    """
    square = jnp.exp(2.0 * layer.log_scale)
    omega = 1.0 / (square + 2.0 * s)
    pairs = paired(layer.Z)
    middle = 0.5 * (pairs[0] + pairs[1])
    apart = -0.25 * jnp.sum((pairs[0] - pairs[1]) ** 2 / square, axis=1, keepdims=True)
    alone = -jnp.sum(m * m * omega, axis=1, keepdims=True)
    of_rows = jnp.concatenate([2.0 * m * omega, -omega, jnp.ones_like(alone), alone], axis=1)
    of_pairs = jnp.concatenate([middle, middle**2, apart, jnp.ones_like(apart)], axis=1)
    factor = jnp.exp(2.0 * layer.log_variance - 0.5 * jnp.sum(jnp.log1p(2.0 * s / square), axis=1))
    return of_rows @ of_pairs.T, factor


def _squares(a: jax.Array, b: jax.Array) -> jax.Array:
    """Squared distances of rows, by a product."""
    sums = jnp.sum(a * a, axis=1)[:, None] + jnp.sum(b * b, axis=1)
    return jnp.maximum(sums - 2.0 * a @ b.T, 0.0)


def _covariance(layer: Layer, eye: NDArray[np.float64]) -> jax.Array:
    scaled = layer.Z / jnp.exp(layer.log_scale)
    return jnp.exp(layer.log_variance) * (jnp.exp(-0.5 * _squares(scaled, scaled)) + JITTER * eye)


def _times(matrices: jax.Array, vectors: jax.Array) -> jax.Array:
    return (matrices @ vectors[:, :, None])[:, :, 0]


# --- The energy of a deep Gaussian process under approximate EP with tied sites, and its passes.
#
# F = sum over layers and outputs of `qpruntime.deep.layers.shared` plus the sum over rows of
# log Z_n / alpha, maximised. Cavities have lost the share epsilon = alpha / N of the sites.

Layers = tuple[Layer, ...]


class Batch(NamedTuple):
    """Rows: X (n, D), y (n,), weight (n,)."""

    X: Stored
    y: Stored
    weight: Stored


class LogNormaliser(Protocol):
    """log Z_n of rows, for p(y | f)^power under f ~ N(mean, variance)."""

    def __call__(
        self, mean: jax.Array, variance: jax.Array, y: jax.Array, log_noise: jax.Array
    ) -> jax.Array:
        """Return (n,) from four arrays of (n,), the last a number."""


def forward(
    layers: Layers, known: list[Shared], X: jax.Array, dtype: jnp.dtype | None = None
) -> list[tuple[jax.Array, jax.Array]]:
    """Means and variances (n, Q) of every layer's outputs, without their noise."""
    by_layer = [at_points(layers[0], known[0], X)]
    for below, layer, shared_terms in zip(layers[:-1], layers[1:], known[1:], strict=True):
        mean, variance = by_layer[-1]
        variance = variance + jnp.exp(below.log_noise)
        by_layer.append(at_normals(layer, shared_terms, mean, variance, dtype))
    return by_layer


def energy(
    layers: Layers,
    batch: Batch,
    rows: float | jax.Array,
    power: float,
    log_z: LogNormaliser,
    dtype: jnp.dtype | None = None,
    scale: float | jax.Array | None = None,
) -> jax.Array:
    """Energy F, estimated from a batch of rows.

    Parameters
    ----------
    layers : tuple of Layer
        The last has one output.
    batch : Batch
    rows : float
        The sum of the weights of all rows: a weight of 2 is the row twice.
    power : float
        alpha of power EP.
    log_z : LogNormaliser
    dtype : dtype, optional
        Of the exponentials of pairs of inducing inputs.
    scale : float, optional
        What the sum of log Z, and only that, is multiplied by: rows in all for each of the batch,
        which leaves no bias where weights differ. Else weights in all for each of the batch.
    """
    epsilon = power / rows
    known, of_layers = shared(layers, epsilon)
    mean, variance = forward(layers, known, batch.X, dtype)[-1]
    log_densities = log_z(mean[:, 0], variance[:, 0], batch.y, layers[-1].log_noise)
    if scale is None:
        scale = rows / jnp.sum(batch.weight)
    return of_layers + scale / power * jnp.sum(batch.weight * log_densities)
