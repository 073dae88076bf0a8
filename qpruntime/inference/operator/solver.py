"""Solver for observations along linear functionals, in the space of f."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_solve, qr, solve_triangular
from scipy.linalg.lapack import dpotri

from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime.errors import NumericalError
from qpruntime.inference.dense.cholesky_kernels import mirror_upper
from qpruntime.inference.dense.solver import (
    CholeskyFactor,
    DensePullback,
    DenseState,
    along_change,
    evidence_slope,
    finite_solution,
    predict_in_blocks,
)
from qpruntime.inference.operator.functionals import FunctionalFeatures, Functionals
from qpruntime.inference.operator.visit_kernels import visit
from qpruntime.inference.parallel_updates import propose_matched
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites
from qpruntime.inference.solver_protocol import SiteProblem, Solved

__all__ = [
    "LatentAlgebra",
    "LatentKept",
    "LatentPrior",
    "LatentPullback",
    "LatentSolved",
    "RowsKept",
]

# --- Solver for more observations than latent values
#
# It takes n^3 + N n^2 operations, not N^3.
#
# The model is f = m + L u with independent units u, and site i sees a_i' m + phi_i' u. All results
# come from B = I + Phi' diag(tau) Phi, shape (r, r), the precision of u.

#: Below this value 1 - tau variance has lost digits, and is computed from a posterior without the
#: site.
_STRONG = 1e-5
#: If all sites have less precision than this, relative to the prior variance, a difference of their
#: terms keeps most digits.
_WEAK = 1e3


class LatentPrior:
    """`Prior` of N functionals of n latent values with covariance K (n, n) and mean (n,)."""

    covariance = None

    def __init__(self, functionals: Functionals, K: Array, mean: Array) -> None:
        self.K = K
        self.features = FunctionalFeatures(functionals, K)
        self.mean, self.variance = functionals.times(mean), self.features.squares()

    def factor(self, sites: Sites) -> LatentSolved:
        """Return the posterior of these sites."""
        return LatentSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        """Return functionals of latent values sampled from the prior, shape (N,)."""
        return self.mean + self.features.times(rng.standard_normal(self.features.width))


class LatentSolved(Solved):
    """Posterior of given sites.

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
        self.factor, info = self.features.factor(sites.tau, prior.variance)
        if info != 0 or not np.isfinite(self.factor.diagonal()).all():
            if (sites.tau < 0.0).any():
                raise ImproperPosterior("negative site precisions leave no proper posterior")
            raise NumericalError(
                f"the precision of {self.features.width} latent values is not positive definite "
                f"(row {abs(info)}): the operator or the sites are too large for double precision; "
                "rescale the operator's rows"
            )
        self.relocate(sites.nu)

    def relocate(self, nu: Array) -> None:
        """Set the sites' precision-weighted means."""
        self._nu = nu
        self._solution: tuple[Array, Array] | None = None

    def _solve(self) -> tuple[Array, Array]:
        """Return `weights` and the mean at the functionals."""
        if self._solution is None:
            shifted = self._nu - self.tau * self._prior.mean
            right = self.features.back(shifted)
            units = cho_solve((self.factor, True), right, check_finite=False)
            # The weights are a difference that cancels if sites dominate, so a second solve
            # corrects the residual.
            remainder = self.features.back(shifted - self.tau * self.features.times(units)) - units
            units += cho_solve((self.factor, True), remainder, check_finite=False)
            moved = self.features.times(units)
            self.units = units
            weights = shifted - self.tau * moved
            self._solution = finite_solution(weights, self._prior.mean + moved)
        return self._solution

    @property
    def mean(self) -> Array:
        """Posterior mean of the functionals, shape (N,)."""
        return self._solve()[1]

    @property
    def weights(self) -> Array:
        """Weights of the functionals, shape (N,)."""
        return self._solve()[0]

    @property
    def log_det(self) -> float:
        """Log determinant of B."""
        return 2.0 * float(np.log(self.factor.diagonal()).sum())

    def marginals(self) -> tuple[Array, Array]:
        """Return posterior variances and 1 - tau variance of the functionals, each (N,)."""
        variance = self.features.squares(self.factor)
        kept = 1.0 - self.tau * variance
        strong = np.flatnonzero(kept < _STRONG)
        if strong.size:
            variance[strong], kept[strong] = self._without(strong)
        return variance, kept

    def _without(self, strong: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return variances and 1 - tau variance of few sites, from the posterior of all others."""
        other_tau = self.tau.copy()
        other_tau[strong] = 0.0
        factor, info = self.features.factor(other_tau, self._prior.variance)
        if info != 0:
            raise ImproperPosterior("negative site precisions leave no proper posterior")
        rows = self.features.functionals.rows[strong] @ self.features.root
        half = solve_triangular(factor, rows.T, lower=True, check_finite=False)
        few = Sites(self.tau[strong], np.zeros(strong.size))
        return CholeskyFactor(half.T @ half, few, few.nu).marginals()

    propose = propose_matched

    def sweep(
        self,
        problem: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Update the sites in the order of `visits`; see `Solved.sweep`."""
        variance = self.features.squares(self.factor)
        self._solve()
        tau, nu, failure = sites.tau.copy(), sites.nu.copy(), np.zeros(2)
        status, site = visit(
            problem.rules(),
            problem.observations,
            np.ascontiguousarray(self.features.rows),
            (self.units_covariance(), self.units.copy()),
            self._prior.mean,
            (tau, nu),
            np.arange(problem.n) if visits is None else visits,
            damping,
            (counts, failure),
        )
        problem.check(status, site, failure)
        return variance, tau - sites.tau, nu - sites.nu

    def units_covariance(self) -> Array:
        """Return B^-1, shape (r, r), C-ordered."""
        inverse, _ = dpotri(self.factor, lower=1)
        whole: Array = inverse.T
        mirror_upper(whole)
        return np.ascontiguousarray(whole)

    def discard(self) -> None:
        """Keep the factor, which is small, and compute the solution."""
        self._solve()

    def keep(self) -> LatentKept:
        """Return the algebra of predictions of f."""
        return LatentKept(self._prior.K, self.features.functionals, self.tau, self.weights)

    def slope(self) -> Array:
        """Return the derivative of the log evidence by the latent covariance K, (n, n)."""
        features, tau = self.features, self.tau
        largest = float(np.abs(tau * self._prior.variance).max())
        if not features.many or largest > _WEAK:
            return self.keep().slope()
        # The sum is sparse: (K + H^-1)^-1 = H - H S H, if no site is so strong that it cancels.
        H = features.functionals.precision(tau)
        half = solve_triangular(self.factor, features.root.T @ H, lower=True, check_finite=False)
        back = features.functionals.back(self.weights)
        slope: Array = half.T @ half
        slope -= H
        slope += np.outer(back, back)
        slope *= 0.5
        return slope

    def pullback(self, marginals: tuple[Array, Array]) -> LatentPullback:
        """Return the transposed derivative of the marginals."""
        half = solve_triangular(self.factor, self.features.rows.T, lower=True, check_finite=False)
        given = self._solve(), half.T @ half, self.tau, marginals[1]
        return LatentPullback(*given, K=self._prior.K, functionals=self.features.functionals)


# --- Algebra that predictions take
#
# Let H = A' diag(tau) A. The posterior precision of f is K^-1 + H. Along coordinates W' f with H =
# W diag(h) W' it is that of sites of precision h, one per coordinate, so that the dense factor
# applies.


class LatentAlgebra(ABC):
    """Predictions and gradient of the log evidence, for the factor of either side.

    Attributes
    ----------
    weights : ndarray, shape (N,)
        (A K A')^-1 (posterior mean - prior mean) of the functionals.
    latent_weights : ndarray, shape (n,)
        K^-1 (posterior mean - prior mean) of f.
    """

    weights: Array
    latent_weights: Array

    @abstractmethod
    def reduction(self, K_star: Array) -> Array:
        """Return prior minus posterior variance at points of covariance `K_star` (T, n)."""

    @abstractmethod
    def reduced(self, K_star: Array) -> Array:
        """Return prior minus posterior covariance (T, T) of the points."""

    @abstractmethod
    def inner(self) -> Array:
        """Return (K + H^-1)^-1, shape (n, n)."""

    def predict(self, *new: Array) -> tuple[Array, Array]:
        """Return means and variances at points, given K_star (T, n) and the prior's."""
        K_star, variances, means = new
        prior = variances, means
        return predict_in_blocks(K_star, prior, self.latent_weights, self.reduction)

    def slope(self) -> Array:
        """Return the derivative of the log evidence by K with the sites fixed, shape (n, n)."""
        return evidence_slope(self.latent_weights, self.inner())

    def evidence_gradient(self, change: ArrayLike) -> Array | float:
        """Return the slope of the log evidence for a change of K, (n, n) or (n, n, p)."""
        return along_change(self.slope(), np.asarray(change))


@restorable("rows-kept/1")
class RowsKept(LatentAlgebra):
    """Algebra by the factor of the functionals themselves, shape (N, N)."""

    def __init__(self, kept: DenseState, functionals: Functionals) -> None:
        self.kept, self.functionals = kept, functionals
        self.weights, self.latent_weights = kept.weights, functionals.back(kept.weights)

    def reduction(self, K_star: Array) -> Array:
        """Return the reduction of variances from covariances with the functionals."""
        return self.kept.reduction(self.functionals.seen(K_star))

    def reduced(self, K_star: Array) -> Array:
        """Return the reduction of covariances from covariances with the functionals."""
        return self.kept.reduced(self.functionals.seen(K_star))

    def inner(self) -> Array:
        """Return (K + H^-1)^-1 from the inverse of the functionals' covariance."""
        # The identity is (K + H^-1)^-1 = A' (A K A' + diag(1/tau))^-1 A.
        back = self.functionals.back
        return back(np.ascontiguousarray(back(self.kept.inner()).T))


@restorable("latent-kept/1")
class LatentKept(LatentAlgebra):
    """Algebra by the factor of n coordinates of f, which is computed when first needed.

    Parameters
    ----------
    K : ndarray, shape (n, n)
    functionals : Functionals
    tau, weights : ndarray, shape (N,)
        Site precisions, and (A K A')^-1 (posterior mean - prior mean).
    """

    def __init__(self, K: Array, functionals: Functionals, tau: Array, weights: Array) -> None:
        self._K, self._functionals, self._tau = K, functionals, tau
        self.weights, self.latent_weights = weights, functionals.back(weights)

    @cached_property
    def _factor(self) -> tuple[Array, DenseState]:
        """Coordinates W, shape (n, c), and the factor along them."""
        tau, rows = self._tau, self._functionals.rows
        if not sparse.issparse(rows) and (tau >= 0.0).all():
            upper: Array = qr(rows * np.sqrt(tau)[:, None], mode="r")[0][: len(self._K)]
            across = np.ascontiguousarray(upper.T)
            depth = np.ones(across.shape[1])
        else:
            depth, across = np.linalg.eigh(self._functionals.precision(tau))
            rounded = np.abs(depth) <= len(depth) * np.finfo(float).eps * np.abs(depth).max()
            if (tau >= 0.0).all():
                rounded |= depth < 0.0
            depth, across = depth[~rounded], np.ascontiguousarray(across[:, ~rounded])
        along = across.T @ self._K @ across
        none = np.zeros(depth.size)
        return across, DenseState(CholeskyFactor(0.5 * (along + along.T), Sites(depth, none), none))

    def reduction(self, K_star: Array) -> Array:
        """Return the reduction of variances along the coordinates."""
        across, kept = self._factor
        return kept.reduction(K_star @ across)

    def reduced(self, K_star: Array) -> Array:
        """Return the reduction of covariances along the coordinates."""
        across, kept = self._factor
        return kept.reduced(K_star @ across)

    def inner(self) -> Array:
        """Return (K + H^-1)^-1 from that of the coordinates."""
        across, kept = self._factor
        return across @ kept.inner() @ across.T

    def __getstate__(self) -> dict[str, object]:
        return {
            "_factor": self._factor,
            "weights": self.weights,
            "latent_weights": self.latent_weights,
        }


# --- Gradients


class LatentPullback(DensePullback):
    """Transposed derivative of variances v = diag(A S A') and means, S that of f.

    The sites are fixed. S then changes with K by D dK D', with D = K^-1 S applied from the left,
    and the mean by A D' dK A' weights.

    Parameters
    ----------
    *given
        As for `DensePullback`, for the functionals.
    K : ndarray, shape (n, n)
    functionals : Functionals
    """

    def __init__(self, *given: Any, K: Array, functionals: Functionals) -> None:
        super().__init__(*given)
        self._K, self._rows = K, functionals

    def _from_prior(self) -> tuple[Array, Array]:
        # The variances are v_i = a' S a with S = (K^-1 + H)^-1, and dS = (I + K H)^-1 dK (I + H
        # K)^-1.
        rows, H = self._rows, self._rows.precision(self._tau)
        across = np.linalg.solve((np.eye(len(H)) + self._K @ H).T, rows.back(np.eye(rows.n)))
        return np.asarray(across, dtype=float), rows.back(self._weights)
