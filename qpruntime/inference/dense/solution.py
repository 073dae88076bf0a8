"""Solution of the dense engine: a factor, the data, and the covariance unless pickled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.fixed_point.iterate import log_evidence
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.posterior import Posterior, report_of
from qpruntime.inference.problem import Observed, Problem
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import (
    Crossed,
    Solution,
    common_value,
    given_mean,
    prior_mean,
)
from qpruntime.inference.solver_protocol import PredictiveState

__all__ = ["DenseSolution", "JointPoints", "summarise"]

#: Prior covariances of points with the rows and with each other, and their prior mean.
JointPoints = tuple[Array, Array, ArrayLike | None]


@restorable("dense-solution/1")
@dataclass(frozen=True, eq=False)
class DenseSolution(Solution):
    """Solution of the dense engine; see `qpruntime.inference.solution_protocol.Solution`.

    Attributes
    ----------
    sites_held : Sites
    mean, variance, log_z : ndarray, shape (N,)
        Results at the rows; the last are leave-one-out log densities.
    kept : PredictiveState
        State for predictions and the gradient.
    data : Observed
        Pickles leave its covariance out.
    """

    sites_held: Sites
    mean: Array
    variance: Array
    log_z: Array
    kept: PredictiveState
    data: Observed

    where = ("K_star", "k_star_diag")
    name, corrects = "dense", True

    @property
    def algebra(self) -> int:
        """Number of rows of the factor."""
        return self.mean.size

    @property
    def held_rows(self) -> int:
        """Number of rows."""
        return self.mean.size

    @property
    def width(self) -> int:
        """Numbers that a prediction computes per point."""
        return self.mean.size

    def sites(self) -> Sites:
        """Return the sites at the rows."""
        return self.sites_held

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances at the rows."""
        return self.mean, self.variance

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of selected rows."""
        return self.log_z.copy() if rows is None else self.log_z[rows]

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances, given prior covariances and variances of points."""
        return self.kept.predict(*at, given_mean(mean, self.usual))

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Return points for corrections."""
        offset = given_mean(mean, self.usual)
        self.kept.predict(*at, offset)  # checks the arguments
        K_star, diagonal, offset = (np.asarray(a, dtype=float) for a in (*at, offset))
        diagonal_and_offset = (np.broadcast_to(a, len(K_star)) for a in (diagonal, offset))
        return MarginalPoints(K_star, *diagonal_and_offset)

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return joint moments at points, given prior covariances with the rows and each other.

        The points are the rows themselves if none are given.
        """
        K_star, K_new, mean = self._points(at, mean)
        count_new = len(K_star)
        if K_new.shape != (count_new, count_new):
            raise InputError(
                f"joint draws at {count_new} points take their prior covariance (T, T) for a "
                f"second argument, got shape {K_new.shape}"
            )
        require(squares(count_new, 3.0), f"joint draws at {count_new} points", "take fewer points")
        offset = prior_mean(mean, self.usual, (count_new,))
        mean_new = self.kept.predict(K_star, K_new.diagonal(), offset)[0]
        return mean_new, K_new - self.reduced(K_star)

    def reduced(self, K_star: Array) -> Array:
        """Return prior less posterior covariance of points, or raise `InputError`."""
        reduced = getattr(self.kept, "reduced", None)
        if reduced is None:
            raise InputError("joint draws are of the dense engine's own posteriors")
        return np.asarray(reduced(K_star))

    def _points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> JointPoints:
        """Return prior covariances of points with the rows and each other, and the prior mean."""
        if not at:
            K = self.data.K
            if K is None:
                raise InputError("draws at the rows take post.with_covariance(K) of a pickle")
            return K, K, self.data.prior if mean is None else mean
        return finite(at[0], "K_star"), finite(at[1], "K_new"), mean

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of the log evidence for a change of the covariance."""
        if change is None:
            raise InputError("evidence_gradient takes dK here, (N, N) or (N, N, p)")
        return self.kept.evidence_gradient(change)

    def observed(self) -> Observed:
        """Return data and prior covariance."""
        return self.data

    @property
    def knows_covariance(self) -> bool:
        """True if the covariance is held."""
        return self.data.K is not None

    def with_covariance(self, K: ArrayLike) -> DenseSolution:
        """Return the solution with its prior covariance, which pickles leave out."""
        data = self.data.with_covariance(K, self.kept.weights, self.mean)
        return replace(self, data=data)

    def without_covariance(self) -> DenseSolution:
        """Return the solution without its prior covariance."""
        return replace(self, data=replace(self.data, K=None))

    def facts(self) -> dict[str, str | int | float]:
        """Return the engine's entries of a summary."""
        return {"n_negative": int((self.sites_held.tau < 0.0).sum())}

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return covariances of the points."""
        return crossed()

    @property
    def usual(self) -> float | None:
        """Prior mean, if it is a single number."""
        return common_value(self.data.prior)


# --- Settled sites as a `Posterior`


def summarise(problem: Problem, end: Settled) -> Posterior:
    """Compute evidence and cavities of settled sites."""
    evidence, log_z = log_evidence(problem, end)
    if end.bound is not None:
        evidence = end.bound
    outcome = report_of(problem.projector, end, problem.n, evidence)
    prior = problem.prior
    data = problem.y, prior.mean, problem.projector.likelihood, problem.power, problem.weights
    rows = end.sites, end.factor.mean, end.variance, log_z
    solution = DenseSolution(*rows, end.factor.keep(), Observed(prior.covariance, *data))
    return Posterior._of(outcome, solution)
