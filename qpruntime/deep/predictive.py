"""Predictions of deep models, in blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.deep.layers import Layers, LogNormaliser, at_points, forward, shared
from qpruntime.errors import InputError, QPError
from qpruntime.execution.threads import alone
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.density import quantiles, rate_std
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many

__all__ = ["ByKernel", "drawn", "evidence", "expected", "normals", "quantiles_of"]

# --- log Z of an observation under the last layer's normal: closed, or by a likelihood's kernel.


def evidence(likelihood: Likelihood | None, power: float) -> LogNormaliser:
    """Return log Z for p(y | f)^power; None is Gaussian noise of a variance that is learnt."""
    if likelihood is None:
        return partial(gaussian, power)
    if likelihood.name == "probit" and power == 1.0:
        return probit
    return ByKernel(likelihood, power)


def gaussian(
    power: float, mean: jax.Array, variance: jax.Array, y: jax.Array, log_noise: jax.Array
) -> jax.Array:
    """Log of the mean of N(y; f, noise)^power."""
    total = variance + jnp.exp(log_noise) / power
    log_normal = -0.5 * (math.log(2.0 * math.pi) + jnp.log(total) + (y - mean) ** 2 / total)
    constant = 0.5 * (1.0 - power) * (math.log(2.0 * math.pi) + log_noise) - 0.5 * math.log(power)
    return log_normal + constant


def probit(mean: jax.Array, variance: jax.Array, y: jax.Array, log_noise: jax.Array) -> jax.Array:
    """Log of the mean of Phi(y f)."""
    return log_ndtr(y * mean / jnp.sqrt(1.0 + variance))


class ByKernel:
    """log Z of any likelihood, by the projection kernels of EP, called back for a whole batch.

    Doubles cross as pairs of integers: JAX would round them where its double precision was only
    switched on in the thread that called.
    """

    def __init__(self, likelihood: Likelihood, power: float) -> None:
        self._projector, self._power = Projector(likelihood, "ep"), power
        self.failure: Exception | None = None
        self._log_z = jax.custom_jvp(lambda *given: self._called(given)[0])
        self._log_z.defjvp(self._moved)

    def __call__(
        self, mean: jax.Array, variance: jax.Array, y: jax.Array, log_noise: jax.Array
    ) -> jax.Array:
        """Return log Z of rows; the likelihood has no noise that is learnt."""
        return self._log_z(mean, variance, y)

    def _called(self, given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        halves = [jax.lax.bitcast_convert_type(part, jnp.uint32) for part in given]
        shape = jax.ShapeDtypeStruct((3, *halves[0].shape), jnp.uint32)
        halves_out = jax.pure_callback(self._tilted, shape, *halves)
        return tuple(jax.lax.bitcast_convert_type(halves_out, jnp.float64))

    def _moved(
        self, given: tuple[jax.Array, ...], moved: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        value, of_mean, of_variance = self._called(given)
        return value, of_mean * moved[0] + of_variance * moved[1]

    def _tilted(self, *halves: object) -> NDArray[np.uint32]:
        """Return log Z and its slopes in mean and variance; NaN where it fails, which is kept."""
        mean, variance, y = (np.array(half).view(np.float64)[:, 0] for half in halves)
        out = np.full((3, mean.size), np.nan)
        powers = None if self._power == 1.0 else np.full(mean.shape, self._power)
        projector = self._projector
        if np.isfinite(mean).all() and (variance > 0.0).all() and np.isfinite(variance).all():
            try:
                projected = project_many(
                    projector.likelihood, projector.source, mean, np.sqrt(variance), y, None, powers
                )
                first = (projected.mean - mean) / variance
                second = (variance - projected.std**2) / variance**2
                out[:] = projected.log_z, first, 0.5 * (first**2 - second)
            except QPError as error:
                self.failure = error
        return np.ascontiguousarray(out)[:, :, None].view(np.uint32)


# --- Observations given the last layer's normals: what is expected, and quantiles.


def expected(likelihood: Likelihood | None, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (T,) of the function, or of the rate where counts have one.

    The normals (T, S) of a point have equal weights.
    """
    rate = None if likelihood is None else likelihood.rate
    if rate is not None:
        spread = rate_std(means, variances, rate.name) ** 2
        means, variances = rate.mean_rate(means, variances), spread
    return means.mean(axis=1), np.sqrt(variances.mean(axis=1) + means.var(axis=1))


def quantiles_of(
    likelihood: Likelihood, mean: Array, variance: Array, q: Array
) -> Array | NDArray[np.int64]:
    """Quantiles (T, Q) of an observation whose latent values are N(mean, variance), both (T,)."""
    if likelihood.rate is not None:
        return quantiles(mean, variance, q, link=likelihood.rate.name)
    if likelihood.reach is not None:
        tail, side = np.minimum(q, 1.0 - q), np.sign(q - 0.5)
        reach = likelihood.reach(variance, tail, likelihood.theta)
        return np.asarray(mean[:, None] + side * reach)
    raise InputError(
        "quantiles of observations are known of Gaussian and Student-t noise and of Poisson "
        f"counts; with likelihood {likelihood.name!r} use latent, sample or predict_log_density"
    )


# --- Rows to moments of a trained model: NumPy in, NumPy out, in blocks of one compiled size.

#: Result of a pass: a tree of arrays with a row for each point.
T = TypeVar("T")
#: Rows of one pass; the last ones are filled up.
_BLOCK = 128

# Through the approximate posterior itself.
_moments = jax.jit(lambda layers, X: forward(layers, shared(layers, 0.0)[0], X))


@jax.jit
def _drawn(layers: Layers, X: jax.Array, noise: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Moments of the last layer where every layer's inputs are draws of those below."""
    known, _ = shared(layers, 0.0)
    for layer, shared_terms, normal in zip(layers[:-1], known[:-1], noise, strict=True):
        mean, variance = at_points(layer, shared_terms, X)
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


def _in_blocks(function: Callable[..., T], *columns: Array) -> T:
    """Call a function with `_BLOCK` rows of the columns at a time, and join all that it returns."""
    rows = len(columns[0])
    parts = []
    with jax.enable_x64(True):
        for start in range(0, rows, _BLOCK):
            at = np.minimum(np.arange(start, start + _BLOCK), rows - 1)
            parts.append(jax.device_get(function(*(column[at] for column in columns))))
    # JAX types trees as Any; this one has the structure of its parts.
    return cast("T", jax.tree.map(lambda *blocks: np.concatenate(blocks)[:rows], *parts))
