"""Solver for a covariance array, by Cholesky factors of a dense posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf, dpotrs, dtpttr, dtrttp

from qpruntime._memory import in_blocks
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense import blas
from qpruntime.inference.dense.cholesky_kernels import (
    APPLY_PANEL,
    divided,
    half_difference,
    mirror_upper,
    scaled_upper,
    squares_of_rows,
    sweep,
    take_turn,
    twice,
)
from qpruntime.inference.parallel_updates import propose_matched
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites
from qpruntime.inference.solver_protocol import Pullback, SiteProblem, Solved

__all__ = [
    "CholeskyFactor",
    "DensePrior",
    "DensePullback",
    "DenseSolved",
    "DenseState",
    "Triangle",
    "along_change",
    "evidence_slope",
    "finite_solution",
    "predict_in_blocks",
]


# --- Gradients


class DensePullback(Pullback):
    """Transposed derivative of variances v and means m, for S the posterior covariance.

    If the prior is fixed, dv = -(S * S) dtau and dm = S (dnu - mean dtau). If the sites are fixed,
    dS = A dK A' and dm = A dK weights, where A' = K^-1 S = I - diag(tau) S.

    Parameters
    ----------
    solution : tuple of ndarray
        Weights and means, each of shape (N,).
    covariance : ndarray, shape (N, N)
    tau, kept : ndarray, shape (N,)
        Site precisions, and 1 - tau variance.
    """

    def __init__(
        self, solution: tuple[Array, Array], covariance: Array, tau: Array, kept: Array
    ) -> None:
        self._weights, self._mean = solution
        self._S, self._tau, self._kept = covariance, tau, kept
        self._squared = self._S * self._S

    def to_sites(self, by_variance: Array, by_mean: Array) -> Array:
        """Return the derivatives by tau and nu, shape (2, N), with the prior fixed."""
        back = self._S @ by_mean
        return np.array([-(self._squared @ by_variance) - self._mean * back, back])

    def to_prior(self, by_variance: Array, by_mean: Array) -> Array:
        """Return the derivative by K, a square array, with the sites fixed."""
        A, weights = self._from_prior()
        M: Array = (A * by_variance) @ A.T
        to_mean = A @ by_mean
        M += 0.5 * (np.outer(to_mean, weights) + np.outer(weights, to_mean))
        return M

    def _from_prior(self) -> tuple[Array, Array]:
        """Return A and the weights."""
        # The diagonal of A is known; as I - (K + 1/tau)^-1 K it would cancel under a vast prior.
        A = -self._tau[:, None] * self._S
        A.flat[:: len(A) + 1] = self._kept
        return A, self._weights


# --- Factors of a Gaussian posterior with given sites
#
# The sites are t_i(f) = exp(nu_i f - tau_i f^2/2), the posterior covariance is S = (K^-1 +
# diag tau)^-1. With R = diag(sqrt(max(tau, 0))), all results derive from B = I + R K R, whose
# eigenvalues are at least 1 (Rasmussen & Williams, Section 3.6): no singular matrix is inverted.
# Negative site precisions enter as a correction of low rank, whose own Cholesky factorisation
# exists if and only if the posterior is proper.

# If 1 - (B^-1)_ii is below this value, it has lost too many digits to give the posterior variance.
# The subtraction from the prior variance is accurate there, and replaces it.
_CANCELLATION_LIMIT = 1e-4


def finite_solution(weights: Array, mean: Array) -> tuple[Array, Array]:
    """Return weights and mean, or raise `NumericalError` if the posterior mean is not finite."""
    if not np.isfinite(mean).all():
        site = int(np.argmin(np.isfinite(mean)))
        raise NumericalError(
            f"the posterior mean is not finite, at site {site} first: the sites have grown "
            "beyond double precision, because observations that K ties together contradict "
            "each other; add jitter to its diagonal"
        )
    return weights, mean


def predict_in_blocks(
    K_star: Array,
    prior: tuple[Array, Array],
    weights: Array,
    reduction: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Return latent means and variances of T points, or raise an error if they are not finite.

    Parameters
    ----------
    K_star : ndarray, shape (T, n)
        Prior covariances of the points with what `weights`, shape (n,), multiply.
    prior : tuple of ndarray
        Prior variances and means of the points.
    reduction : callable
        Returns prior minus posterior variances, given some rows of `K_star`.
    """

    def moments(block: slice) -> tuple[Array, Array]:
        rows = K_star[block]
        if not np.isfinite(rows).all():
            finite(K_star, "K_star")
        with np.errstate(over="ignore", invalid="ignore"):
            return rows @ weights, reduction(rows)

    mean, reduced = in_blocks(moments, len(K_star), weights.size)
    variance = np.maximum(prior[0] - reduced, 0.0)
    mean += prior[1]
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise NumericalError(
            "a prediction is beyond double precision: K_star does not belong to this "
            "posterior, or the latent function has to be rescaled"
        )
    return mean, variance


