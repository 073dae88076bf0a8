"""Solution of inference along an operator: settled functionals and predictions of f."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.dense.solution import DenseSolution, JointPoints
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solver import LatentKept, LatentPrior, RowsKept
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.problem import Observed, check_prior, covariance
from qpruntime.inference.solution_protocol import common_value, prior_mean

__all__ = ["OperatorSolution", "along", "functionals_prior", "takes_latent_side"]


@restorable("operator-solution/1")
@dataclass(frozen=True, eq=False)
class OperatorSolution(DenseSolution):
    """Solution along an operator: rows are functionals, and points are related to f.

    Attributes
    ----------
    functionals : Functionals
    prior : ndarray, shape (n,)
        Prior mean of f.
    K : ndarray, shape (n, n), or None
        Prior covariance of f; pickles leave it out.
    latent_moments : tuple or None
        Posterior means and variances of f, once they are computed.
    """

    kept: RowsKept | LatentKept
    functionals: Functionals
    prior: Array
    K: Array | None
    latent_moments: tuple[Array, Array] | None = None

    name = "operator"

    @property
    def words(self) -> str:
        """Words about the engine for a line of the summary."""
        return f" along an operator of {self.functionals.latent} latent values"

    @property
    def algebra(self) -> int:
        """Number of rows of the factor."""
        return min(self.functionals.n, self.functionals.latent)

    @property
    def width(self) -> int:
        """Numbers that a prediction computes for a point."""
        return self.functionals.latent

    def latent(self) -> tuple[Array, Array]:
        """Return posterior means and variances of f, each of shape (n,)."""
        if self.latent_moments is None:
            K = self._covariance()
            moments = self.kept.predict(K, K.diagonal(), self.prior)
            object.__setattr__(self, "latent_moments", moments)
        assert self.latent_moments is not None
        return self.latent_moments

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances at points, given their prior covariances."""
        K_star, diagonal = self._crossed(at[0]), finite(at[1], "k_star_diag")
        if diagonal.shape not in ((), (len(K_star),)):
            raise InputError(f"k_star_diag must have shape {(len(K_star),)}, got {diagonal.shape}")
        return self.kept.predict(K_star, diagonal, prior_mean(mean, self.usual, (len(K_star),)))

    def _crossed(self, K_star: ArrayLike) -> Array:
        K_star, n = real(K_star, "K_star"), self.functionals.latent
        if K_star.ndim != 2 or K_star.shape[1] != n:
            raise InputError(
                f"K_star must have shape (T, {n}), prior covariances with the {n} latent values "
                f"of K; got {K_star.shape}"
            )
        return finite(K_star, "K_star")

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Return points for corrections."""
        K_star = self._crossed(at[0])
        self.predict(at, mean)  # checks the arguments
        diagonal = np.asarray(at[1], dtype=float)
        offset = prior_mean(mean, self.usual, (len(K_star),))
        crossed = self.functionals.seen(K_star)
        diagonal_and_offset = (np.broadcast_to(a, len(K_star)) for a in (diagonal, offset))
        return MarginalPoints(crossed, *diagonal_and_offset)

    def _points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> JointPoints:
        if not at:
            K = self._covariance()
            at, mean = (K, K), self.prior if mean is None else mean
        return self._crossed(at[0]), finite(at[1], "K_new"), mean

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of the log evidence for a change of the covariance of f."""
        n = self.functionals.latent
        dK = finite(change, "dK") if change is not None else np.empty(0)
        if dK.shape[:2] != (n, n):
            raise InputError(
                f"evidence_gradient takes dK of the latent values here, {(n, n)} or {(n, n)} and "
                f"p, got shape {dK.shape}"
            )
        return self.kept.evidence_gradient(dK)

    def observed(self) -> Observed:
        """Return data and prior covariance of the functionals."""
        if self.K is None:
            return self.data
        return replace(self.data, K=self.functionals.covariance(self.K))

    @property
    def knows_covariance(self) -> bool:
        """True if the covariance is available."""
        return self.K is not None

    def _covariance(self) -> Array:
        if self.K is None:
            raise InputError("the latent values take post.with_covariance(K) of a pickle")
        return self.K

    def with_covariance(self, K: ArrayLike) -> OperatorSolution:
        """Return the same with the prior covariance of f, which pickles leave out."""
        prior_covariance, _ = covariance(K)
        n = self.functionals.latent
        if prior_covariance.shape != (n, n):
            raise InputError(f"K must have shape {(n, n)}, got {prior_covariance.shape}")
        posterior_mean = self.functionals.times(
            self.prior + prior_covariance @ self.kept.latent_weights
        )
        check_prior(posterior_mean, self.mean, np.sqrt(self.variance), "observation")
        return replace(self, K=prior_covariance)

    def facts(self) -> dict[str, str | int | float]:
        """Return what this engine adds to a summary."""
        return {**super().facts(), "latent": self.functionals.latent}

    @property
    def usual(self) -> float | None:
        """Prior mean, if it is one number for all rows."""
        return common_value(self.prior)

    def __getstate__(self) -> dict[str, object]:
        if self.K is not None:
            self.latent()
        return {**vars(self), "K": None}


# --- Choice of the smaller side

#: Observations per latent value from which on the latent side costs less.
_MANY = 2


def takes_latent_side(functionals: Functionals, method: str) -> bool:
    """Decide whether n^3 + N n^2 operations are fewer than N^3, for n latent values and N rows."""
    # The bound of "vb" needs the covariance of the observed functionals.
    return method != "vb" and functionals.n >= _MANY * functionals.latent


def functionals_prior(
    functionals: Functionals, K: Array, mean: Array, latent: bool
) -> DensePrior | LatentPrior:
    """Return the prior of A f for f of covariance K (n, n) and mean (n,).

    Raises
    ------
    InputError
        If a row of A has no prior variance, or an array cannot fit into memory.
    """
    prior: DensePrior | LatentPrior
    if latent:
        prior = LatentPrior(functionals, K, mean)
    else:
        prior = DensePrior(functionals.covariance(K), functionals.times(mean))
    functionals.require_variances(prior.variance, K)
    return prior


def along(post: Posterior, functionals: Functionals, K: Array, mean: Array) -> Posterior:
    """Return the posterior of the functionals as one that also knows f."""
    rows_solution = solution_of(post)
    kept = (
        rows_solution.kept
        if isinstance(rows_solution.kept, LatentKept)
        else RowsKept(rows_solution.kept, functionals)
    )
    known = {**vars(rows_solution), "kept": kept, "data": replace(rows_solution.data, K=None)}
    prior = np.broadcast_to(mean, (functionals.latent,)).copy()
    solution = OperatorSolution(**known, functionals=functionals, prior=prior, K=K)
    return replace(post, _solution=solution)
