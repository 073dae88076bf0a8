"""Predictive distributions of observations whose latent value f is normal.

Every likelihood has the normaliser Z(mean, std, y). Poisson counts, for the links of
`qpruntime.predictive.counts`, also have quantiles and a most probable count; ``"exact"`` is the
distribution itself, ``"gamma"`` replaces the rate by a gamma variable of its mean and variance,
which makes the count negative binomial (paper, Appendix H). If `dispersion` r is finite, the count
is negative binomial given f: the rate is that of the link times a gamma variable of mean 1 and
variance 1/r. Exposure has been applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from qpruntime._memory import PointError
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.errors import NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import Rate
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts
from qpruntime.predictive.counts import (
    LINKS,
    DispersedRate,
    GammaRate,
    Tail,
    count_component,
    count_tail,
    counted,
    dispersed_tail,
    log_pmf_many,
)
from qpruntime.predictive.inversion import Component, first_integers, mixture_quantiles
from qpruntime.predictive.mixtures import Mixture
from qpruntime.projection.projector import project_arrays
from qpruntime.projection.table import Table

__all__ = [
    "PREDICTIVES",
    "RATE_LIKELIHOODS",
    "OutcomeSupport",
    "count_distribution",
    "density_mean_and_variance",
    "density_quantiles",
    "log_density",
    "log_pmf",
    "mixture_log_density",
    "mode",
    "places_of",
    "quantiles",
    "rate_std",
    "whole_counts",
    "wide",
]

Counts = NDArray[np.int64]

PREDICTIVES = ("exact", "gamma")
#: Likelihoods of counts whose mean is e^f, which `count_distribution` takes by their dispersion.
RATE_LIKELIHOODS = ("poisson-exp", "negative-binomial")

# A latent variance of 0 comes from rounding; the formulas want a width.
_LEAST_VARIANCE = 1e-30
# Larger floats are not every whole number.
_LARGEST_MODE = 2.0**53


def log_density(
    likelihood: str | Likelihood | None,
    mean: Array,
    variance: Array,
    y: ArrayLike,
    table: Table | None = None,
) -> Array:
    """Log predictive density of observations `y` of latent values N(mean, variance).

    The normaliser of the likelihood; arguments broadcast. If the code of the likelihood is missing,
    a table of surfaces gives the normalisers.
    """
    method = "wp" if table is not None and table.metadata.projection is not None else "ep"
    return project_arrays(likelihood, mean, np.sqrt(wide(variance)), y, method, table).log_z


def mixture_log_density(likelihoods: Sequence[Likelihood], mixture: Mixture, y: Array) -> Array:
    """Return log densities (R,) of observations, one a row, with a likelihood for each normal."""
    densities = []
    for likelihood, mean, variance in zip(likelihoods, *mixture[:2], strict=True):
        observing, numbers = likelihood.observing(y)
        densities.append(log_density(observing, mean, variance, numbers))
    return np.asarray(logsumexp(np.array(densities), axis=0, b=mixture.weights[:, None]))


def log_pmf(
    mean: Array,
    variance: Array,
    y: ArrayLike,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Array:
    """Log probability of the counts `y` for latent values N(mean, variance); they broadcast."""
    if _exact(predictive):
        return log_density(counted(link, dispersion), mean, variance, y)
    arrays = np.broadcast_arrays(*_gamma(mean, variance, link, dispersion), counts(y))
    out = np.empty(arrays[0].shape)
    log_pmf_many(*(np.array(a, dtype=float).reshape(-1) for a in arrays), out.reshape(-1))
    return out


def _gamma(mean: Array, variance: Array, link: str, dispersion: float) -> tuple[Array, Array]:
    """Mean and scale, which is variance over mean, of the gamma variable in place of the rate."""
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    return rate, scale + (scale + rate) / dispersion


def mode(
    mean: Array, variance: Array, link: str = "square", dispersion: float = math.inf
) -> Counts:
    """Most probable counts, shape (T,).

    The square link has the mode of the negative binomial, floor(c (k - 1)) if k > 1 else 0 for
    shape k and scale c of the rate, the paper's point prediction (Appendix H). No gamma
    variable has the tails of e^f, so links like the exponential one take the mode of the exact
    predictive.

    Raises
    ------
    NumericalError
        If a count is larger than a whole number can be, or the exact one than `LARGEST_COUNT`.
    """
    if not LINKS[link].like_gamma:
        return _exact_mode(mean, variance, link, dispersion)
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    count = np.floor(np.maximum(rate - scale, 0.0))
    if not (count <= _LARGEST_MODE).all():
        raise NumericalError(
            f"the most probable count is {count.max():g}, beyond what a whole number can hold; "
            "lower the exposure"
        )
    return count.astype(np.int64)


def _exact_mode(mean: Array, variance: Array, link: str, dispersion: float) -> Counts:
    """Return where the pmf stops rising; for a rate with one peak it has one (Holgate 1970)."""

    def falling(rows: NDArray[np.intp], y: Counts) -> NDArray[np.bool_]:
        now, then = (
            log_pmf(mean[rows], variance[rows], y + k, link=link, dispersion=dispersion)
            for k in (0, 1)
        )
        return np.asarray(then <= now)

    last = first_integers(falling, np.full(mean.size, -1), np.full(mean.size, LARGEST_COUNT))
    if (last == LARGEST_COUNT).any():
        raise _too_large(mean, variance, int(np.argmax(last)))
    return last


def quantiles(
    mean: Array,
    variance: Array,
    q: Array,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Counts:
    """Smallest counts y with P(Y <= y) >= q, shape (T, len(q)) for T latent values.

    Raises
    ------
    NumericalError
        If one is beyond `LARGEST_COUNT`.
    """
    distribution = count_distribution(mean, variance, q, predictive, link, dispersion)
    return whole_counts(mixture_quantiles([distribution], np.ones(1), q, True), mean, variance)


def count_distribution(
    mean: Array,
    variance: Array,
    q: Array,
    predictive: str = "exact",
    link: str = "square",
    dispersion: float = math.inf,
) -> Component:
    """Return the distribution of counts for latent values N(mean, variance) as mixtures take it."""
    rate, tail = _rates(mean, variance, predictive, link, dispersion)
    return count_component(rate, tail, q, LARGEST_COUNT)


def whole_counts(quantiles: Array, mean: Array, variance: Array) -> Counts:
    """Return quantiles (T, Q) as integers; `NumericalError` if one is beyond `LARGEST_COUNT`."""
    if (quantiles > LARGEST_COUNT).any():
        raise _too_large(mean, variance, int(np.argmax(quantiles.max(axis=1))))
    return quantiles.astype(np.int64)


def _rates(
    mean: Array, variance: Array, predictive: str, link: str, dispersion: float
) -> tuple[Rate, Tail]:
    """Distributions of rates, and what has the tails of their counts."""
    if not _exact(predictive):
        average, scale = _gamma(mean, variance, link, dispersion)
        return GammaRate(average / scale, scale), count_tail
    if dispersion == math.inf:
        return LINKS[link].distribution(mean, wide(variance)), count_tail
    std = np.sqrt(wide(variance))
    return DispersedRate(mean, std, np.full(mean.size, dispersion)), dispersed_tail


def rate_std(mean: Array, variance: Array, link: str = "square") -> Array:
    """Return the standard deviation of the rate (T,); its count adds a variance of its mean."""
    rate, scale = LINKS[link].gamma(mean, wide(variance))
    return np.sqrt(rate) * np.sqrt(scale)


def wide(variance: Array) -> Array:
    """Return the variance, or the least one that the formulas take."""
    return np.maximum(variance, _LEAST_VARIANCE)


def _exact(predictive: str) -> bool:
    return choice(predictive, "predictive", PREDICTIVES) == "exact"


def _too_large(mean: Array, variance: Array, i: int) -> PointError:
    return PointError(
        i,
        f"has latent mean {mean[i]:.3g} and standard deviation "
        f"{math.sqrt(variance[i]):.3g}: its counts reach beyond {LARGEST_COUNT}; predict further "
        "inside the data or for a smaller exposure",
    )


# --- Predictive distributions of a log density alone
#
# The predictive density of y is the normaliser Z of the likelihood under f ~ N(mean, variance). It
# is summed over the values that y can have, or integrated over y by Gauss's rule on panels.

# Nodes of a panel, panels at first and at most, and what the mass may be off by.
_NODES, _FEWEST, _MOST, _CLOSE = 10, 12, 768, 1e-8
# Reach of the coordinate v: y = centre + unit sinh(v), low + unit e^v, or a logistic function of v.
_ENDS = {"line": (-16.0, 16.0), "half": (-45.0, 30.0), "span": (-40.0, 40.0)}
_HALVINGS = 60
# Reaches are narrowed by this factor, down to this share.
_NARROWER, _LEAST_REACH = 0.75, 0.1
_X, _W = legendre.leggauss(_NODES)
# Coefficients of the polynomial through the nodes, from its values.
_FIT = np.linalg.inv(legendre.legvander(_X, _NODES - 1))


@restorable("places/1")
class OutcomeSupport(NamedTuple):
    """Support of y: some values, or an interval with the unit and centre of those observed."""

    values: Array | None
    low: float
    high: float
    centre: float
    unit: float

    @property
    def shape(self) -> str:
        """Kind of each end of the interval."""
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


def places_of(likelihood: Likelihood, y: Array) -> OutcomeSupport:
    """Return where observations can be, as the likelihood was made and these were observed."""
    allowed = likelihood.validate
    values = getattr(allowed, "values", None)
    low, high = getattr(allowed, "low", -np.inf), getattr(allowed, "high", np.inf)
    centre = float(np.median(y))
    unit = float(np.std(y)) or abs(centre) or 1.0
    if (low > -np.inf) != (high < np.inf):
        unit = abs(centre - (low if low > -np.inf else high)) or unit
    known = None if values is None else np.array(values, dtype=float)
    return OutcomeSupport(known, float(low), float(high), centre, unit)


def density_mean_and_variance(
    likelihood: Likelihood, places: OutcomeSupport, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Mean and variance of an observation, each (T,)."""
    densities = [_of_one(likelihood, places, m, v) for m, v in zip(mean, variance, strict=True)]
    return np.array([density.mean for density in densities]), np.array(
        [density.variance for density in densities]
    )


