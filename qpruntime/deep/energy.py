"""The energy of a deep Gaussian process under approximate EP with tied sites, and its passes.

F = sum over layers and outputs of `qpruntime.deep.layers.shared` plus the sum over rows of
log Z_n / alpha, maximised. Cavities have lost the share epsilon = alpha / N of the sites.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from qpruntime.deep.layers import Layer, Shared, at_normals, at_points, shared

__all__ = ["Batch", "Evidence", "energy", "forward", "moments"]

Layers = tuple[Layer, ...]


class Batch(NamedTuple):
    """Rows: X (n, D), y (n,), weight (n,)."""

    X: Any
    y: Any
    weight: Any


class Evidence(Protocol):
    """log Z_n of rows, for p(y | f)^power under f ~ N(mean, variance)."""

    def __call__(
        self, mean: jax.Array, variance: jax.Array, y: jax.Array, log_noise: jax.Array
    ) -> jax.Array:
        """Return (n,) from four arrays of (n,), the last a number."""


def forward(
    layers: Layers, known: list[Shared], X: jax.Array, dtype: Any = None
) -> list[tuple[jax.Array, jax.Array]]:
    """Means and variances (n, Q) of every layer's outputs, without their noise."""
    found = [at_points(layers[0], known[0], X)]
    for below, layer, one in zip(layers[:-1], layers[1:], known[1:], strict=True):
        mean, variance = found[-1]
        variance = variance + jnp.exp(below.log_noise)
        found.append(at_normals(layer, one, mean, variance, dtype))
    return found


def moments(layers: Layers, X: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """`forward` through the approximate posterior itself."""
    return forward(layers, shared(layers, 0.0)[0], X)


def energy(
    layers: Layers,
    batch: Batch,
    rows: Any,
    power: float,
    log_z: Evidence,
    dtype: Any = None,
    scale: Any = None,
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
    log_z : Evidence
    dtype : dtype, optional
        Of the exponentials of pairs of inducing inputs.
    scale : float, optional
        What the sum of log Z, and only that, is multiplied by: rows in all for each of the batch,
        which leaves no bias where weights differ. Else weights in all for each of the batch.
    """
    epsilon = power / rows
    known, of_layers = shared(layers, epsilon)
    mean, variance = forward(layers, known, batch.X, dtype)[-1]
    each = log_z(mean[:, 0], variance[:, 0], batch.y, layers[-1].log_noise)
    if scale is None:
        scale = rows / jnp.sum(batch.weight)
    return of_layers + scale / power * jnp.sum(batch.weight * each)
