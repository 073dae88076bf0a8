"""One process on the rows of stages: kernels climbed by dense fits, and judged by rows held out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.dense import Dense
from qpruntime.learning.maximise import Optimum
from qpruntime.learning.parameter_slopes import learnt
from qpruntime.learning.policy.operations import Budget, dense_evaluation, dense_inference
from qpruntime.learning.runs import optimise
from qpruntime.learning.settings import Settings
from qpruntime.projection.projector import Projector, project_arrays

__all__ = ["Climbed", "Trial", "some_of"]

# Sites of stages settle so far: they steer, and judge to three digits.
_TOL = 1e-4


@dataclass(frozen=True)
class Climbed:
    """Where a kernel has come to, and the sites there of the rows it was learnt from."""

    start: Start
    optimum: Optimum
    sites: Sites | None

    @property
    def theta(self) -> Array:
        """Log parameters of the kernel, then of the likelihood."""
        return self.optimum.theta

    @property
    def kernel(self) -> Kernel:
        """The kernel with its parameters."""
        own = self.start.kernel
        return own.clone_with_theta(self.theta[: own.n_dims])

    def projector(self, data: Data) -> Projector:
        """The projector of the data, with what was learnt of the likelihood."""
        if not data.learn:
            return data.projector
        logs = self.theta[self.start.kernel.n_dims :]
        return learnt(data.projector, tuple(data.learn), logs)


def some_of(data: Data, X: Array, rows: slice | NDArray[np.intp]) -> Data:
    """Return some rows of the data, with the inputs X of these rows."""
    columns = data.y, data.prior, data.weights, data.scale
    y, prior, weights, scale = (None if c is None else c[rows] for c in columns)
    assert y is not None
    assert prior is not None
    y = np.asarray(y, dtype=float)
    return replace(data, X=X, y=y, prior=prior, weights=weights, scale=scale)


@dataclass(frozen=True, eq=False)
class Trial:
    """A process on the rows of stages, whose inputs are in `data`.

    Climbs are of EP's evidence, as those of whole fits; judges see EP's posterior.
    """

    data: Data
    settings: Settings
    budget: Budget
    judged: slice

    def climb(
        self, start: Start, rows: int, ftol: float, iterations: int, theta: Array | None = None
    ) -> Climbed:
        """Maximise the evidence of the first rows, from `theta` or from where the start says.

        Raises
        ------
        NumericalError
            If inference fails where it begins.
        """
        data = self._first(rows)
        settings = replace(
            self.settings,
            n_restarts=0,
            ftol=max(ftol, self.settings.ftol),
            max_iter=min(iterations, self.settings.max_iter),
            kernel=None,
        )
        if theta is not None:
            start = replace(start, thetas=(theta,))
        rng = np.random.default_rng(0)  # of restarts, and there are none
        optima, sites, _ = optimise(data, start, settings, rng, None, Dense(settings))
        best = optima[0]
        features = start.kernel.n_dims if start.by_feature == 0 else 1
        self.budget.take(best.n_evaluations * dense_evaluation(rows, features))
        # It is meant to end early: where it did is nothing for the user to mend.
        return Climbed(start, replace(best, success=True), sites)

    def densities(self, climbed: Climbed, rows: int) -> Array:
        """Log predictive densities of the judges, given the first rows; minus infinity if none.

        Weighted as the judges are.
        """
        count = self.judged.stop - self.judged.start
        return _or_none(lambda: self._densities(climbed, rows), count)

    def left_out(self, climbed: Climbed, rows: int) -> Array:
        """Weighted log predictive densities of the first rows, each left out; likewise."""

        def found() -> Array:
            densities: Array = self._posterior(climbed, rows)[1].loo()
            return _weighted(densities, self._first(rows).weights)

        return _or_none(found, rows)

    def _densities(self, climbed: Climbed, rows: int) -> Array:
        data, judges = self._first(rows), some_of(self.data, self.data.X[self.judged], self.judged)
        projector, post = self._posterior(climbed, rows)
        kernel = climbed.kernel
        K_star = kernel(judges.X, data.X)
        if data.scale is not None:
            K_star *= data.scale
        mean, variance = post.predict(K_star, kernel.diag(judges.X), mean=judges.prior)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        if judges.scale is not None:
            mean, deviation = mean * judges.scale, deviation * judges.scale
        # A latent variance of 0 comes from rounding; projections want a width.
        deviation = np.maximum(deviation, 1e-15)
        found = project_arrays(projector.likelihood, mean, deviation, judges.y, "ep").log_z
        return _weighted(found, judges.weights)

    def _posterior(self, climbed: Climbed, rows: int) -> tuple[Projector, Any]:
        """EP's, of the first rows."""
        data = self._first(rows)
        projector = climbed.projector(data).for_evidence()
        dense = Dense(replace(self.settings, tol=max(_TOL, self.settings.tol)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            own = replace(data, projector=projector)
            post = dense.infer(climbed.kernel, own, climbed.sites)
        self.budget.take(dense_inference(rows))
        return projector, post

    def _first(self, rows: int) -> Data:
        return some_of(self.data, self.data.X[:rows], slice(rows))


def _or_none(densities: Callable[[], Array], count: int) -> Array:
    """Minus infinity if inference fails."""
    try:
        return densities()
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return np.full(count, -np.inf)


def _weighted(densities: Array, weights: Array | None) -> Array:
    return densities if weights is None else densities * (weights / weights.mean())
