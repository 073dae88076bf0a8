"""Predictive distributions of observations of a fitted likelihood, however it is known.

By the distribution of y given f that SciPy has, or by the density alone: `mixture`, `by_density`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.by_density import (
    Places,
    density_mean_and_variance,
    density_quantiles,
    places_of,
)
from qpruntime.estimators.predictive.density import wide
from qpruntime.estimators.predictive.draws import observed
from qpruntime.estimators.predictive.mixture import cdf, mean_and_variance, quantiles
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.likelihoods import Likelihood

__all__ = ["PLAIN", "Predicted", "Rows"]

_HALVINGS = 60


class Rows(NamedTuple):
    """What else rows have: what is added to their latent values, and trials, each (T,) or None."""

    shift: Array | float = 0.0
    trials: Array | None = None

    def columns(self, count: int) -> tuple[Array, ...]:
        """Both as arrays, for blocks of rows; trials are 0 where there are none."""
        trials = np.zeros(count) if self.trials is None else self.trials
        return np.broadcast_to(self.shift, (count,)), trials

    @classmethod
    def of(cls, shift: Array, trials: Array) -> Rows:
        """Return what these columns say."""
        return cls(shift, trials if trials.all() else None)


PLAIN = Rows()


@dataclass(frozen=True)
class Predicted:
    """Distributions of y under latent values.

    Attributes
    ----------
    likelihood : Likelihood
    places : Places or None
        Where y can be, if only the density is known.
    """

    likelihood: Likelihood
    places: Places | None

    @classmethod
    def of(cls, likelihood: Likelihood, y: Array) -> Predicted:
        """Return those of a likelihood whose observations were these."""
        known = likelihood.given is not None
        return cls(likelihood, None if known else places_of(likelihood, y))

    @staticmethod
    def discrete(likelihood: Likelihood) -> bool:
        """Whether p(y|f) is a probability."""
        if likelihood.given is None:
            return getattr(likelihood.validate, "values", None) is not None
        own = likelihood.given(np.zeros(1), likelihood.theta)
        return not hasattr(getattr(own, "dist", own), "pdf")

    def mean_and_variance(
        self, mean: Array, variance: Array, rows: Rows = PLAIN
    ) -> tuple[Array, Array]:
        """Mean and variance of an observation, each (T,), for f ~ N(mean, variance)."""
        mean = mean + rows.shift
        if self.places is None:
            return mean_and_variance(self.likelihood, mean, wide(variance), rows.trials)
        return density_mean_and_variance(self.likelihood, self.places, mean, wide(variance))

    def quantiles(self, mean: Array, variance: Array, q: Array, rows: Rows = PLAIN) -> Array:
        """Quantiles of an observation, shape (T, Q)."""
        mean = mean + rows.shift
        if self.places is None:
            return quantiles(self.likelihood, mean, wide(variance), q, rows.trials)
        return density_quantiles(self.likelihood, self.places, mean, wide(variance), q)

    def tail(
        self, mean: Array, variance: Array, y: Array, upper: bool, rows: Rows = PLAIN
    ) -> Array:
        """P(Y <= y), or P(Y > y), at as many y as latent values, (T,)."""
        if self.places is not None:
            self._given(rows)
        return cdf(self.likelihood, mean + rows.shift, wide(variance), y, upper, rows.trials)

    def draw(self, f: Array, rng: np.random.Generator, rows: Rows = PLAIN) -> Array:
        """One observation for each latent value, in their shape (n, T)."""
        own = self.likelihood
        f = f + rows.shift
        if own.given is not None:
            return observed(own, f, rng, rows.trials)
        assert self.places is not None
        none = wide(np.zeros(1))
        levels = rng.uniform(size=(f.size, 1))
        pairs = zip(f.reshape(-1, 1), levels, strict=True)
        found = [density_quantiles(own, self.places, one, none, level) for one, level in pairs]
        return np.array(found).reshape(f.shape)

    def corrected_moments(self, found: Sequence[Marginals], rows: Rows = PLAIN) -> Array:
        """Mean and variance of an observation under corrected marginals, shape (T, 2)."""
        given = self._given(rows)
        marginals = found[0]
        mean = marginals.expect(lambda f: given(f).mean())
        spread = marginals.expect(lambda f: given(f).var() + (given(f).mean() - mean[:, None]) ** 2)
        return np.column_stack([mean, spread])

    def corrected_quantiles(
        self, found: Sequence[Marginals], q: Array, rows: Rows = PLAIN
    ) -> Array:
        """Quantiles of an observation under corrected marginals, shape (T, Q), by bisection."""
        given, marginals = self._given(rows), found[0]
        columns = []
        for level in q:
            ends = given(marginals.densities.points).ppf(level)
            low, high = ends.min(axis=1), ends.max(axis=1)
            whole = self.discrete(self.likelihood)
            low = low - 1.0 if whole else low
            for _ in range(_HALVINGS):
                middle = 0.5 * (low + high)
                at = np.floor(middle) if whole else middle
                mass = marginals.expect(partial(_mass, given, at))
                low, high = np.where(mass < level, at, low), np.where(mass < level, high, at)
                if whole and (high - low <= 1.0).all():
                    break
            columns.append(high)
        return np.column_stack(columns)

    def _given(self, rows: Rows) -> Callable[[Array], Any]:
        """Return the distribution of y for latent values (T, n)."""
        own = self.likelihood
        if own.given is None:
            raise InputError(
                f"likelihood {own.name!r} is known by its density alone: with a correction, or "
                "hyper-parameters integrated, use predict_log_density"
            )
        given: Any = own.given
        shift = rows.shift if np.ndim(rows.shift) == 0 else np.reshape(rows.shift, (-1, 1))
        trials = () if rows.trials is None else (rows.trials[:, None],)
        return lambda f: given(f + shift, own.theta, *trials)


def _mass(given: Callable[[Array], Any], y: Array, f: Array) -> Array:
    found: Array = given(f).cdf(y[:, None])
    return found
