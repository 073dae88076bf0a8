"""Fits where observations see linear functionals of the latent values, rows of an operator.

The family takes the slope of either side of the algebra back to the covariance of the latent
values; the solver is what fits ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import warn_unsettled
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solution import along, functionals_prior, takes_latent_side
from qpruntime.inference.operator.solver import LatentPrior
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem, check_powers
from qpruntime.inference.sites import Sites
from qpruntime.kernels.gradients import covariance_function
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data
from qpruntime.learning.objective import (
    Family,
    KernelParameters,
    settle_fast,
)
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import announce_duration
from qpruntime.learning.solvers import Dense
from qpruntime.learning.train import Fit, train

__all__ = ["OperatorFamily", "OperatorSolver", "train_operator", "with_units"]

# Arrays of the smaller side, squared: covariance, root, factor, inverse, slope, and one of work.
_ARRAYS = 6.0


class OperatorFamily(KernelParameters, Family):
    """Priors of A f, where f has the covariance ``kernel(X)``.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (n, d)
        Inputs of the n latent values.
    mean : ndarray, shape (n,)
        Prior mean of f.
    functionals : Functionals
        The N rows of A.
    latent : bool
        Whether the algebra is that of the latent values, or that of the observations.

    Columns of A beyond the n are of independent latent values of mean 0 and variance 1, whatever
    the kernel.
    """

    def __init__(
        self, kernel: Kernel, X: Array, mean: Array, functionals: Functionals, latent: bool
    ) -> None:
        self._kernel = kernel
        self._functionals, self._latent = functionals, latent
        self._covariance = covariance_function(kernel, X)
        self._units = functionals.latent - len(X)
        self._mean = np.concatenate([mean, np.zeros(self._units)])

    def at(self, theta: Array) -> DensePrior | LatentPrior:
        """Return the prior of these parameters."""
        K = with_units(self._covariance.at(theta), self._units)
        return functionals_prior(self._functionals, K, self._mean, self._latent)

    def contract(self, slope: Array) -> Array:
        """Turn a slope by the prior into that by theta."""
        if not self._latent:
            # g = A f: a number whose slope by Cov(g) is M has the slope A' M A by K.
            slope = self._functionals.back(self._functionals.back(slope).T)
        latent_count = len(slope) - self._units
        return self._covariance.contract(np.ascontiguousarray(slope[:latent_count, :latent_count]))


def with_units(K: Array, units: int) -> Array:
    """Return the joint covariance of K and of `units` independent values of variance 1."""
    if not units:
        return K
    joint = np.eye(len(K) + units)
    joint[: len(K), : len(K)] = K
    return joint


@dataclass(frozen=True)
class OperatorSolver(Dense):
    """The solver of observations along functionals; see `qpruntime.learning.solvers.Solver`.

    Rows of `Data.X` are those of the latent values, and so is its prior mean.
    """

    functionals: Functionals

    def _latent(self, data: Data) -> bool:
        return takes_latent_side(self.functionals, data.projector.method)

    def _side(self) -> int:
        return min(self.functionals.n, self.functionals.latent)

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if a fit of n latent values cannot fit into memory."""
        need = squares(self.functionals.latent, 3.0) + squares(self._side(), _ARRAYS)
        what = f"a fit of {n} latent values to {self.functionals.n} observations"
        require(need, what, "pass fewer of the one or the other")

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Say before how long a fit will take, if that is long."""
        runs = 1 + self.settings.search.restarts
        announce_duration(
            self._side(), runs * (12 + 3 * kernel.n_dims), "fewer latent values or observations"
        )

    def family(self, kernel: Kernel, data: Data) -> OperatorFamily:  # type: ignore[override]
        """Return the priors of a kernel."""
        return OperatorFamily(kernel, data.X, data.prior, self.functionals, self._latent(data))

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> Posterior:
        """Return the posterior under a fixed kernel, and warn if it has not converged."""
        units, settings = self.functionals.latent - len(data.X), self.settings
        K, mean = with_units(kernel(data.X), units), np.concatenate([data.prior, np.zeros(units)])
        prior = functionals_prior(self.functionals, K, mean, self._latent(data))
        problem = Problem(prior, data.y, data.projector, weights=data.weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, len(data.y), of_estimator=True)
        return along(summarise(problem, end), self.functionals, K, mean)


def train_operator(
    data: Data, begin: Start, settings: Settings, functionals: Functionals, rng: np.random.Generator
) -> Fit:
    """Maximise the objective from the kernel's parameters and from restarts, then infer.

    Parameters
    ----------
    data : Data
        `X` and `prior` have a row for each latent value, `y` and `weights` one for each functional.
    begin : Start
        The kernel, whatever the settings say, and where to begin.
    settings : Settings
    functionals : Functionals
    rng : Generator
        For restarts.
    """
    check_powers(1.0, data.weights, data.projector, functionals.n)
    return train(data, begin, settings, rng, OperatorSolver(settings, functionals))
