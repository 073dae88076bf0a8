"""Sites moved near to their end without a factor, where one is dear and P is near its diagonal.

Crossed groups fill the smaller side, though two levels have few rows in common. There conjugate
gradients with the diagonal of P give means in few products with A, and variances of rows follow
those of the diagonal alone by a ratio that hardly changes. Only the start of exact sweeps is found
so: they end where they do from any other start.
"""

from __future__ import annotations

from typing import Self, cast

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.steps import measure_change
from qpruntime.inference.precision.entries import Entries
from qpruntime.inference.precision.latent import SparseLatent
from qpruntime.inference.precision.rows import back, times
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.problem import Problem
from qpruntime.inference.proposals import propose_matched
from qpruntime.inference.sites import Sites, no_counts
from qpruntime.inference.solver import Solved

__all__ = ["Approach"]

#: Operations of a factor for each number of A, from which on it is dear: the iterations below take
#: about a hundred. Of 5000 and 2000 crossed groups under 10^5 rows it is 5400.
_DEAR = 1000.0
#: Products of conjugate gradients, and steps of the sites, at most.
_PRODUCTS, _STEPS = 60, 12
#: Changes of sites from which on single precision tells them: its variances are right to 1e-5.
_SINGLE = 3e-4
#: Means are solved to so much of what sites may change, in posterior standard deviations.
_SHARE = 0.1
#: Least share that a site may leave of a marginal's precision.
_LEAST = 1e-3


class Approach:
    """Means and variances of sites by products alone, and sites near the fixed point by these.

    Parameters
    ----------
    problem : Problem
        That `of` has found fit.
    warm : bool
        Whether the last ratios of variances of these rows hold.
    """

    def __init__(self, problem: Problem, warm: bool) -> None:
        prior = problem.prior
        assert isinstance(prior, SparseLatent)
        self.problem, self.prior = problem, prior
        self.squared = prior.rows.values * prior.rows.values
        self.entries = Entries.of(prior)
        self.x, self.ratio = np.zeros(prior.pattern.k), np.ones(prior.offset.size)
        known = prior.pattern.held.get("ratio")
        if warm and known is not None and known[0] is prior.rows.columns:
            self.ratio = known[1]

    @classmethod
    def of(cls, problem: Problem, warm: bool) -> Self | None:
        """What approaches this fixed point, or None where a factor is cheap or P too far off."""
        prior = problem.prior
        if not (isinstance(prior, SparseLatent) and problem.nonnegative):
            return None
        pattern = prior.pattern
        dear = pattern.symbolic.flops > _DEAR * prior.rows.columns.size
        # A definite precision with as many entries as columns is diagonal.
        if not dear or prior.constraint is not None or prior.q.size != pattern.k:
            return None
        found = cls(problem, warm)
        return None if found.far else found

    @property
    def far(self) -> bool:
        """Whether P was too far from its diagonal."""
        return bool(self.prior.pattern.held.get("far"))

    def at(self, sites: Sites, near: float) -> _Sketch:
        """The posterior of these sites, means to so many standard deviations."""
        return _Sketch(self, sites, near)

    def factor(self, sites: Sites, tol: float) -> PrecisionSolved:
        """The posterior of these sites for changes that are measured to `tol`."""
        return PrecisionSolved(self.prior, sites, single=tol >= _SINGLE)

    def learn(self, sites: Sites, variance: Array) -> None:
        """Take in the variances that belong to these sites."""
        self.ratio = variance / self.at(sites, np.inf).diagonal_variance
        self.prior.pattern.held["ratio"] = self.prior.rows.columns, self.ratio

    def forward(self, sites: Sites, tol: float) -> Sites:
        """Sites that change by less than about `tol`; those given, where they wander off."""
        problem, begin, last = self.problem, sites, np.inf
        if self.far:
            return begin
        try:
            for _ in range(_STEPS):
                here = self.at(sites, _SHARE * tol)
                variance = self.ratio * here.diagonal_variance
                kept = 1.0 - sites.tau * variance
                if not kept.min() > _LEAST:
                    return begin
                counts = no_counts()
                sites, *asked = propose_matched(
                    cast(Solved, here), problem, (variance, kept), sites, 1, counts
                )
                change, _ = measure_change(asked[0], asked[1], sites.nu, variance)
                if change > last or counts[2]:
                    return begin
                sites = Sites(sites.tau + asked[0], sites.nu + asked[1])
                last = change
                if change < tol:
                    break
        except NumericalError:
            return begin
        return sites


class _Sketch:
    """What `propose_matched` asks of a posterior."""

    def __init__(self, own: Approach, sites: Sites, near: float) -> None:
        self.own, self.tau, self.near = own, sites.tau, near
        prior, rows = own.prior, own.prior.rows
        self.diagonal = np.empty(prior.pattern.k)
        back(rows.indptr, rows.columns, own.squared, sites.tau, self.diagonal)
        self.diagonal += prior.q
        self._lower: sparse.csc_array | None = None
        self.diagonal_variance = np.empty(sites.tau.size)
        inverse = 1.0 / self.diagonal
        times(rows.indptr, rows.columns, own.squared, inverse, self.diagonal_variance)
        self.relocate(sites.nu)

    def relocate(self, nu: Array) -> None:
        self._nu, self._known = nu, False

    @property
    def mean(self) -> Array:
        """Posterior mean at the rows."""
        self._solve()
        return self._mean

    @property
    def weights(self) -> Array:
        """Slopes of the sites' logarithms at the mean, nu - tau mean."""
        self._solve()
        return self._weights

    def _solve(self) -> None:
        if self._known:
            return
        own, prior = self.own, self.own.prior
        shifted = self._nu - self.tau * prior.offset
        own.x = self._conjugate(prior.back(shifted), own.x)
        moved = prior.times(own.x)
        self._mean, self._weights = prior.offset + moved, shifted - self.tau * moved
        self._known = True

    def _conjugate(self, right: Array, x: Array) -> Array:
        """P^-1 right from x; the residual's norm by 1/diag P is about the error's by P."""
        prior = self.own.prior
        if self._lower is None:
            self._lower = self.own.entries.lower(prior.rows, self.tau)
        lower, upper, rest = self._lower, self._lower.T, self.diagonal
        left = right - (lower @ x + upper @ x + rest * x)
        z = left / self.diagonal
        p, size = z, float(left @ z)
        least = self.near**2 * x.size
        for _ in range(_PRODUCTS):
            if not size > least:
                break
            moved = lower @ p + upper @ p + rest * p
            share = size / float(p @ moved)
            x, left = x + share * p, left - share * moved
            z = left / self.diagonal
            size, before = float(left @ z), size
            p = z + (size / before) * p
        else:
            prior.pattern.held["far"] = True
            raise NumericalError(f"conjugate gradients have not ended after {_PRODUCTS} products")
        return x
