"""The solver for a covariance that is an array: `qpruntime.inference.solver`, by Cholesky."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.dense.pullback import DensePullback
from qpruntime.inference.dense.stored import Kept
from qpruntime.inference.dense.sweep import sweep
from qpruntime.inference.dense.turn import System, take_turn
from qpruntime.inference.proposals import propose_matched
from qpruntime.inference.site_update import Marginals, Observations, Record
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
        root = np.linalg.cholesky(self.K + 1e-8 * np.diag(self.variance))
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
        moved = Sites(sites.tau, sites.nu.copy())
        weights, mean, d_tau, d_nu = np.empty((4, asked.n))
        record = Record(counts, np.zeros(2))
        status, site = take_turn(
            asked.rules(),
            (steps, asked.matching()),
            asked.observations,
            System(self.K, self.prior, self.upper_inverse(), self.root, weights),
            Marginals(mean, *marginals),
            moved,
            Sites(d_tau, d_nu),
            record,
        )
        asked.check(status, site, record.failure)
        self.relocate(moved.nu, (weights, mean))
        return moved, d_tau, d_nu

    def sweep(
        self,
        asked: Asked,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        covariance, mean = self.covariance(last=True), self.mean.copy()
        variance = covariance.diagonal().copy()
        moved, observed = Sites(sites.tau.copy(), sites.nu.copy()), asked.observations
        if visits is not None:
            covariance, mean = covariance[np.ix_(visits, visits)], mean[visits]
            moved = Sites(*(values[visits] for values in moved))
            observed = Observations(*(values[visits] for values in observed))
        record = Record(counts, np.zeros(2))
        status, site = sweep(
            asked.rules(),
            observed,
            covariance if covariance.flags.c_contiguous else np.ascontiguousarray(covariance.T),
            mean,
            moved,
            damping,
            record,
        )
        asked.check(status, site if visits is None else visits[site], record.failure)
        if visits is not None:
            back = np.argsort(visits)
            moved = Sites(*(values[back] for values in moved))
        return variance, moved.tau - sites.tau, moved.nu - sites.nu

    def keep(self) -> Kept:
        return Kept(self)

    def pullback(self, marginals: tuple[Array, Array]) -> DensePullback:
        return DensePullback(self, self._tau, marginals[1])
