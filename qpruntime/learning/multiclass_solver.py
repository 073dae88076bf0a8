"""Joint fits of all classes: one kernel for all of them, by their joint evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
from qpruntime.learning.objective import Family, KernelParameters, settle_fast
from qpruntime.learning.optimise import Objective
from qpruntime.learning.progress import announce_duration
from qpruntime.learning.settings import Data, Settings

__all__ = ["Joint", "JointFamily"]

# Number of N x N arrays per class: precisions, their multipliers, and the covariance.
_ARRAYS_PER_CLASS, _SHARED_ARRAYS = 3.0, 4.0


class JointFamily(KernelParameters, Family):
    """Priors of all classes, whose covariances are those of one kernel.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    layout : Layout
    """

    def __init__(self, kernel: Kernel, X: Array, layout: Layout) -> None:
        self._kernel, self._layout = kernel, layout
        self._covariance = covariance_function(kernel, X)

    def at(self, theta: Array) -> ClassPrior:
        """Return the prior of these parameters."""
        return ClassPrior(self._covariance.at(theta)[None], self._layout)

    def contract(self, slope: Iterable[Array]) -> Array:
        """Turn a slope by the prior into that by theta."""
        total: Any = 0.0
        for class_slope in slope:
            total = total + class_slope
        return self._covariance.contract(total)


@dataclass(frozen=True)
class Joint:
    """The solver of classes jointly; see `qpruntime.learning.solvers.Solver`."""

    settings: Settings
    layout: Layout
    objective = Objective

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if a fit of n rows cannot fit into memory."""
        arrays = _ARRAYS_PER_CLASS * self.layout.classes + _SHARED_ARRAYS
        require(
            squares(n, arrays + (quickest(kernel, n).arrays if learns else 1.0)),
            f"a joint fit of N = {n} rows of {self.layout.classes} classes",
            'fit fewer rows, or multi_class="one_vs_rest" with inducing=200',
        )

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Say before how long a fit will take, if that is long."""
        # Work grows with the classes, as the cube does with rows.
        same = round(len(data.X) * (2.0 * self.layout.classes) ** (1.0 / 3.0))
        evaluations = (1 + self.settings.search.restarts) * min(12 + 3 * kernel.n_dims, 80)
        announce_duration(
            same, evaluations, 'multi_class="one_vs_rest" is quicker, and inducing=200', True
        )

    def family(self, kernel: Kernel, data: Data) -> JointFamily:
        """Return the priors of one kernel for all classes."""
        return JointFamily(kernel, data.X, self.layout)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> ClassPosterior:
        """Return the posterior under one kernel for all classes; warn if it has not settled."""
        settings, words = self.settings, self.layout.words
        problem = problem_of(kernel(data.X)[None], self.layout, data.projector)
        try:
            end = settle_fast(
                problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites
            )
            warn_unsettled(end, settings.tol, self.layout.sites, of_estimator=True, words=words)
            return concluded(problem, end)
        except NumericalError as error:
            raise NumericalError(words(str(error))) from error
