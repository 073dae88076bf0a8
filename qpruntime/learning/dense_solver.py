"""Fits by the dense engine: any kernel, N^3 operations an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import warn_unsettled
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.kernels.gradients import quickest
from qpruntime.learning.objective import OBJECTIVES, KernelFamily, Objective, settle_fast
from qpruntime.learning.progress import USUAL_EVALUATIONS, announce_duration
from qpruntime.learning.settings import Data, Settings

__all__ = ["Dense", "least_bytes"]

# Number of N x N arrays beside those of the kernel: a factor and its inverse for inference, and the
# slope for an evaluation.
_INFERENCE, _SLOPE = 2.0, 1.0


def least_bytes(n: int, kernel: Kernel, learns: bool = True) -> float:
    """Return the least memory of a dense fit of n rows, in bytes, for `qpruntime._memory.fits`.

    Parameters
    ----------
    n : int
    kernel : scikit-learn kernel
    learns : bool
        Whether hyper-parameters are learnt.
    """
    if not learns:
        return squares(n, 1.0 + _INFERENCE)
    return squares(n, quickest(kernel, n).arrays + _INFERENCE + _SLOPE)


@dataclass(frozen=True)
class Dense:
    """The solver of covariance matrices; see `qpruntime.learning.solvers.Solver`."""

    settings: Settings

    @property
    def objective(self) -> type[Objective]:
        """Objective class to maximise."""
        return OBJECTIVES[self.settings.search.objective]

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if a fit of n rows cannot fit into memory."""
        require(
            least_bytes(n, kernel, learns),
            f"a dense fit of N = {n} rows",
            f"{self._fewer} fits by inducing points, in memory that grows with N alone",
        )

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Announce how long a fit will take if that is long."""
        runs = 1 + self.settings.search.restarts
        # Each further parameter of a given kernel takes more; the default kernel starts close.
        evaluations = min(12 + 3 * kernel.n_dims, 80) if self.settings.given else USUAL_EVALUATIONS
        concave = data.projector.likelihood.log_concave
        announce_duration(len(data.X), runs * evaluations, self._fewer, concave)

    @property
    def _fewer(self) -> str:
        """Argument that fits the same data with inducing points."""
        settings = self.settings
        return "inducing=200" if settings.given or settings.auto is not None else 'inducing="auto"'

    def family(self, kernel: Kernel, data: Data) -> KernelFamily:
        """Return the priors of a kernel."""
        return KernelFamily(kernel, data.X, data.observed_prior, data.scale)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> Posterior:
        """Return the posterior under a fixed kernel, and warn if it has not converged."""
        K, settings = kernel(data.X), self.settings
        if data.scale is not None:
            K *= np.outer(data.scale, data.scale)
        prior = DensePrior(K, data.observed_prior)
        problem = Problem(prior, data.y, data.projector, weights=data.weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, len(data.y), of_estimator=True)
        return summarise(problem, end)
