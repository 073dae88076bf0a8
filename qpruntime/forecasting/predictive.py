"""Distributions of observations to come: mixtures over hyper-parameters, for every family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.forecasting.families import Scale
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.likelihoods.responses import LARGEST_COUNT
from qpruntime.predictive import expectation as of_likelihood
from qpruntime.predictive.counts import DispersedRate, count_tail, dispersed_tail
from qpruntime.predictive.density import log_density, wide
from qpruntime.predictive.distribution import Predicted
from qpruntime.predictive.mixtures import Mixture, normal_quantiles, smallest_counts

__all__ = ["Ahead"]

# Of log(g) for the gamma variable g that makes a normal Student's t: reach and step of its rule.
_T_STEP = 0.25
# Weight of a part of it that is left out.
_LIGHT = 1e-14
# Latent values anywhere where they can be: quantiles given them enclose those of the mixture.
_REACH = np.linspace(-8.5, 8.5, 35)


@dataclass(frozen=True, eq=False)
class Ahead:
    """Observations at T times.

    Attributes
    ----------
    mixture : Mixture
        Linear predictors, means and variances (J, T), with offsets and exposures.
    likelihoods : sequence of Likelihood, length J
    scale : Scale
    """

    mixture: Mixture
    likelihoods: Sequence[Likelihood]
    scale: Scale

    def only(self, rows: Any) -> Ahead:
        """Return those of some of the times."""
        own = self.mixture
        some = own._replace(mean=own.mean[:, rows], variance=own.variance[:, rows])
        return Ahead(some, self.likelihoods, self.scale)

    def mean(self) -> Array:
        """Expected observations, shape (T,)."""
        mean, variance, weights = self.mixture
        name = self.likelihoods[0].name
        if name in ("poisson-exp", "negative-binomial"):
            with np.errstate(over="ignore"):
                return np.asarray(weights @ np.exp(mean + 0.5 * variance))
        if name in ("gaussian", "student-t"):
            if not self.scale.log:
                return self.scale.back(weights @ mean)
            unit, each = self.scale.unit, []
            for one, m, v in zip(self.likelihoods, mean, variance, strict=True):
                total = v + one.parameters["scale"] ** 2
                each.append(np.exp(self.scale.centre + unit * m + 0.5 * unit**2 * total))
            return np.asarray(weights @ np.array(each))
        return np.asarray(weights @ np.array([first for first, _ in self._moments()]))

    def _moments(self) -> list[tuple[Array, Array]]:
        """Means and variances of what the likelihood sees, at each node."""
        mean, variance, _ = self.mixture
        nodes = zip(self.likelihoods, mean, variance, strict=True)
        return [_generic(one).mean_and_variance(m, v) for one, m, v in nodes]

    def residuals(self, y: Array) -> Array:
        """Observed less expected, in standard deviations given the linear predictor, shape (T,)."""
        z = self.scale.into(y)
        mean, variance, weights = self.mixture
        name = self.likelihoods[0].name
        if self.scale.whole and name in ("poisson-exp", "negative-binomial"):
            with np.errstate(over="ignore"):
                expected = np.asarray(weights @ np.exp(mean + 0.5 * variance))
            r = self.likelihoods[0].parameters.get("dispersion", np.inf)
            return np.asarray((z - expected) / np.sqrt(expected * (1.0 + expected / r)))
        if name in ("gaussian", "student-t"):
            return np.asarray((z - weights @ mean) / self.likelihoods[0].parameters["scale"])
        pairs = self._moments()
        centre = weights @ np.array([first for first, _ in pairs])
        return np.asarray((z - centre) / np.sqrt(weights @ np.array([v for _, v in pairs])))

    def log_density(self, y: Array) -> Array:
        """Log densities, of counts probabilities, of observations `y`, shape (T,)."""
        seen = self.likelihoods[0].validate(self.scale.into(y))
        mean, variance, weights = self.mixture
        each = []
        for one, m, v in zip(self.likelihoods, mean, variance, strict=True):
            own, numbers = one.observing(seen)
            each.append(log_density(own, m, wide(v), numbers))
        found = np.asarray(logsumexp(np.array(each), axis=0, b=weights[:, None]))
        return found + self.scale.log_slope(y)

    def quantiles(self, q: Array) -> Array:
        """Quantiles of levels (Q,), shape (T, Q); of counts the least with P(Y <= y) >= q."""
        name = self.likelihoods[0].name
        if name in ("gaussian", "student-t"):
            return self.scale.back(normal_quantiles(*self._normals(), q))
        if self.discrete:
            return self._counts(q)
        if len(self.likelihoods) > 1:
            raise InputError(
                f"quantiles of {name!r} are known at one node of hyper-parameters alone: fit with "
                'integrate="mode"'
            )
        mean, variance, _ = self.mixture
        return self.scale.back(_generic(self.likelihoods[0]).quantiles(mean[0], variance[0], q))

    @property
    def discrete(self) -> bool:
        """Whether observations are counts."""
        own = self.likelihoods[0]
        return own.name in ("poisson-exp", "negative-binomial") or Predicted.discrete(own)

    def _normals(self) -> tuple[Array, Array, Array]:
        """Observations as a mixture of normals: means, variances, weights."""
        means, variances, weights = [], [], []
        for one, m, v, w in zip(self.likelihoods, *self.mixture, strict=True):
            scale = one.parameters["scale"]
            ratio, share = np.ones(1), np.ones(1)
            if one.name == "student-t":
                ratio, share = _t_parts(one.parameters["nu"])
            for r, s in zip(ratio, share, strict=True):
                means.append(m)
                variances.append(v + scale**2 * r)
                weights.append(w * s)
        return np.array(means), np.array(variances), np.array(weights)

    def _counts(self, q: Array) -> Array:
        """Quantiles of counts; those given any linear predictor enclose them."""
        mean, variance, weights = self.mixture
        first, last = [], []
        for one, m, v in zip(self.likelihoods, mean, variance, strict=True):
            least, most = _ends(one, m, np.sqrt(wide(v)), q)
            first.append(least)
            last.append(most)
        low = np.maximum(np.min(first, axis=0), -1.0)
        high = np.maximum(np.max(last, axis=0), low + 1.0)

        def below(rows: NDArray[np.intp], y: Array) -> Array:
            found = np.zeros(y.size)
            for one, m, v, w in zip(self.likelihoods, mean, variance, weights, strict=True):
                found += w * _below(one, m[rows], wide(v[rows]), y)
            return found

        found = smallest_counts(below, low, high, q)
        found[found > LARGEST_COUNT] = np.inf
        return found


def _generic(likelihood: Likelihood) -> Predicted:
    if likelihood.given is None:
        raise InputError(
            f"likelihood {likelihood.name!r} is known by its density alone: a forecast needs the "
            "distribution of y, its given="
        )
    return Predicted(likelihood, None)


def _t_parts(nu: float) -> tuple[Array, Array]:
    """Student's t as normals of variances r with shares: 1/r is a gamma variable of mean 1."""
    u = np.arange(-90.0 / nu - 12.0 / np.sqrt(nu), 5.0 + 12.0 / np.sqrt(nu), _T_STEP)
    half = 0.5 * nu
    log_share = half * u - half * np.exp(u) + half * np.log(half) - gammaln(half)
    share = np.exp(log_share)
    kept = share > _LIGHT * share.max()
    return np.exp(-u[kept]), share[kept] / share[kept].sum()


