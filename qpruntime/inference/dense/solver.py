"""Solver of `qpruntime.inference.solver_protocol` for a covariance array, by Cholesky."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.lapack import dtpttr, dtrttp

from qpruntime._restorable import restorable
from qpruntime._row_blocks import in_blocks
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense import blas
from qpruntime.inference.dense.cholesky import CholeskyFactor, DensePullback, Triangle
from qpruntime.inference.dense.cholesky_kernels import APPLY_PANEL, mirror_upper, sweep, take_turn
from qpruntime.inference.parallel_updates import propose_matched
from qpruntime.inference.sites import Counts, Sites
from qpruntime.inference.solver_protocol import SiteProblem, Solved

__all__ = ["DensePrior", "DenseSolved", "DenseState"]

# --- Prior and posterior of a dense covariance


class DensePrior:
    """`Prior` with mean `mean` (N,) and C-ordered covariance `K` (N, N)."""

    def __init__(self, K: Array, mean: Array) -> None:
        self.K = self.covariance = K
        self.mean = mean

    @property
    def variance(self) -> Array:
        """Prior variances, shape (N,)."""
        return self.K.diagonal()

    def factor(self, sites: Sites) -> DenseSolved:
        """Return the posterior of these sites."""
        return DenseSolved(self.K, sites, self.mean)

    def draw(self, rng: np.random.Generator) -> Array:
        """Return latent values sampled from the prior, shape (N,)."""
        try:
            root = np.linalg.cholesky(self.K + 1e-8 * np.diag(self.variance))
        except np.linalg.LinAlgError:
            # Rounding of the largest variances outweighs the jitter of the smallest.
            values, vectors = np.linalg.eigh(self.K)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + root @ rng.standard_normal(len(self.K)))


class DenseSolved(CholeskyFactor, Solved):
    """A `CholeskyFactor` that also visits sites."""

    def propose(
        self,
        problem: SiteProblem,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        """Propose updates of all sites, by one kernel if no precision is negative."""
        if self.negative.size or not self.K.flags.carray:
            return propose_matched(self, problem, marginals, sites, steps, counts)
        nu, failure = sites.nu.copy(), np.zeros(2)
        weights, mean, d_tau, d_nu = np.empty((4, problem.n))
        status, site = take_turn(
            problem.rules(),
            (steps, problem.matching(), np.zeros_like(counts)),
            problem.observations,
            (self.K, self.prior, self.upper_inverse(), self.root, weights),
            (mean, *marginals, weights),
            (sites.tau, nu),
            (d_tau, d_nu),
            (counts, failure),
        )
        problem.check(status, site, failure)
        self.relocate(nu, (weights, mean))
        return Sites(sites.tau, nu), d_tau, d_nu

    def sweep(
        self,
        problem: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Update every site once in the order of `visits`; see `Solved.sweep`."""
        shares = self.shares()
        covariance, mean, pull = self.covariance(last=True), self.mean, self.weights
        variance = covariance.diagonal().copy()
        kept = self.less_negative(shares, variance)
        tau, nu = sites.tau.copy(), sites.nu.copy()
        y, exponents = problem.observations
        if visits is not None:
            covariance = covariance[np.ix_(visits, visits)]
            mean, kept, pull = mean[visits], kept[visits], pull[visits]
            tau, nu, y, exponents = tau[visits], nu[visits], y[visits], exponents[visits]
        failure = np.zeros(2)
        status, site = sweep(
            problem.rules(),
            (y, exponents),
            covariance if covariance.flags.c_contiguous else np.ascontiguousarray(covariance.T),
            (mean, kept, pull),
            (tau, nu),
            damping,
            (counts, failure),
            APPLY_PANEL.handle,
        )
        problem.check(status, site if visits is None else visits[site], failure)
        if visits is not None:
            back = np.argsort(visits)
            tau, nu = tau[back], nu[back]
        return variance, tau - sites.tau, nu - sites.nu

    def keep(self) -> DenseState:
        """Return the triangle of the factor, and the solution."""
        return DenseState(self)

    def pullback(self, marginals: tuple[Array, Array]) -> DensePullback:
        """Return the transposed derivative of the given marginals."""
        return DensePullback(self, self._tau, marginals[1])


# --- Factorisations that a posterior keeps
#
# After inference K, the factor and its inverse hold 3 N^2 numbers. A prediction needs the weights
# and the factor; the gradient of the evidence needs an inverse, which is quickly computed again. A
# pickle holds only the nonzero triangle of the factor, N^2/2 numbers.


@restorable("dense-kept/1")
class DenseState(Triangle):
    """Triangle of a `CholeskyFactor`, and the solution: `weights` and `mean`, each of shape (N,).

    Parameters
    ----------
    factor : Factor
        Not changed; the triangle is shared with it.
    """

    def __init__(self, factor: CholeskyFactor) -> None:
        self.weights, self.mean = factor.weights, factor.mean
        self.root, self.lower = factor.root, factor.lower
        self.negative, self._small, self._reach = factor.negative, factor._small, factor._reach

    def inner(self) -> Array:
        """Compute (K + diag(1/tau))^-1, shape (N, N), which is not cached."""
        inverse = blas.square(blas.inverse_triangle(self.lower))
        mirror_upper(inverse.T)
        return self.inner_from(inverse)

    def predict(
        self, K_star: ArrayLike, k_star_diag: ArrayLike, mean: ArrayLike
    ) -> tuple[Array, Array]:
        """Return latent mean and variance at T new points; see `Posterior.predict`."""
        K_star = real(K_star, "K_star")
        if K_star.ndim != 2 or K_star.shape[1] != self.root.size:
            raise InputError(
                f"K_star must have shape (T, {self.root.size}), one column per training point; "
                f"got {K_star.shape}"
            )

        def moments(block: slice) -> tuple[Array, Array]:
            rows = K_star[block]
            if not np.isfinite(rows).all():
                finite(K_star, "K_star")
            with np.errstate(over="ignore", invalid="ignore"):
                return rows @ self.weights, self.reduction(rows)

        centre, reduction = in_blocks(moments, len(K_star), self.root.size)
        prior, offset = finite(k_star_diag, "k_star_diag"), finite(mean, "mean")
        for name, values in (("k_star_diag", prior), ("mean", offset)):
            if values.shape not in ((), centre.shape):
                raise InputError(f"{name} must have shape {centre.shape}, got {values.shape}")
        centre += offset
        variance = np.maximum(prior - reduction, 0.0)
        if not (np.isfinite(centre).all() and np.isfinite(variance).all()):
            raise NumericalError(
                "a prediction is beyond double precision: K_star does not belong to this "
                "posterior, or the latent function has to be rescaled"
            )
        return centre, variance

    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Return the gradient of the log evidence, given the derivative of K; see `Posterior`."""
        dK = finite(dK, "dK")
        n = self.mean.size
        if dK.shape[:2] != (n, n):
            raise InputError(f"dK must begin with {(n, n)}, got shape {dK.shape}")
        inner = np.outer(self.weights, self.weights) - self.inner()
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = 0.5 * np.tensordot(inner, dK, axes=([0, 1], [0, 1]))
        if not np.isfinite(gradient).all():
            raise NumericalError("the gradient is beyond double precision: rescale dK")
        return float(gradient) if gradient.ndim == 0 else gradient

    def __getstate__(self) -> dict[str, object]:
        packed, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"lower": packed}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.lower, _ = dtpttr(self.root.size, state["lower"], uplo="L")
