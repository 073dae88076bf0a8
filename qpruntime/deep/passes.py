"""Rows to moments of a trained model: NumPy in, NumPy out, in blocks of one compiled size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qpruntime.arrays import Array
from qpruntime.deep.energy import Layers, moments
from qpruntime.deep.layers import at_points, shared
from qpruntime.execution.blas_threads import alone

__all__ = ["drawn", "normals"]

#: Rows of one pass; the last ones are filled up.
_BLOCK = 128

_moments = jax.jit(moments)


@jax.jit
def _drawn(layers: Layers, X: jax.Array, noise: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Moments of the last layer where every layer's inputs are draws of those below."""
    known, _ = shared(layers, 0.0)
    for layer, one, normal in zip(layers[:-1], known[:-1], noise, strict=True):
        mean, variance = at_points(layer, one, X)
        X = mean + jnp.sqrt(variance + jnp.exp(layer.log_noise)) * normal
    return at_points(layers[-1], known[-1], X)


@alone
def normals(layers: Layers, X: Array) -> list[tuple[Array, Array]]:
    """Means and variances (T, Q) of every layer's outputs, without their noise."""
    return _in_blocks(lambda rows: _moments(layers, rows), X)


@alone
def drawn(layers: Layers, X: Array, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Means and variances (T, count) of the function, given draws of all layers below.

    A row's draws do not know of those of other rows.
    """
    noise = [
        rng.standard_normal((len(X), count, len(layer.eta))).reshape(-1, len(layer.eta))
        for layer in layers[:-1]
    ]
    rows = np.repeat(X, count, axis=0)
    mean, variance = _in_blocks(lambda *parts: _drawn(layers, parts[0], parts[1:]), rows, *noise)
    return mean.reshape(len(X), count), variance.reshape(len(X), count)


def _in_blocks(function: Callable[..., Any], *columns: Array) -> Any:
    """Call a function with `_BLOCK` rows of the columns at a time, and join all that it returns."""
    rows = len(columns[0])
    parts = []
    with jax.enable_x64(True):
        for start in range(0, rows, _BLOCK):
            at = np.minimum(np.arange(start, start + _BLOCK), rows - 1)
            parts.append(jax.device_get(function(*(column[at] for column in columns))))
    return jax.tree.map(lambda *blocks: np.concatenate(blocks)[:rows], *parts)
