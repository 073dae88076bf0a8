"""Predictive distributions of y where nothing but log p(y|f) is known: a user's own likelihood.

The predictive density of y is the normaliser Z of the likelihood under f ~ N(mean, variance). It is
summed over the values that y can have, or integrated over y by Gauss's rule on panels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.estimators.predictive.density import log_density
from qpruntime.likelihoods import Likelihood

__all__ = ["Places", "density_mean_and_variance", "density_quantiles", "places_of"]

# Nodes of a panel, panels at first and at most, and what the mass may be off by.
_NODES, _FEWEST, _MOST, _CLOSE = 10, 12, 768, 1e-8
# Reach of the coordinate v: y = centre + unit sinh(v), low + unit e^v, or a logistic function of v.
_ENDS = {"line": (-16.0, 16.0), "half": (-45.0, 30.0), "span": (-40.0, 40.0)}
_HALVINGS = 60
_X, _W = legendre.leggauss(_NODES)
# Coefficients of the polynomial through the nodes, from its values.
_FIT = np.linalg.inv(legendre.legvander(_X, _NODES - 1))


class Places(NamedTuple):
    """Where y can be: some values, or an interval with the unit and centre of those observed."""

    values: Array | None
    low: float
    high: float
    centre: float
    unit: float

    @property
    def shape(self) -> str:
        """How the interval ends."""
        if self.low == -np.inf and self.high == np.inf:
            return "line"
        return "span" if self.low > -np.inf and self.high < np.inf else "half"

    def at(self, v: Array) -> tuple[Array, Array]:
        """Return y of the coordinate v, and its derivative."""
        if self.shape == "line":
            return self.centre + self.unit * np.sinh(v), self.unit * np.cosh(v)
        if self.shape == "half":
            up = self.unit * np.exp(v)
            return (self.low + up if self.low > -np.inf else self.high - up), up
        share, width = 1.0 / (1.0 + np.exp(-v)), self.high - self.low
        return self.low + width * share, width * share / (1.0 + np.exp(v))


def places_of(likelihood: Likelihood, y: Array) -> Places:
    """Return where observations can be, as the likelihood was made and these were observed."""
    allowed = likelihood.validate
    values = getattr(allowed, "values", None)
    low, high = getattr(allowed, "low", -np.inf), getattr(allowed, "high", np.inf)
    centre = float(np.median(y))
    unit = float(np.std(y)) or abs(centre) or 1.0
    if (low > -np.inf) != (high < np.inf):
        unit = abs(centre - (low if low > -np.inf else high)) or unit
    known = None if values is None else np.array(values, dtype=float)
    return Places(known, float(low), float(high), centre, unit)


def density_mean_and_variance(
    likelihood: Likelihood, places: Places, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Mean and variance of an observation, each (T,)."""
    found = [_of_one(likelihood, places, m, v) for m, v in zip(mean, variance, strict=True)]
    return np.array([one.mean for one in found]), np.array([one.variance for one in found])


def density_quantiles(
    likelihood: Likelihood, places: Places, mean: Array, variance: Array, q: Array
) -> Array:
    """Quantiles of an observation, shape (T, Q)."""
    found = [_of_one(likelihood, places, m, v) for m, v in zip(mean, variance, strict=True)]
    return np.array([one.quantiles(q) for one in found]).reshape(mean.size, q.size)


class _Sums:
    """The predictive distribution at one point, over values."""

    def __init__(self, values: Array, mass: Array) -> None:
        self.values, self.mass = values, mass
        self.mean = float(values @ mass)
        self.variance = float((values - self.mean) ** 2 @ mass)

    def quantiles(self, q: Array) -> Array:
        order = np.searchsorted(np.cumsum(self.mass), q * (1.0 - 1e-15))
        return self.values[np.minimum(order, self.values.size - 1)]


class _Panels:
    """The predictive distribution at one point, over panels of the coordinate v."""

    def __init__(self, places: Places, edges: Array, density: Array) -> None:
        self.places, self.edges = places, edges
        y, slope = places.at(_nodes(edges))
        half = 0.5 * np.diff(edges)[:, None]
        mass = density * slope * half
        total = float((mass @ _W).sum())
        self.mean = float(((mass * y) @ _W).sum()) / total
        self.variance = float(((mass * (y - self.mean) ** 2) @ _W).sum()) / total
        primitive = legendre.legint((mass / total) @ _FIT.T, axis=1, lbnd=-1.0)
        self.primitive = primitive
        self.below = np.concatenate([[0.0], np.cumsum(primitive.sum(axis=1))])

    def quantiles(self, q: Array) -> Array:
        panel = np.clip(np.searchsorted(self.below, q) - 1, 0, len(self.primitive) - 1)
        low, high = -np.ones(q.size), np.ones(q.size)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            value = legendre.legval(middle, self.primitive[panel].T, tensor=False)
            short = self.below[panel] + value < q
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        left, right = self.edges[panel], self.edges[panel + 1]
        return self.places.at(left + (right - left) * 0.5 * (1.0 + low))[0]


def _nodes(edges: Array) -> Array:
    return edges[:-1, None] + np.diff(edges)[:, None] * 0.5 * (1.0 + _X)


def _of_one(
    likelihood: Likelihood, places: Places, mean: float, variance: float
) -> _Sums | _Panels:
    m, v = np.array([mean]), np.array([variance])
    if places.values is not None:
        mass = np.exp(log_density(likelihood, m, v, places.values))
        _complete(likelihood, float(mass.sum()), 1e-6)
        return _Sums(places.values, mass / mass.sum())
    count, low, high = _FEWEST, *_ENDS[places.shape]
    before = np.inf
    while True:
        edges = np.linspace(low, high, count + 1)
        y, slope = places.at(_nodes(edges))
        density = np.exp(log_density(likelihood, m, v, y.reshape(-1))).reshape(y.shape)
        total = float(((density * slope) @ _W) @ (0.5 * np.diff(edges)))
        if abs(total - before) <= _CLOSE * total or 2 * count > _MOST:
            break
        before, count = total, 2 * count
    _complete(likelihood, total, 1e-5)
    return _Panels(places, edges, density)


def _complete(likelihood: Likelihood, total: float, off: float) -> None:
    """Raise if the density is none of y: quantiles and means would be those of something else."""
    if not abs(total - 1.0) <= off:
        raise NumericalError(
            f"the density of {likelihood.name!r} integrates to {total:.6g} over y, not to 1: "
            "quantiles and means of y need the constant of log_prob, and the y there are by "
            "outcomes="
        )
