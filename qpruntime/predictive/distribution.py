"""Predictive distribution of a new observation: moments, quantiles and draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import ResponseDistribution
from qpruntime.predictive.density import (
    OutcomeSupport,
    density_mean_and_variance,
    density_quantiles,
    log_density,
    places_of,
    wide,
)
from qpruntime.predictive.expectation import (
    component,
    discrete,
    kind_of,
    mean_and_variance,
    quantiles,
)
from qpruntime.predictive.inversion import Component, mixture_quantiles
from qpruntime.projection.table import Table

__all__ = [
    "PLAIN",
    "Predicted",
    "RowOffsets",
    "log_probabilities",
    "observed",
    "quantile",
    "scores",
]

# --- Two classes
#
# The score is the normal quantile of p(+1). Probabilities near 1/2 are rounded to it, and the score
# of a latent mean of 1e-17 would be lost with them: there it is followed from where it can be seen
# down to the mean, along a straight line.

# Below this score the digits that probabilities have lost count; they are right to about 1e-12.
_NEAR = 1e-4
# Scores between which the line is drawn; its bend and its lost digits are below 1e-6 of it.
_LEAST, _AIM, _MOST = 1e-4, 1e-3, 1e-2
# A score at mean 0 that is smaller than this is 0 but for the errors of an integral, or of a table.
_NOISE, _TABLE_NOISE = 1e-10, 1e-6
# Steps of at most 1e8 from 1e-18 to _FAR, and a few to end between _LEAST and _MOST.
_STEPS, _FAR = 20, 1e30


def log_probabilities(
    likelihood: Likelihood | None, mean: Array, variance: Array, table: Table | None = None
) -> tuple[Array, Array]:
    """Log p(-1) and log p(+1) for latent values N(mean, variance), in their shape.

    If the likelihood is None, they are looked up in a table of surfaces.
    """
    known = _closed(likelihood, mean, variance)
    if known is not None:
        return log_ndtr(-known), log_ndtr(known)
    minus, plus = (log_density(likelihood, mean, variance, y, table) for y in (-1.0, 1.0))
    return minus, plus


def scores(
    likelihood: Likelihood | None, mean: Array, variance: Array, table: Table | None = None
) -> Array:
    """Return the normal quantile of p(+1) for latent values N(mean, variance), in their shape.

    Scores have the sign of p(+1) - p(-1) and the order of p(+1), even if both probabilities round
    to 1/2.
    """
    known = _closed(likelihood, mean, variance)
    if known is not None:
        return known
    z = quantile(*log_probabilities(likelihood, mean, variance, table))
    near = np.flatnonzero(np.abs(z) < _NEAR)
    if near.size:
        m, v, scores_near = (a.reshape(-1)[near] for a in (mean, variance, z))
        z.reshape(-1)[near] = _along_a_line(likelihood, m, v, scores_near, table)
    return z


def _closed(likelihood: Likelihood | None, mean: Array, variance: Array) -> Array | None:
    """Return the score where it has a closed form, else None."""
    if likelihood is None or likelihood.score is None:
        return None
    return likelihood.score(mean, wide(variance))


def quantile(minus: Array, plus: Array) -> Array:
    """Return the normal quantile of p(+1) from log probabilities; the smaller has all digits."""
    whole = np.logaddexp(minus, plus)
    smaller = ndtri_exp(np.minimum(minus, plus) - whole)
    return np.where(plus < minus, smaller, np.where(plus > minus, -smaller, 0.0))


def _along_a_line(
    likelihood: Likelihood | None, mean: Array, variance: Array, seen: Array, table: Table | None
) -> Array:
    """Scores of small means: the score at 0, and a slope from a mean where it is about 1e-3.

    The mean at which the line ends depends on the variance alone, so that scores of one variance
    keep their order. A mean further out than it keeps the score that was `seen`.
    """

    def at(mean: Array, some: NDArray[np.intp]) -> Array:
        return quantile(*log_probabilities(likelihood, mean, variance[some], table))

    everywhere = np.arange(mean.size)
    noise = _NOISE if likelihood is not None else _TABLE_NOISE
    try:
        origin = at(np.zeros(mean.size), everywhere)
        origin[np.abs(origin) <= noise] = 0.0
        out = seen.copy()
        reach = 1e-3 * np.sqrt(wide(variance))
        remaining = everywhere
        for _ in range(_STEPS):
            rise = at(reach[remaining], remaining) - origin[remaining]
            size = np.abs(rise)
            good = (size >= _LEAST) & (size <= _MOST)
            done, slope = remaining[good], rise[good] / reach[remaining[good]]
            inside = np.abs(mean[done]) <= reach[done]
            line = origin[done] + slope * mean[done]
            out[done] = np.where(inside, line, out[done])
            remaining, size = remaining[~good], size[~good]
            if not remaining.size:
                break
            reach[remaining] *= np.clip(_AIM / np.maximum(size, 1e-300), 1e-3, 1e8)
            remaining = remaining[reach[remaining] < _FAR]
    except (NumericalError, TableError):  # what ends before the score can be seen
        return seen
    return out


# --- Predictive distributions of any likelihood
#
# They use SciPy's distribution of y given f (`expectation`), or the density alone (`density`).


class RowOffsets(NamedTuple):
    """Offsets and trials of rows: what is added to their latent values, each (T,) or None."""

    shift: Array | float = 0.0
    trials: Array | None = None

    def columns(self, count: int) -> tuple[Array, ...]:
        """Both as arrays, for blocks of rows; trials are 0 where there are none."""
        trials = np.zeros(count) if self.trials is None else self.trials
        return np.broadcast_to(self.shift, (count,)), trials

    @classmethod
    def of(cls, shift: Array, trials: Array) -> RowOffsets:
        """Return what these columns say."""
        return cls(shift, trials if trials.all() else None)


PLAIN = RowOffsets()


@restorable("predicted/1")
@dataclass(frozen=True)
class Predicted:
    """Distributions of y under latent values.

    Attributes
    ----------
    likelihood : Likelihood
    places : OutcomeSupport or None
        Where y can be, if only the density is known.
    """

    likelihood: Likelihood
    places: OutcomeSupport | None

    @classmethod
    def of(cls, likelihood: Likelihood, y: Array) -> Predicted:
        """Return those of a likelihood whose observations were these."""
        known = likelihood.given is not None
        return cls(likelihood, None if known else places_of(likelihood, y))

    @staticmethod
    def discrete(likelihood: Likelihood) -> bool:
        """Decide whether p(y|f) is a probability."""
        if likelihood.given is None:
            return getattr(likelihood.validate, "values", None) is not None
        return discrete(likelihood)

    def mean_and_variance(
        self, mean: Array, variance: Array, rows: RowOffsets = PLAIN
    ) -> tuple[Array, Array]:
        """Mean and variance of an observation, each (T,), for f ~ N(mean, variance)."""
        mean = mean + rows.shift
        if self.places is None:
            return mean_and_variance(self.likelihood, mean, wide(variance), rows.trials)
        return density_mean_and_variance(self.likelihood, self.places, mean, wide(variance))

    def quantiles(self, mean: Array, variance: Array, q: Array, rows: RowOffsets = PLAIN) -> Array:
        """Quantiles of an observation, shape (T, Q)."""
        mean = mean + rows.shift
        if self.places is None:
            return quantiles(self.likelihood, mean, wide(variance), q, rows.trials)
        return density_quantiles(self.likelihood, self.places, mean, wide(variance), q)

    def draw(self, f: Array, rng: np.random.Generator, rows: RowOffsets = PLAIN) -> Array:
        """One observation for each latent value, in their shape (n, T)."""
        likelihood = self.likelihood
        f = f + rows.shift
        if likelihood.given is not None:
            return observed(likelihood, f, rng, rows.trials)
        assert self.places is not None
        none = wide(np.zeros(1))
        levels = rng.uniform(size=(f.size, 1))
        pairs = zip(f.reshape(-1, 1), levels, strict=True)
        draws = [
            density_quantiles(likelihood, self.places, latent, none, level)
            for latent, level in pairs
        ]
        return np.array(draws).reshape(f.shape)

    def corrected_moments(
        self, found: Sequence[CorrectedMarginals], rows: RowOffsets = PLAIN
    ) -> Array:
        """Mean and variance of an observation under corrected marginals, shape (T, 2)."""
        response = self._given(rows)
        marginals = found[0]
        mean = marginals.expect(lambda f: response(f).mean())
        spread = marginals.expect(
            lambda f: response(f).var() + (response(f).mean() - mean[:, None]) ** 2
        )
        return np.column_stack([mean, spread])

    def corrected_quantiles(
        self, found: Sequence[CorrectedMarginals], q: Array, rows: RowOffsets = PLAIN
    ) -> Array:
        """Quantiles of an observation under corrected marginals, shape (T, Q)."""
        response, marginals = self._given(rows), found[0]

        def cdf(at: NDArray[np.intp], y: Array, upper: bool) -> Array:
            row_response = self._given(rows, at)
            return marginals.expect(
                lambda f: (row_response(f).sf if upper else row_response(f).cdf)(y[:, None]), at
            )

        ends = [response(marginals.densities.points).ppf(level) for level in q]
        low = np.column_stack([end.min(axis=1) for end in ends])
        high = np.column_stack([end.max(axis=1) for end in ends])
        whole, transform = kind_of(self.likelihood)
        low = low - 1.0 if whole else low
        return mixture_quantiles([Component(cdf, low, high)], np.ones(1), q, whole, transform)

    def component(
        self, mean: Array, variance: Array, q: Array, rows: RowOffsets = PLAIN
    ) -> Component:
        """Return the distribution of an observation for f ~ N(mean, variance) in a mixture."""
        self._given(rows)
        return component(self.likelihood, mean + rows.shift, wide(variance), q, rows.trials)

    def _given(
        self, rows: RowOffsets, at: NDArray[np.intp] | slice = slice(None)
    ) -> Callable[[Array], ResponseDistribution]:
        """Return the distribution of y for latent values (T, n), those of some rows."""
        likelihood = self.likelihood
        if likelihood.given is None:
            raise InputError(
                f"likelihood {likelihood.name!r} is known by its density alone: with a correction, "
                "or hyper-parameters integrated, use predict_log_density"
            )
        response = likelihood.given
        shift = rows.shift if np.ndim(rows.shift) == 0 else np.reshape(rows.shift, (-1, 1))[at]
        trials = () if rows.trials is None else (rows.trials[at, None],)
        return lambda f: response(f + shift, likelihood.theta, *trials)


# --- Draws of observations


def observed(
    likelihood: Likelihood, f: Array, rng: np.random.Generator, trials: Array | None = None
) -> Array:
    """One observation for each latent value, in their shape, of a likelihood with `given`."""
    response = likelihood.given
    assert response is not None
    distribution = response(
        f, likelihood.theta, *(() if trials is None else (trials.astype(np.int64),))
    )
    draws = distribution.rvs(size=f.shape, random_state=rng)
    return np.asarray(draws, dtype=float)
