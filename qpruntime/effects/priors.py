"""Priors of hyper-parameters, as log densities of theta with their slopes.

Penalised complexity (Simpson et al. 2017): a deviation is exponential, and a range in the plane
is such that its inverse is (Fuglstad et al. 2019). theta has logarithms, whose Jacobian is part of
these densities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from qpruntime.errors import InputError
from qpruntime.validation import number, shown

__all__ = ["NormalPrior", "deviation_prior", "log_density_of_correlation", "log_density_of_share"]

#: P(sd > 3) = .01.
DEVIATION = (3.0, 0.01)


@dataclass(frozen=True)
class Tail:
    """Prior of t = log of a number s that is exponential, or whose inverse is.

    Attributes
    ----------
    rate : float
        Of the exponential distribution.
    sign : float
        +1 for s, -1 for 1/s.
    """

    rate: float
    sign: float

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        reach = self.rate * math.exp(self.sign * t)
        return math.log(self.rate) + self.sign * t - reach, self.sign * (1.0 - reach)


@dataclass(frozen=True)
class NormalPrior:
    """A normal density of theta, of mean 0."""

    std: float

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        z = t / self.std
        return -0.5 * z * z - math.log(self.std * math.sqrt(2.0 * math.pi)), -z / self.std


def _pair(value: Any, name: str) -> tuple[float, float]:
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be a pair (limit, probability), got {shown(value)}"
        ) from error
    limit = number(first, f"the limit of {name}", above=0.0)
    probability = number(second, f"the probability of {name}", above=0.0, most=0.999)
    return limit, probability


def deviation_prior(value: object = DEVIATION, name: str = "prior") -> Tail:
    """Prior of the logarithm of a standard deviation: P(sd > limit) = probability."""
    limit, probability = _pair(value, name)
    return Tail(-math.log(probability) / limit, 1.0)


def range_prior(value: object, name: str = "prior_range") -> Tail:
    """Prior of the logarithm of a range in the plane: P(range < limit) = probability."""
    limit, probability = _pair(value, name)
    return Tail(-math.log(probability) * limit, -1.0)


def log_density_of_correlation(t: float, power: float = 1.0) -> tuple[float, float]:
    """Log density of t = atanh(rho), not normalised, and its slope.

    The density of rho is proportional to (1 - rho^2)^(power - 1): power 1 is uniform in rho.
    """
    rho = math.tanh(t)
    # log(1 - tanh^2) = -2 log cosh
    log_cosh = abs(t) + math.log1p(math.exp(-2.0 * abs(t))) - math.log(2.0)
    return -2.0 * power * log_cosh, -2.0 * power * rho


def log_density_of_share(t: float) -> tuple[float, float]:
    """Log density of t = logit(phi), phi uniform between 0 and 1, and its slope."""
    size = abs(t)
    value = -size - 2.0 * math.log1p(math.exp(-size))
    return value, -math.tanh(0.5 * t)