def evidence_slope(weights: Array, inner: Array) -> Array:
    """Return the derivative of the log evidence by K, (N, N) (Rasmussen & Williams, 5.27).

    `weights` are K^-1 (mean - prior mean), shape (N,), and `inner` is (K + diag(1/tau))^-1.
    """
    slope = np.outer(weights, weights)
    slope -= inner
    slope *= 0.5
    return slope


def along_change(slope: Array, change: Array) -> Array | float:
    """Return the change of the log evidence with that of K, (N, N) or (N, N, p), given its slope.

    Raises
    ------
    NumericalError
        If it is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        gradient = np.tensordot(slope, change, axes=([0, 1], [0, 1]))
    if not np.isfinite(gradient).all():
        raise NumericalError("the gradient is beyond double precision: rescale dK")
    return float(gradient) if gradient.ndim == 0 else gradient


class Triangle:
    """Factor of B without K, which suffices for predictions at new points.

    Attributes
    ----------
    root, lower : ndarray
        R, shape (N,), and L with B = L L^T, shape (N, N), not read above its diagonal.
    negative : ndarray
        Sites of negative precision; the correction for them is empty if there are none.
    """

    root: Array
    lower: Array
    negative: NDArray[np.intp]
    _small: Array
    _reach: Array

    @property
    def log_det(self) -> float:
        """Log determinant log |I + K diag(tau)|."""
        value = 2.0 * float(np.log(self.lower.diagonal()).sum())
        if self.negative.size:
            value += 2.0 * float(np.log(self._small.diagonal()).sum())
        return value

    def inner_from(self, inverse: Array) -> Array:
        """Return (K + diag(1/tau))^-1, shape (N, N), given B^-1."""
        inner = inverse * self.root
        inner *= self.root[:, None]
        if self.negative.size:
            part = solve_triangular(self._small, self._reach.T, lower=True)
            inner -= part.T @ part
        return inner

    def reduction(self, K_star: Array) -> Array:
        """Return prior less posterior variance at T points with covariances `K_star` (T, N)."""
        half = self._half_times(K_star.T)
        gain: Array = np.einsum("ij,ij->j", half, half)
        if self.negative.size:
            part = solve_triangular(self._small, self._reach.T @ K_star.T, lower=True)
            gain -= np.einsum("ij,ij->j", part, part)
        return gain

    def reduced(self, K_star: Array) -> Array:
        """Return prior less posterior covariance of T points with covariances `K_star` (T, N)."""
        half = self._half_times(K_star.T)
        gain = half.T @ half
        if self.negative.size:
            part = solve_triangular(self._small, self._reach.T @ K_star.T, lower=True)
            gain -= part.T @ part
        return gain

    def _half_times(self, columns: Array) -> Array:
        """Return L^-1 R columns."""
        scaled = np.multiply(self.root[:, None], columns, order="F")
        return blas.solve_lower(self.lower, scaled)


class CholeskyFactor(Triangle):
    """Posterior of given sites by the Cholesky factor of B = I + R K R.

    Parameters
    ----------
    K : ndarray, shape (N, N)
        Prior covariance.
    sites : Sites
    prior : ndarray, shape (N,)
        Prior mean.

    Raises
    ------
    NumericalError
        If B is not positive definite in double precision.
    ImproperPosterior
        If negative site precisions leave no posterior.
    """

    def __init__(self, K: Array, sites: Sites, prior: Array) -> None:
        self.K = K
        self.prior = prior
        self.root = np.sqrt(np.maximum(sites.tau, 0.0))
        # A C-ordered upper triangle is a Fortran-ordered lower one, as LAPACK needs it.
        self.lower, info = blas.cholesky(scaled_upper(K, self.root).T)
        if info != 0 or not np.isfinite(self.lower.diagonal()).all():
            raise NumericalError(
                f"I + R K R is not positive definite (row {abs(info)}): K has eigenvalues below "
                "zero, or K or the sites are too large for double precision; add jitter to its "
                "diagonal"
            )
        self._half: Array | None = None
        self._inverse: Array | None = None
        self._mirrored = False
        self._solution: tuple[Array, Array] | None = None
        self._tau = sites.tau
        self.negative = np.flatnonzero(sites.tau < 0.0)
        self._small = self._reach = np.empty((0, 0))
        if self.negative.size:
            self._correct(np.sqrt(-sites.tau[self.negative]))
        self.relocate(sites.nu)

    def _correct(self, depth: Array) -> None:
        """Prepare the low-rank correction for the negative site precisions -depth^2."""
        unit = np.zeros((len(self.K), depth.size))
        unit[self.negative, np.arange(depth.size)] = depth
        self._depth = depth
        columns = self.K[:, self.negative] * depth
        solved, _ = dpotrs(self.lower, self.root[:, None] * columns, lower=1)
        self._reach = unit - self.root[:, None] * solved
        self._spread = self.K @ self._reach
        # Sites that dominate their marginals need this form, which does not cancel.
        strong = self._tau * self.K.diagonal() > 1.0
        self._spread[strong] = solved[strong] / self.root[strong, None]
        small = np.eye(depth.size) - depth[:, None] * self._spread[self.negative]
        self._small, info = dpotrf(0.5 * (small + small.T), lower=1)
        if info != 0:
            raise ImproperPosterior(
                f"{depth.size} negative site precisions leave no proper posterior"
            )

    def relocate(self, nu: Array, solution: tuple[Array, Array] | None = None) -> None:
        """Set the sites' precision-weighted means; the posterior mean follows when it is read.

        `solution` has the new `weights` and `mean`, if they are known.
        """
        #: Precision-weighted site means for f measured from the prior mean.
        self.shifted = nu - self._tau * self.prior
        self._solution = None if solution is None else finite_solution(*solution)

    def _solve(self) -> tuple[Array, Array]:
        """Return K^-1 (posterior mean - prior mean) and the mean, by a few products with K."""
        if self._solution is not None:
            return self._solution
        linear = self.shifted
        if self.negative.size:
            centred = self.K @ self._weigh(linear)
            correction, _ = dpotrs(self._small, self._depth * centred[self.negative], lower=1)
            centred += self._spread @ correction
            linear = linear.copy()
            linear[self.negative] += self._depth**2 * centred[self.negative]
        weights = self._weigh(linear)
        mean = self.prior + self.K @ weights
        self._solution = finite_solution(weights, mean)
        return self._solution

    def _weigh(self, linear: Array) -> Array:
        """Return (I + diag(tau) K)^-1 linear, for the positive precisions."""
        right, direct = divided(self.K.diagonal().copy(), self._tau, linear)
        if direct.any():
            right -= self.K @ direct
        return np.asarray(direct + self._inner_times(right))

    @property
    def weights(self) -> Array:
        """Weights K^-1 (posterior mean - prior mean), shape (N,)."""
        return self._solve()[0]

    @property
    def mean(self) -> Array:
        """Posterior mean, shape (N,)."""
        return self._solve()[1]

    def _inner_times(self, right: Array) -> Array:
        """Return R B^-1 R right."""
        if self._half is not None and right.ndim == 1:
            return twice(self._half.T, self.root, right)
        scale = self.root if right.ndim == 1 else self.root[:, None]
        solved, _ = dpotrs(self.lower, scale * right, lower=1)
        return np.asarray(scale * solved)

    def upper_inverse(self) -> Array:
        """Return U with B^-1 = U U^T, in the upper triangle of a C-ordered array; cached."""
        return self._half_inverse().T

    def _half_inverse(self) -> Array:
        """Return L^-1 in the lower triangle; cached."""
        if self._half is None:
            self._half = blas.inverse_triangle(self.lower)
        return self._half

    def _inverse_half(self) -> Array:
        """Return B^-1 in the lower triangle; cached in place of L^-1."""
        if self._inverse is None:
            self._inverse = blas.square(self._half_inverse())
            self._half, self._mirrored = None, False
        return self._inverse

    def inverse(self) -> Array:
        """Return B^-1, shape (N, N); cached in place of L^-1."""
        inverse = self._inverse_half()
        if not self._mirrored:
            mirror_upper(inverse.T)
            self._mirrored = True
        return inverse

    def marginals(self) -> tuple[Array, Array]:
        """Return the posterior variances and 1 - tau variance, each of shape (N,).

        The second determines the cavity. It equals (B^-1)_ii, a sum of squares; the subtraction
        would cancel if a site dominates its marginal.
        """
        kept = self.shares()
        variance = (1.0 - kept) / np.maximum(self.root * self.root, 1e-300)
        lost = np.flatnonzero(1.0 - kept < _CANCELLATION_LIMIT)
        if not self.root.any():
            variance, lost = self.K.diagonal().copy(), lost[:0]
        for block in np.array_split(lost, -(-lost.size // 512)) if lost.size else ():
            columns = self._half_times(self.K[:, block])
            variance[block] = self.K.diagonal()[block] - np.einsum("ij,ij->j", columns, columns)
        if self.negative.size:
            variance += self._widening()
            kept = self.less_negative(kept, variance)
        return variance, kept

    def shares(self) -> Array:
        """Return 1 - tau variance, shape (N,), before the correction for negative precisions."""
        if not self.root.any():
            return np.ones(self.root.size)
        if self._inverse is None:
            return squares_of_rows(self.upper_inverse())
        return self._inverse.diagonal().copy()

    def less_negative(self, shares: Array, variance: Array) -> Array:
        """Return 1 - tau variance, from `shares` and the posterior variances."""
        if not self.negative.size:
            return shares
        kept = shares - self._tau * self._widening()
        kept[self.negative] = 1.0 - self._tau[self.negative] * variance[self.negative]
        return kept

    def _widening(self) -> Array:
        """Return the increase of the posterior variances by negative precisions."""
        part = solve_triangular(self._small, self._spread.T, lower=True)
        return np.asarray(np.einsum("ij,ij->j", part, part))

    def covariance(self, last: bool = False) -> Array:
        """Return the posterior covariance, shape (N, N).

        If `last`, it takes over the memory of the factorisation, which is unusable afterwards.
        """
        if last:
            self._solve()
        if not self.root.any() and not self.negative.size:
            if last:
                self.discard()
            return self.K.copy().T  # Fortran order, as LAPACK returns the others
        inverse = self.inverse()
        lost = np.flatnonzero(1.0 - inverse.diagonal() < _CANCELLATION_LIMIT)
        if 3 * lost.size > len(self.K):
            strong = np.flatnonzero(inverse.diagonal() < _CANCELLATION_LIMIT)
            rows = self._strong_rows(strong, inverse)
            del inverse
            self._inverse = None
            half = self._half_times(self.K)
            if last:
                self.lower = np.empty((0, 0))
            covariance: Array = dsyrk(
                -1.0, half, beta=1.0, c=self.K.T, overwrite_c=0, trans=1, lower=1
            )
            mirror_upper(covariance.T)
            covariance[strong] = rows
            covariance[:, strong] = rows.T
        else:
            # S = R^-1 (I - B^-1) R^-1 does not cancel at strong sites. The few weak ones use
            # S R = K R B^-1 and S = K - K R B^-1 R K.
            scale = np.ones(len(self.K))
            np.divide(1.0, self.root, out=scale, where=self.root > 0.0)
            rows = (self.K[lost] * self.root) @ inverse * scale
            half = self._half_times(self.K[:, lost])
            rows[:, lost] = self.K[np.ix_(lost, lost)] - half.T @ half
            covariance = inverse if last else inverse.copy(order="K")
            covariance *= -scale
            covariance *= scale[:, None]
            covariance.flat[:: len(self.K) + 1] += scale**2
            covariance[lost] = rows
            covariance[:, lost] = rows.T
        if self.negative.size:
            part = solve_triangular(self._small, self._spread.T, lower=True)
            covariance += part.T @ part
        if last:
            self.discard()
        return covariance

    def _strong_rows(self, strong: NDArray[np.intp], inverse: Array) -> Array:
        """Return rows of the covariance at strong sites, where K - K R B^-1 R K would cancel."""
        root = self.root[strong, None]
        rows = (inverse[strong] * self.root) @ self.K / root
        unit = strong[:, None] == strong
        rows[:, strong] = (unit - inverse[np.ix_(strong, strong)]) / (root * root.T)
        return rows

    def discard(self) -> None:
        """Free the memory of the factorisation; weights and mean stay."""
        self._solve()
        self._half = self._inverse = None
        self.lower = np.empty((0, 0))

    def inner(self) -> Array:
        """Return (K + diag(1/tau))^-1, shape (N, N)."""
        return self.inner_from(self.inverse())

    def slope(self) -> Array:
        """Return the derivative of the log evidence by K, (N, N) (Rasmussen & Williams, 5.27)."""
        if self.negative.size:
            return evidence_slope(self.weights, self.inner())
        return half_difference(self.weights, self.root, self._inverse_half().T)


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
        return DensePullback(self._solve(), self.covariance(), self._tau, marginals[1])


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
    factor : CholeskyFactor
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
        prior, shape = (finite(k_star_diag, "k_star_diag"), finite(mean, "mean")), (len(K_star),)
        for name, values in zip(("k_star_diag", "mean"), prior, strict=True):
            if values.shape not in ((), shape):
                raise InputError(f"{name} must have shape {shape}, got {values.shape}")
        return predict_in_blocks(K_star, prior, self.weights, self.reduction)

    def evidence_gradient(self, dK: ArrayLike) -> Array | float:
        """Return the gradient of the log evidence, given the derivative of K; see `Posterior`."""
        dK = finite(dK, "dK")
        n = self.mean.size
        if dK.shape[:2] != (n, n):
            raise InputError(f"dK must begin with {(n, n)}, got shape {dK.shape}")
        return along_change(evidence_slope(self.weights, self.inner()), dK)

    def __getstate__(self) -> dict[str, object]:
        packed, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"lower": packed}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.lower, _ = dtpttr(self.root.size, state["lower"], uplo="L")