def density_quantiles(
    likelihood: Likelihood, places: OutcomeSupport, mean: Array, variance: Array, q: Array
) -> Array:
    """Quantiles of an observation, shape (T, Q)."""
    densities = [_of_one(likelihood, places, m, v) for m, v in zip(mean, variance, strict=True)]
    return np.array([density.quantiles(q) for density in densities]).reshape(mean.size, q.size)


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

    def __init__(self, places: OutcomeSupport, edges: Array, density: Array) -> None:
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
        """Return the quantiles of probabilities q by bisection within a panel."""
        panel = np.clip(np.searchsorted(self.below, q) - 1, 0, len(self.primitive) - 1)
        low, high = -np.ones(q.size), np.ones(q.size)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            value = legendre.legval(middle, self.primitive[panel].T, tensor=False)
            short = self.below[panel] + value < q
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        lower, upper = self.edges[panel], self.edges[panel + 1]
        return self.places.at(lower + (upper - lower) * 0.5 * (1.0 + low))[0]


def _nodes(edges: Array) -> Array:
    return edges[:-1, None] + np.diff(edges)[:, None] * 0.5 * (1.0 + _X)


def _of_one(
    likelihood: Likelihood, places: OutcomeSupport, mean: float, variance: float
) -> _Sums | _Panels:
    m, v = np.array([mean]), np.array([variance])
    if places.values is not None:
        mass = np.exp(log_density(likelihood, m, v, places.values))
        _complete(likelihood, float(mass.sum()), 1e-6)
        return _Sums(places.values, mass / mass.sum())
    reach = 1.0
    while True:
        try:
            edges, density, total = _integrated(likelihood, places, m, v, reach)
            break
        except NumericalError:
            # Light tails cannot be integrated over f where y is far away; the mass within is
            # checked below.
            if reach < _LEAST_REACH:
                raise
            reach *= _NARROWER
    _complete(likelihood, total, 1e-5)
    return _Panels(places, edges, density)


def _integrated(
    likelihood: Likelihood, places: OutcomeSupport, m: Array, v: Array, reach: float
) -> tuple[Array, Array, float]:
    """Return edges of panels, densities at their nodes, and the mass, on a share of the line."""
    low, high = (reach * end for end in _ENDS[places.shape])
    count, before = _FEWEST, np.inf
    while True:
        edges = np.linspace(low, high, count + 1)
        y, slope = places.at(_nodes(edges))
        density = np.exp(log_density(likelihood, m, v, y.reshape(-1))).reshape(y.shape)
        total = float(((density * slope) @ _W) @ (0.5 * np.diff(edges)))
        if abs(total - before) <= _CLOSE * total or 2 * count > _MOST:
            return edges, density, total
        before, count = total, 2 * count


def _complete(likelihood: Likelihood, total: float, off: float) -> None:
    """Raise if the density is none of y: quantiles and means would be those of something else."""
    if not abs(total - 1.0) <= off:
        raise NumericalError(
            f"the density of {likelihood.name!r} integrates to {total:.6g} over y, not to 1: "
            "quantiles and means of y need the constant of log_prob, and the y there are by "
            "outcomes="
        )
