"""The solver for more observations than latent values: n^3 + N n^2 operations, not N^3.

f = m + L u with independent units u, and site i sees a_i' m + phi_i' u. All goes through B = I +
Phi' diag(tau) Phi, shape (r, r), the precision of u.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpotri

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.dense.factor import Factor, finite_solution
from qpruntime.inference.dense.triangles import mirror_upper
from qpruntime.inference.operator.features import Features
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.pullback import LatentPullback
from qpruntime.inference.operator.stored import LatentKept
from qpruntime.inference.operator.visits import visit
from qpruntime.inference.proposals import propose_matched
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites
from qpruntime.inference.solver import Asked, Prior, Solved

__all__ = ["LatentPrior", "LatentSolved"]

#: Below this share 1 - tau variance has lost digits, and is found without the site.
_STRONG = 1e-5
#: Sites of less precision, times the prior variance, leave most digits of a difference of theirs.
_WEAK = 1e3


class LatentPrior(Prior):
    """N functionals of n latent values with covariance K (n, n) and mean (n,)."""

    covariance = None

    def __init__(self, functionals: Functionals, K: Array, mean: Array) -> None:
        self.K, self.latent_mean = K, mean
        self.features = Features(functionals, K)
        self._mean = functionals.times(mean)
        self._variance = self.features.squares()

    @property
    def mean(self) -> Array:
        return self._mean

    @property
    def variance(self) -> Array:
        return self._variance

    def factor(self, sites: Sites) -> LatentSolved:
        return LatentSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        return self._mean + self.features.times(rng.standard_normal(self.features.width))


class LatentSolved(Solved):
    """The posterior of given sites.

    Parameters
    ----------
    prior : LatentPrior
    sites : Sites

    Raises
    ------
    NumericalError
        If B is not positive definite in double precision.
    ImproperPosterior
        If negative site precisions leave no posterior.
    """

    def __init__(self, prior: LatentPrior, sites: Sites) -> None:
        self._prior, self.features = prior, prior.features
        self.tau = sites.tau
        self.factor, info = self._factorised(sites.tau)
        if info != 0 or not np.isfinite(self.factor.diagonal()).all():
            if (sites.tau < 0.0).any():
                raise ImproperPosterior("negative site precisions leave no proper posterior")
            raise NumericalError(
                f"the precision of {self.features.width} latent values is not positive definite "
                f"(row {abs(info)}): the operator or the sites are too large for double precision; "
                "rescale the operator's rows"
            )
        self.relocate(sites.nu)

    def _factorised(self, tau: Array) -> tuple[Array, int]:
        return self.features.factor(tau, float((tau * self._prior.variance).max()))

    def relocate(self, nu: Array) -> None:
        self._nu = nu
        self._solution: tuple[Array, Array] | None = None

    def _solve(self) -> tuple[Array, Array]:
        """`weights` and the mean at the functionals."""
        if self._solution is None:
            shifted = self._nu - self.tau * self._prior.mean
            right = self.features.back(shifted)
            units = cho_solve((self.factor, True), right, check_finite=False)
            # Once more with what is left: the weights are a difference where sites dominate.
            left = self.features.back(shifted - self.tau * self.features.times(units)) - units
            units += cho_solve((self.factor, True), left, check_finite=False)
            moved = self.features.times(units)
            self.units = units
            weights = shifted - self.tau * moved
            self._solution = finite_solution(weights, self._prior.mean + moved)
        return self._solution

    @property
    def mean(self) -> Array:
        return self._solve()[1]

    @property
    def weights(self) -> Array:
        return self._solve()[0]

    @property
    def log_det(self) -> float:
        return 2.0 * float(np.log(self.factor.diagonal()).sum())

    def marginals(self) -> tuple[Array, Array]:
        variance = self.features.squares(self.factor)
        kept = 1.0 - self.tau * variance
        strong = np.flatnonzero(kept < _STRONG)
        if strong.size:
            variance[strong], kept[strong] = self._without(strong)
        return variance, kept

    def _without(self, strong: NDArray[np.intp]) -> tuple[Array, Array]:
        """Variances and 1 - tau variance of few sites, by the posterior of all others."""
        rest = self.tau.copy()
        rest[strong] = 0.0
        factor, info = self._factorised(rest)
        if info != 0:
            raise ImproperPosterior("negative site precisions leave no proper posterior")
        rows = self.features.functionals.rows[strong] @ self.features.root
        half = solve_triangular(factor, rows.T, lower=True, check_finite=False)
        few = Sites(self.tau[strong], np.zeros(strong.size))
        found: tuple[Array, Array] = Factor(half.T @ half, few, few.nu).marginals()
        return found

    def propose(
        self,
        asked: Asked,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        return propose_matched(self, asked, marginals, sites, steps, counts)

    def sweep(
        self,
        asked: Asked,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        variance = self.features.squares(self.factor)
        self._solve()
        tau, nu, failure = sites.tau.copy(), sites.nu.copy(), np.zeros(2)
        status, site = visit(
            asked.rules(),
            asked.observations,
            np.ascontiguousarray(self.features.rows),
            (self.units_covariance(), self.units.copy()),
            self._prior.mean,
            (tau, nu),
            np.arange(asked.n) if visits is None else visits,
            damping,
            (counts, failure),
        )
        asked.check(status, site, failure)
        return variance, tau - sites.tau, nu - sites.nu

    def units_covariance(self) -> Array:
        """B^-1, shape (r, r), C-ordered."""
        inverse, _ = dpotri(self.factor, lower=1)
        whole: Array = inverse.T
        mirror_upper(whole)
        return np.ascontiguousarray(whole)

    def discard(self) -> None:
        self._solve()

    def keep(self) -> LatentKept:
        return LatentKept(self._prior.K, self.features.functionals, self.tau, self.weights)

    def slope(self) -> Array:
        """Derivative of the log evidence by K, the latent values' covariance, shape (n, n)."""
        features, tau = self.features, self.tau
        largest = float(np.abs(tau * self._prior.variance).max())
        if not features.many or largest > _WEAK:
            return self.keep().slope()
        # (K + H^-1)^-1 = H - H S H of a sparse sum, where no site is so strong that it cancels.
        H = features.functionals.precision(tau)
        half = solve_triangular(self.factor, features.root.T @ H, lower=True, check_finite=False)
        back = features.functionals.back(self.weights)
        found: Array = half.T @ half
        found -= H
        found += np.outer(back, back)
        found *= 0.5
        return found

    def pullback(self, marginals: tuple[Array, Array]) -> LatentPullback:
        half = solve_triangular(self.factor, self.features.rows.T, lower=True, check_finite=False)
        rows = self.features.functionals
        return LatentPullback(half.T @ half, self._prior.K, rows, self.tau, self._solve())
