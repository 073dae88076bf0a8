"""What a likelihood of counts may declare for predictions: how the rate follows from f.

Given f a count is Poisson of rate g(f). An exposure multiplies the rate; that makes f another
latent value, slope f + shift, of the same likelihood.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = ["CUT", "STEP", "Rate", "RateLink", "normal_rule"]

#: Densities are left out where they are below exp(-CUT) = 4e-18 of their largest value.
CUT = 40.0
#: Of the trapezoid rule for a normal variable, in standard deviations, and for the logarithm of a
#: gamma variable of shape 1. Errors are exp(-pi^2/step) for the densities with the heaviest
#: spectrum, that of the latter.
STEP = 0.25


@dataclass(frozen=True)
class Rate(ABC):
    """Distributions of T rates; the fields of subclasses are arrays of shape (T,)."""

    def __getitem__(self, index: Any) -> Rate:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @abstractmethod
    def tail(self, g: Array, upper: bool) -> Array:
        """P(rate < g), or P(rate > g), for g of shape (T, n)."""

    @abstractmethod
    def nodes(self) -> tuple[Array, Array]:
        """Rates, shape (T, n), and weights that sum to 1, for expectations."""

    @abstractmethod
    def narrower(self, shape: Array) -> NDArray[np.bool_]:
        """Whether the rates vary less than gamma variables of this shape, where these are."""

    @abstractmethod
    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of two rates beyond which there is less than exp(-low) and exp(-high)."""


class RateLink(ABC):
    """How the rate follows from f; latent values are normal of the mean and variance given."""

    #: What estimators call the link.
    name: ClassVar[str]
    #: Whether f and -f have the same rate, so that a prior mean of 0 leaves the sign open.
    two_signs: ClassVar[bool] = False
    #: Whether the rate has tails like a gamma variable, which then stands for it in the most
    #: probable count (paper, Appendix H).
    like_gamma: ClassVar[bool] = False

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
    def distribution(self, mean: Array, variance: Array) -> Rate:
        """Return the distribution of the rate."""


def normal_rule(mean: Array, std: Array) -> tuple[Array, Array]:
    """Nodes, shape (T, n), and weights of the trapezoid rule for normal variables."""
    reach = np.sqrt(2.0 * CUT)
    z = np.linspace(-reach, reach, 2 * int(np.ceil(reach / STEP)) + 1)
    weights = np.exp(-0.5 * z * z)
    return mean[:, None] + std[:, None] * z, weights / weights.sum()
