"""log Z of an observation under the last layer's normal: closed, or by a likelihood's kernel."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from qpruntime.deep.energy import Evidence
from qpruntime.errors import QPError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.kernel import project_many
from qpruntime.projection.projector import Projector

__all__ = ["ByKernel", "evidence"]


def evidence(likelihood: Likelihood | None, power: float) -> Evidence:
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
    left = 0.5 * (1.0 - power) * (math.log(2.0 * math.pi) + log_noise) - 0.5 * math.log(power)
    return log_normal + left


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
        found: jax.Array = self._log_z(mean, variance, y)
        return found

    def _called(self, given: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        halves = [jax.lax.bitcast_convert_type(part, jnp.uint32) for part in given]
        shape = jax.ShapeDtypeStruct((3, *halves[0].shape), jnp.uint32)
        found = jax.pure_callback(self._tilted, shape, *halves)
        return tuple(jax.lax.bitcast_convert_type(found, jnp.float64))

    def _moved(self, given: Any, moved: Any) -> tuple[jax.Array, jax.Array]:
        value, of_mean, of_variance = self._called(given)
        return value, of_mean * moved[0] + of_variance * moved[1]

    def _tilted(self, *halves: Any) -> Any:
        """log Z and its slopes in mean and variance; NaN where it fails, which is kept."""
        mean, variance, y = (np.array(half).view(np.float64)[:, 0] for half in halves)
        out = np.full((3, mean.size), np.nan)
        powers = None if self._power == 1.0 else np.full(mean.shape, self._power)
        own = self._projector
        if np.isfinite(mean).all() and (variance > 0.0).all() and np.isfinite(variance).all():
            try:
                found = project_many(
                    own.likelihood, own.source, mean, np.sqrt(variance), y, None, powers
                )
                first = (found.mean - mean) / variance
                second = (variance - found.std**2) / variance**2
                out[:] = found.log_z, first, 0.5 * (first**2 - second)
            except QPError as error:
                self.failure = error
        return np.ascontiguousarray(out)[:, :, None].view(np.uint32)
