"""Links: how the rate of a Poisson count follows from the latent value f, and what it follows.

``"square"``: the rate is f^2. ``"exp"``: it is e^f. An exposure multiplies the rate; in either
link that makes f another latent value, slope f + shift, of the same likelihood.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.blocks import PointError
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.count_mixture import LogNormalRate, Rate, SquareRate
from qpruntime.validation import real

__all__ = ["LINKS", "Link", "exposures"]

# Products of numbers up to exp(_LARGEST) = 7e149 stay in double precision.
_LARGEST = 345.0
# Sums and squares of larger ones overflow; count in another unit.
_LARGEST_EXPOSURE = 1e100


class Link(ABC):
    """How the rate follows from f; latent values are normal of the mean and variance given."""

    #: Name of the likelihood in the registry.
    likelihood: str

    @abstractmethod
    def latent(self, rate: float) -> float:
        """Return the f of this rate, a positive number; of two the positive one."""

    @abstractmethod
    def spread(self, mean: float) -> float:
        """Return a standard deviation of f that makes rates vary by a factor of about 3."""

    @abstractmethod
    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        """Slope and shift that turn f into the latent value of exposure times the rate."""

    @abstractmethod
    def mean_rate(self, mean: Array, variance: Array) -> Array:
        """Return the mean of the rate."""

    @abstractmethod
    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Mean and scale of the gamma variable with mean and variance of the rate.

        Its scale is variance over mean, its shape mean over scale.
        """

    @abstractmethod
    def rate(self, mean: Array, variance: Array) -> Rate:
        """Return the distribution of the rate."""


class Square(Link):
    """Rate f^2."""

    likelihood = "poisson"

    def latent(self, rate: float) -> float:
        return math.sqrt(rate)

    def spread(self, mean: float) -> float:
        return 0.5 * abs(mean) or 1.0

    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        return np.sqrt(exposure), np.zeros_like(exposure)

    def mean_rate(self, mean: Array, variance: Array) -> Array:
        return mean**2 + variance

    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        rate = self.mean_rate(mean, variance)
        return rate, 2.0 * variance * (2.0 * mean**2 + variance) / rate

    def rate(self, mean: Array, variance: Array) -> Rate:
        return SquareRate(mean, np.sqrt(variance))


class Exponential(Link):
    """Rate e^f."""

    likelihood = "poisson-exp"

    def latent(self, rate: float) -> float:
        return math.log(rate)

    def spread(self, mean: float) -> float:
        return 1.0

    def exposed(self, exposure: Array) -> tuple[Array, Array]:
        return np.ones_like(exposure), np.log(exposure)

    def mean_rate(self, mean: Array, variance: Array) -> Array:
        log_rate = mean + 0.5 * variance
        if log_rate.max(initial=0.0) > 2.0 * _LARGEST:
            raise _beyond(mean, variance, int(np.argmax(log_rate)))
        return np.exp(log_rate)

    def gamma(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        extreme = np.maximum(np.abs(mean + 0.5 * variance), variance)
        if extreme.max(initial=0.0) > _LARGEST:
            raise _beyond(mean, variance, int(np.argmax(extreme)))
        rate = self.mean_rate(mean, variance)
        return rate, rate * np.expm1(variance)

    def rate(self, mean: Array, variance: Array) -> Rate:
        return LogNormalRate(mean, np.sqrt(variance))


def _beyond(mean: Array, variance: Array, i: int) -> PointError:
    m, v = (float(np.ravel(a)[i]) for a in np.broadcast_arrays(mean, variance))
    return PointError(
        i,
        f"has log rate {m:.3g} of standard deviation {math.sqrt(v):.3g}: the mean of its "
        "rate is beyond double precision; predict further inside the data or bound the kernel's "
        "variance",
    )


LINKS: dict[str, Link] = {"square": Square(), "exp": Exponential()}


def exposures(exposure: ArrayLike | None, n: int) -> Array:
    """Validate exposures and return one for each of `n` points."""
    if exposure is None:
        return np.ones(n)
    values = real(exposure, "exposure")
    if values.shape not in ((), (n,)):
        raise InputError(
            f"exposure must be a number or have shape ({n},), one per point; got {values.shape}"
        )
    wrong = ~((values > 0.0) & (values <= _LARGEST_EXPOSURE))
    if wrong.any():
        raise InputError(
            f"exposure must be positive and at most {_LARGEST_EXPOSURE:g}, got "
            f"{values[wrong].flat[0]:g}"
        )
    return np.full(n, values) if values.ndim == 0 else values.copy()
