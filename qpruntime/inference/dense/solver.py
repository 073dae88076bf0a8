"""The solver for a covariance that is an array: `qpruntime.inference.solver`, by Cholesky."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.dense.matching import take_turn
from qpruntime.inference.dense.pullback import DensePullback
from qpruntime.inference.dense.stored import Kept
from qpruntime.inference.dense.sweep import sweep
from qpruntime.inference.proposals import propose_matched
from qpruntime.inference.sites import Counts, Sites
from qpruntime.inference.solver import Asked, Prior, Solved

__all__ = ["DensePrior", "DenseSolved"]


class DensePrior(Prior):
    """N latent values with mean `mean` (N,) and covariance `K` (N, N), C-ordered."""

    def __init__(self, K: Array, mean: Array) -> None:
        self.K = K
        self._mean = mean

    @property
    def mean(self) -> Array:
        return self._mean

    @property
    def variance(self) -> Array:
        return self.K.diagonal()

    @property
    def covariance(self) -> Array:
        return self.K

    def factor(self, sites: Sites) -> DenseSolved:
        return DenseSolved(self.K, sites, self._mean)

    def draw(self, rng: np.random.Generator) -> Array:
        try:
            root = np.linalg.cholesky(self.K + 1e-8 * np.diag(self.variance))
        except np.linalg.LinAlgError:
            # Variances so unlike that rounding of the largest outweighs the others' jitter.
            values, vectors = np.linalg.eigh(self.K)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn: Array = self._mean + root @ rng.standard_normal(len(self.K))
        return drawn


class DenseSolved(Factor, Solved):
    """A `Factor` that also visits sites."""

    def propose(
        self,
        asked: Asked,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        if self.negative.size or not self.K.flags.carray:
            return propose_matched(self, asked, marginals, sites, steps, counts)
        nu, failure = sites.nu.copy(), np.zeros(2)
        weights, mean, d_tau, d_nu = np.empty((4, asked.n))
        status, site = take_turn(
            asked.rules(),
            (steps, asked.matching()),
            asked.observations,
            (self.K, self.prior, self.upper_inverse(), self.root, weights),
            (mean, *marginals, weights),
            (sites.tau, nu),
            (d_tau, d_nu),
            (counts, failure),
        )
        asked.check(status, site, failure)
        self.relocate(nu, (weights, mean))
        return Sites(sites.tau, nu), d_tau, d_nu

    def sweep(
        self,
        asked: Asked,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        shares = self.shares()
        covariance, mean, pull = self.covariance(last=True), self.mean, self.weights
        variance = covariance.diagonal().copy()
        kept = self.less_negative(shares, variance)
        tau, nu = sites.tau.copy(), sites.nu.copy()
        y, exponents = asked.observations
        if visits is not None:
            covariance = covariance[np.ix_(visits, visits)]
            mean, kept, pull = mean[visits], kept[visits], pull[visits]
            tau, nu, y, exponents = tau[visits], nu[visits], y[visits], exponents[visits]
        failure = np.zeros(2)
        status, site = sweep(
            asked.rules(),
            (y, exponents),
            covariance if covariance.flags.c_contiguous else np.ascontiguousarray(covariance.T),
            (mean, kept, pull),
            (tau, nu),
            damping,
            (counts, failure),
        )
        asked.check(status, site if visits is None else visits[site], failure)
        if visits is not None:
            back = np.argsort(visits)
            tau, nu = tau[back], nu[back]
        return variance, tau - sites.tau, nu - sites.nu

    def keep(self) -> Kept:
        return Kept(self)

    def pullback(self, marginals: tuple[Array, Array]) -> DensePullback:
        return DensePullback(self, self._tau, marginals[1])
