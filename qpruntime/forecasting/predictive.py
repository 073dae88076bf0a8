"""Distributions of observations to come: mixtures over hyper-parameters, for every family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.forecasting.families import Scale
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.responses import LARGEST_COUNT, counts
from qpruntime.predictive.counts import DispersedRate, dispersed_tail
from qpruntime.predictive.density import (
    RATE_LIKELIHOODS,
    count_distribution,
    mixture_log_density,
    wide,
)
from qpruntime.predictive.distribution import Predicted
from qpruntime.predictive.expectation import component, kind_of
from qpruntime.predictive.inversion import Component, mixture_quantiles
from qpruntime.predictive.mixtures import Mixture

__all__ = ["Ahead"]

# Step of the quadrature rule in log(g), where g is the gamma variable that mixes normals to a
# Student's t.
_T_STEP = 0.25
# The rule leaves out nodes below this weight.
_LIGHT = 1e-14
# Standard deviations beyond which a rounded number has no mass, and whole numbers that are summed.
_TAIL, _MOST_CELLS = 9.0, 1000.0


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

    @classmethod
    def mixed(cls, parts: Sequence[Ahead], weights: Array) -> Ahead:
        """Return the mixture of distributions that have one family and one scale."""
        means, variances, shares = zip(*(ahead.mixture for ahead in parts), strict=True)
        weighted = [w * node_weights for w, node_weights in zip(weights, shares, strict=True)]
        mixture = Mixture(
            np.concatenate(means), np.concatenate(variances), np.concatenate(weighted)
        )
        likelihoods = [likelihood for part in parts for likelihood in part.likelihoods]
        return cls(mixture, likelihoods, parts[0].scale)

    def only(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Ahead:
        """Return the distributions at these rows of times."""
        return replace(self, mixture=self.mixture.at(rows))

    def scaled(self, factors: Array, weights: Array, rows: NDArray[np.bool_]) -> Ahead:
        """Return a mixture of normal observations whose variances at `rows` are multiplied.

        Parameters
        ----------
        factors, weights : ndarray, shape (K,)
            Factors of the variance, and their weights, which sum to 1.
        rows : ndarray of bool, shape (T,)
        """
        mean, variance, shares = self.mixture
        scales = np.array([likelihood.parameters["scale"] for likelihood in self.likelihoods])
        # A likelihood has one scale at all times: the rest is variance of the predictor.
        scales, noise = scales * np.sqrt(min(1.0, float(factors.min()))), scales**2
        by_row = np.where(rows, factors[:, None], 1.0)[:, None]
        variances = by_row * (variance + noise[:, None]) - (scales**2)[:, None]
        mixture = Mixture(
            np.tile(mean, (factors.size, 1)),
            variances.reshape(-1, mean.shape[1]),
            np.outer(weights, shares).ravel(),
        )
        likelihoods = [
            likelihood.with_parameters(scale=scale)
            for likelihood, scale in zip(self.likelihoods, scales.tolist(), strict=True)
        ]
        return Ahead(mixture, likelihoods * factors.size, self.scale)

    def mean(self) -> Array:
        """Return the expected observations, shape (T,)."""
        mean, variance, weights = self.mixture
        name = self.likelihoods[0].name
        if name in RATE_LIKELIHOODS:
            with np.errstate(over="ignore"):
                return np.asarray(weights @ np.exp(mean + 0.5 * variance))
        if self.scale.rounded:
            return _rounded_mean(self._unrounded())
        if name in ("gaussian", "student-t"):
            if not self.scale.log:
                return self.scale.back(weights @ mean)
            unit, node_means = self.scale.unit, []
            for likelihood, m, v in zip(self.likelihoods, mean, variance, strict=True):
                total = v + likelihood.parameters["scale"] ** 2
                node_means.append(np.exp(self.scale.centre + unit * m + 0.5 * unit**2 * total))
            return np.asarray(weights @ np.array(node_means))
        return np.asarray(weights @ np.array([first for first, _ in self._moments()]))

    def _moments(self) -> list[tuple[Array, Array]]:
        """Return means and variances on the scale of the likelihood, at each node."""
        mean, variance, _ = self.mixture
        nodes = zip(self.likelihoods, mean, variance, strict=True)
        return [_generic(likelihood).mean_and_variance(m, v) for likelihood, m, v in nodes]

    def residuals(self, y: Array) -> Array:
        """Return observed less expected, in standard deviations given the predictor, shape (T,)."""
        z = self.scale.into(y)
        mean, variance, weights = self.mixture
        name = self.likelihoods[0].name
        if self.scale.whole and name in RATE_LIKELIHOODS:
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
        """Return log densities (T,) of observations `y`, log probabilities for counts."""
        if self.scale.rounded:
            return _rounded_log_mass(self._unrounded(), counts(y))
        observed = self.likelihoods[0].validate(self.scale.into(y))
        log_densities = mixture_log_density(self.likelihoods, self.mixture, observed)
        return log_densities + self.scale.log_slope(y)

    def quantiles(self, q: Array) -> Array:
        """Return quantiles of levels (Q,), (T, Q); of counts the least with P(Y <= y) >= q."""
        name = self.likelihoods[0].name
        if self.scale.rounded:
            # The least whole number y with P(number < y + 1/2) >= q.
            return np.maximum(np.ceil(self._unrounded().quantiles(q) - 0.5), 0.0) + 0.0
        if name in ("gaussian", "student-t"):
            return self.scale.back(self._normals().quantiles(q))
        nodes = list(zip(self.likelihoods, *self.mixture[:2], strict=True))
        kind = kind_of(self.likelihoods[0])
        parts = [_component(likelihood, m, wide(v), q) for likelihood, m, v in nodes]
        values = mixture_quantiles(parts, self.mixture.weights, q, *kind)
        if not kind[0]:
            return self.scale.back(values)
        values[values > LARGEST_COUNT] = np.inf
        return values

    @property
    def discrete(self) -> bool:
        """True if observations are counts."""
        return self.scale.rounded or Predicted.discrete(self.likelihoods[0])

    def _unrounded(self) -> Mixture:
        """Return the numbers whose rounding gives the observations."""
        normals = self._normals()
        variance = self.scale.unit**2 * normals.variance
        return Mixture(self.scale.back(normals.mean), variance, normals.weights)

    def _normals(self) -> Mixture:
        """Return observations as a mixture of normals."""
        means, variances, weights = [], [], []
        for likelihood, m, v, w in zip(self.likelihoods, *self.mixture, strict=True):
            scale = likelihood.parameters["scale"]
            ratio, share = np.ones(1), np.ones(1)
            if likelihood.name == "student-t":
                ratio, share = _t_parts(likelihood.parameters["nu"])
            for r, s in zip(ratio, share, strict=True):
                means.append(m)
                variances.append(v + scale**2 * r)
                weights.append(w * s)
        return Mixture(np.array(means), np.array(variances), np.array(weights))


def _rounded_log_mass(unrounded: Mixture, y: Array) -> Array:
    """Return log P(y - 1/2 < x < y + 1/2), of 0 without the lower limit."""
    std = np.sqrt(unrounded.variance)
    # The cell is reflected to below the mean, where log_ndtr has all digits.
    z = -np.abs(y - unrounded.mean) / std
    upper, lower = log_ndtr(z + 0.5 / std), log_ndtr(z - 0.5 / std)
    cell = upper + np.log1p(-np.exp(lower - upper))
    log_mass = np.where(y == 0.0, log_ndtr((0.5 - unrounded.mean) / std), cell)
    return np.asarray(logsumexp(log_mass, axis=0, b=unrounded.weights[:, None]))


def _rounded_mean(unrounded: Mixture) -> Array:
    """Return the sum of P(x > y + 1/2) over whole numbers y."""
    mean, variance, weights = unrounded
    std = np.sqrt(variance)
    # This is the mean without rounding, which hardly differs if the normal is wide or far above 0.
    z = mean / std
    node_means = mean * ndtr(z) + std * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    near = mean + _TAIL * std < _MOST_CELLS
    node_means[near] = 0.0
    for y in np.arange(np.ceil((mean + _TAIL * std)[near].max(initial=0.0))):
        node_means[near] += ndtr((mean - y - 0.5)[near] / std[near])
    return np.asarray(weights @ node_means)


def _generic(likelihood: Likelihood) -> Predicted:
    if likelihood.given is None:
        raise InputError(
            f"likelihood {likelihood.name!r} is known by its density alone: a forecast needs the "
            "distribution of y, its given="
        )
    return Predicted(likelihood, None)


def _t_parts(nu: float) -> tuple[Array, Array]:
    """Return Student's t as normals of variances r with shares: 1/r is gamma with mean 1."""
    u = np.arange(-90.0 / nu - 12.0 / np.sqrt(nu), 5.0 + 12.0 / np.sqrt(nu), _T_STEP)
    half = 0.5 * nu
    log_share = half * u - half * np.exp(u) + half * np.log(half) - gammaln(half)
    share = np.exp(log_share)
    kept = share > _LIGHT * share.max()
    return np.exp(-u[kept]), share[kept] / share[kept].sum()


def _component(likelihood: Likelihood, mean: Array, variance: Array, q: Array) -> Component:
    """Return the distribution of counts, or of other observations, at one node."""
    dispersion = likelihood.parameters.get("dispersion", np.inf)
    if likelihood.name in RATE_LIKELIHOODS:
        return count_distribution(mean, variance, q, link="exp", dispersion=dispersion)
    distribution = component(_generic(likelihood).likelihood, mean, variance, q)
    if not Predicted.discrete(likelihood):
        return distribution
    top = LARGEST_COUNT + 1.0
    distribution = distribution._replace(
        low=np.minimum(distribution.low, top - 1.0), high=np.minimum(distribution.high, top)
    )
    if likelihood.name != "zero-inflated":
        return distribution
    zeros, std = likelihood.parameters["zeros"], np.sqrt(variance)

    def cdf(rows: NDArray[np.intp], y: Array, upper: bool) -> Array:
        shape = np.full(rows.size, dispersion)
        mass = dispersed_tail(DispersedRate(mean[rows], std[rows], shape), y, upper)
        return (1.0 - zeros) * mass + (0.0 if upper else zeros)

    return distribution._replace(cdf=cdf)
