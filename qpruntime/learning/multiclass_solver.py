"""Fits of classes jointly: one kernel for all classes, or one for each, by their joint evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import warn_unsettled
from qpruntime.inference.multiclass.infer import concluded, problem_of
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.multiclass.solver import ClassPrior
from qpruntime.inference.sites import Sites
from qpruntime.kernels.gradients import covariance_function, quickest
from qpruntime.learning.objective import Family, LogPrior, settle_fast
from qpruntime.learning.optimise import Objective, Optimum, maximise
from qpruntime.learning.progress import expect
from qpruntime.learning.settings import Data, Settings

__all__ = ["Joint", "JointFamily", "each_its_own"]

# N x N arrays for each class: precisions, what they are multiplied by, and the covariance.
_BY_CLASS, _SHARED = 3.0, 4.0


class JointFamily(Family):
    """Priors of all classes, whose covariances are those of one kernel, or of one for each.

    Parameters
    ----------
    kernels : sequence of scikit-learn kernels
        One, or C. Theta are the log parameters of one after the other.
    X : ndarray, shape (N, d)
    layout : Layout
    """

    def __init__(self, kernels: Sequence[Any], X: Array, layout: Layout) -> None:
        self._kernels, self._layout = kernels, layout
        self._covariances = [covariance_function(kernel, X) for kernel in kernels]

    @property
    def theta(self) -> Array:
        return np.concatenate([kernel.theta for kernel in self._kernels])

    @property
    def bounds(self) -> Array:
        return np.vstack([kernel.bounds.reshape(-1, 2) for kernel in self._kernels])

    def at(self, theta: Array) -> ClassPrior:
        parts = np.split(theta, len(self._kernels))
        pairs = zip(self._covariances, parts, strict=True)
        K = [covariance.at(part) for covariance, part in pairs]
        return ClassPrior(K[0][None] if len(K) == 1 else np.array(K), self._layout)

    def contract(self, slope: Iterable[Array]) -> Array:
        if len(self._covariances) > 1:
            pairs = zip(self._covariances, slope, strict=True)
            return np.concatenate([covariance.contract(one) for covariance, one in pairs])
        total: Any = 0.0
        for one in slope:
            total = total + one
        return self._covariances[0].contract(total)


@dataclass(frozen=True)
class Joint:
    """The solver of classes jointly; see `qpruntime.learning.solvers.Solver`."""

    settings: Settings
    layout: Layout
    objective = Objective

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if a fit of n rows cannot fit into memory."""
        arrays = _BY_CLASS * self.layout.classes + _SHARED
        require(
            squares(n, arrays + (quickest(kernel, n).arrays if learns else 1.0)),
            f"a joint fit of N = {n} rows of {self.layout.classes} classes",
            'fit fewer rows, or multi_class="one_vs_rest" with inducing=200',
        )

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Say before how long a fit will take, if that is long."""
        # Work grows with the classes, as the cube does with rows.
        same = round(len(data.X) * (2.0 * self.layout.classes) ** (1.0 / 3.0))
        evaluations = (1 + self.settings.n_restarts) * min(12 + 3 * kernel.n_dims, 80)
        expect(same, evaluations, 'multi_class="one_vs_rest" is quicker, and inducing=200', True)

    def family(self, kernel: Kernel, data: Data) -> JointFamily:
        """Return the priors of one kernel for all classes."""
        return JointFamily([kernel], data.X, self.layout)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> ClassPosterior:
        """Return the posterior under one kernel for all classes."""
        return self.posterior([kernel], data, sites)

    def posterior(
        self, kernels: Sequence[Kernel], data: Data, sites: Sites | None
    ) -> ClassPosterior:
        """Return the posterior under kernels as they are; warn if it has not settled."""
        settings, words = self.settings, self.layout.words
        K = np.array([kernel(data.X) for kernel in kernels])
        problem = problem_of(K, self.layout, data.projector)
        try:
            end = settle_fast(
                problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites
            )
            warn_unsettled(end, settings.tol, self.layout.sites, of_estimator=True, words=words)
            return concluded(problem, end)
        except NumericalError as error:
            raise NumericalError(words(str(error))) from error


def each_its_own(
    joint: Joint, data: Data, log_prior: LogPrior | None, kernel: Kernel
) -> tuple[tuple[Kernel, ...], ClassPosterior, tuple[Optimum, ...]]:
    """Give each class a kernel, from the one for all: kernels, posterior, and the optimiser's run.

    `log_prior` is that of the parameters of one kernel, if there is one.
    """
    C, settings = joint.layout.classes, joint.settings
    kernels: tuple[Kernel, ...] = (kernel,) * C
    optima: tuple[Optimum, ...] = ()
    sites: Sites | None = None
    if settings.optimize and kernel.n_dims:
        optimum, sites = maximise(
            JointFamily(kernels, data.X, joint.layout),
            data.y,
            data.projector.for_evidence(),
            max_iterations=settings.max_iter,
            ftol=settings.ftol,
            tol=settings.tol,
            max_sweeps=settings.max_sweeps,
            callback=settings.callback,
            log_prior=None if log_prior is None else _of_each(log_prior, C),
        )
        parts = np.split(optimum.theta, C)
        kernels, optima = tuple(kernel.clone_with_theta(part) for part in parts), (optimum,)
    return kernels, joint.posterior(kernels, data, sites), optima


def _of_each(log_prior: LogPrior, C: int) -> LogPrior:
    """The log prior of C kernels, of that of one."""

    def joined(theta: Array) -> tuple[float, Array]:
        found = [log_prior(part) for part in np.split(theta, C)]
        return sum(value for value, _ in found), np.concatenate([slope for _, slope in found])

    return joined
