"""Solution of inference along an operator: settled functionals and predictions of f."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solver import LatentKept, LatentPrior, RowsKept
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.problem import Observed, covariance
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed, draws, prior_mean

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "OperatorSolution",
    "along",
    "functionals_prior",
    "takes_latent_side",
]

#: Two covariances count as equal if their posterior means agree to this, relative to their size.
_SAME = 1e-6


@restorable("operator-solution/1")
@dataclass(frozen=True, eq=False)
class OperatorSolution:
    """Solution along an operator; see `qpruntime.inference.solution_protocol.Solution`.

    Attributes
    ----------
    own : Sites
    mean_rows, variance_rows, log_z : ndarray, shape (N,)
        Results of the functionals; the last are leave-one-out log densities.
    kept : RowsKept or LatentKept
    functionals : Functionals
    prior : ndarray, shape (n,)
        Prior mean of f.
    data : Observed
        Data of the functionals, without a covariance.
    K : ndarray, shape (n, n), or None
        Prior covariance of f; pickles leave it out.
    moments_latent : tuple or None
        Posterior means and variances of f, once they are computed.
    """

    own: Sites
    mean_rows: Array
    variance_rows: Array
    log_z: Array
    kept: RowsKept | LatentKept
    functionals: Functionals
    prior: Array
    data: Observed
    K: Array | None
    moments_latent: tuple[Array, Array] | None = None

    lines = ()
    where = ("K_star", "k_star_diag")
    name, corrects = "operator", True

    @property
    def words(self) -> str:
        """Words about the engine for a line of the summary."""
        return f" along an operator of {self.functionals.latent} latent values"

    @property
    def algebra(self) -> int:
        """Number of rows of the factor."""
        return min(self.functionals.n, self.functionals.latent)

    @property
    def held_rows(self) -> int:
        """All rows."""
        return self.functionals.n

    @property
    def width(self) -> int:
        """Numbers that a prediction computes for a point."""
        return self.functionals.latent

    def sites(self) -> Sites:
        """Return the sites of the functionals."""
        return self.own

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances of the functionals."""
        return self.mean_rows, self.variance_rows

    def latent(self) -> tuple[Array, Array]:
        """Return posterior means and variances of f, each of shape (n,)."""
        if self.moments_latent is None:
            K = self._covariance()
            moments = self.kept.predict(K, K.diagonal(), self.prior)
            object.__setattr__(self, "moments_latent", moments)
        assert self.moments_latent is not None
        return self.moments_latent

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of chosen observations."""
        return self.log_z.copy() if rows is None else self.log_z[rows]

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log density, and its row."""
        row = int(np.argmin(self.log_z))
        return float(self.log_z[row]), row

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
        crossed = np.ascontiguousarray(self.functionals.times(np.ascontiguousarray(K_star.T)).T)
        diagonal_and_offset = (np.broadcast_to(a, len(K_star)) for a in (diagonal, offset))
        return MarginalPoints(crossed, *diagonal_and_offset)

    def draw(
        self,
        at: tuple[ArrayLike, ...],
        mean: ArrayLike | None,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Draw jointly at points, from their prior covariances with f and with each other.

        Without points the draws are those of f.
        """
        return draws(*self.joint(at, mean), count, rng)

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return means and covariances at such points."""
        if not at:
            K = self._covariance()
            at, mean = (K, K), self.prior if mean is None else mean
        K_star, K_new = self._crossed(at[0]), finite(at[1], "K_new")
        count_new = len(K_star)
        if K_new.shape != (count_new, count_new):
            raise InputError(
                f"joint draws at {count_new} points take their prior covariance (T, T) for a "
                f"second argument, got shape {K_new.shape}"
            )
        require(squares(count_new, 3.0), f"joint draws at {count_new} points", "take fewer points")
        offset = prior_mean(mean, self.usual, (count_new,))
        centre = self.kept.predict(K_star, K_new.diagonal(), offset)[0]
        return centre, K_new - self.kept.reduced(K_star)

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
        scale = np.abs(self.mean_rows) + np.sqrt(self.variance_rows)
        gap = np.abs(posterior_mean - self.mean_rows)
        if not (gap <= _SAME * scale).all():
            raise InputError(
                f"K is not the prior covariance of this posterior: with it the posterior mean of "
                f"observation {int(np.argmax(gap))} would be off by {gap.max():.3g}"
            )
        return replace(self, K=prior_covariance)

    def facts(self) -> dict[str, object]:
        """Return what this engine adds to a summary."""
        return {"n_negative": int((self.own.tau < 0.0).sum()), "latent": self.functionals.latent}

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return covariances of the points."""
        return crossed()

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> OperatorSolution:
        """Return the solution itself, which does not depend on inputs."""
        return self

    @property
    def usual(self) -> float | None:
        """Prior mean, if it is one number for all rows."""
        low, high = float(self.prior.min()), float(self.prior.max())
        return low if low == high else None

    def __getstate__(self) -> dict[str, object]:
        if self.K is not None:
            self.latent()
        return {**vars(self), "K": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)


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
    rows = rows_solution.own, rows_solution.mean, rows_solution.variance, rows_solution.log_z
    data = replace(rows_solution.data, K=None)
    prior = np.broadcast_to(mean, (functionals.latent,)).copy()
    return replace(post, _solution=OperatorSolution(*rows, kept, functionals, prior, data, K))
