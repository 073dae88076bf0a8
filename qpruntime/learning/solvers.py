"""Choice of the solver of a fit: covariance matrices or states of a Markov process.

Fits with inducing points have their own stages in `qpruntime.learning.sparse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sklearn.gaussian_process.kernels import Kernel

from qpruntime.errors import InputError
from qpruntime.inference.sites import Sites
from qpruntime.learning.dense_solver import Dense
from qpruntime.learning.monotone_solver import WithSlopes
from qpruntime.learning.multiclass_solver import Joint
from qpruntime.learning.objective import Objective
from qpruntime.learning.series_solver import SeriesSolver, why_not
from qpruntime.learning.settings import Data, Settings

__all__ = ["Solver", "solvers"]

#: Below this many rows the dense engine is as fast and needs no compilation.
_MIN_SERIES_ROWS = 300


class Solver(Protocol):
    """Protocol of a way to infer: priors of a kernel, an objective, and the final posterior."""

    @property
    def objective(self) -> type[Objective]:
        """Objective that is maximised over the priors of a kernel."""

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if a fit of n rows cannot fit into memory."""

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Announce how long a fit will take, if that is long."""

    def family(self, kernel: Kernel, data: Data) -> Any:
        """Return the priors of a kernel, as `qpruntime.learning.optimise` takes them."""

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> Any:
        """Return the posterior under a fixed kernel, and warn if it has not converged.

        `sites` are starting values, in the order of the rows.
        """


def solvers(data: Data, kernel: Kernel, settings: Settings) -> Callable[[Kernel], Solver]:
    """Return a function that chooses the solver of a kernel.

    Raises
    ------
    InputError
        If the settings have ``solver="markov"`` or a scheduler and this kernel has no states.
    """
    if data.slopes is not None:
        sloped = WithSlopes(settings)
        return lambda _: sloped
    if data.joint is not None:
        joint = Joint(settings, data.joint)
        return lambda _: joint
    few = settings.solver == "auto" and len(data.X) < _MIN_SERIES_ROWS
    # States have no posteriors at nodes.
    few |= settings.integrate is not None
    dense = Dense(settings)

    def reason(kernel: Kernel) -> str:
        if settings.solver == "dense" or few:
            return "the dense solver is taken"
        return why_not(kernel, data, settings)

    why = reason(kernel)
    if why and settings.solver == "markov":
        raise InputError(f'solver="markov": {why}')
    if settings.scheduler:
        raise InputError("scheduler needs inducing points: leave it out")
    states = SeriesSolver(settings)
    return lambda kernel: dense if why or reason(kernel) else states