def _ends(one: Likelihood, mean: Array, std: Array, q: Array) -> tuple[Array, Array]:
    """Whole numbers below and not below the quantiles of one node, each (T, Q)."""
    T, Q = mean.size, q.size
    top = LARGEST_COUNT + 1.0
    if one.name not in ("poisson-exp", "negative-binomial"):
        given = _generic(one).likelihood.given
        assert given is not None
        f = mean[:, None] + std[:, None] * _REACH
        low, high = np.empty((T, Q)), np.empty((T, Q))
        with np.errstate(all="ignore"):
            for k, level in enumerate(q):
                ends = np.asarray(given(f, one.theta).ppf(level), dtype=float)
                low[:, k], high[:, k] = ends.min(axis=1), ends.max(axis=1)
        return np.minimum(low, top) - 1.0, np.minimum(np.where(np.isnan(high), top, high), top)
    # Chernoff's bound, half of what is allowed to the rate and half to the count.
    m, s = np.repeat(mean, Q), np.repeat(std, Q)
    r = one.parameters.get("dispersion")
    rate = LogNormalRate(m, s) if r is None else DispersedRate(m, s, np.full(m.size, r))
    under, over = np.tile(-np.log(0.5 * q), T), np.tile(-np.log(0.5 * (1.0 - q)), T)
    with np.errstate(over="ignore"):
        first, last = rate.roots(under, over)
        first = np.floor(np.maximum(first - np.sqrt(under), 0.0) ** 2) - 1.0
        last = np.ceil((last + np.sqrt(over)) ** 2)
    return np.minimum(first, top - 1.0).reshape(T, Q), np.minimum(last, top).reshape(T, Q)


def _below(one: Likelihood, mean: Array, variance: Array, y: Array) -> Array:
    """P(Y <= y) of one node."""
    std = np.sqrt(variance)
    if one.name == "poisson-exp":
        return count_tail(LogNormalRate(mean, std), y, False)
    if one.name == "negative-binomial":
        shape = np.full(mean.size, one.parameters["dispersion"])
        return dispersed_tail(DispersedRate(mean, std, shape), y, False)
    if one.name == "zero-inflated":
        zeros, shape = one.parameters["zeros"], np.full(mean.size, one.parameters["dispersion"])
        return zeros + (1.0 - zeros) * dispersed_tail(DispersedRate(mean, std, shape), y, False)
    return of_likelihood.cdf(one, mean, variance, y)
