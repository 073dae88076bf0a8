"""Fits of a series: evidence and gradient in O(N), for X of one column and a Markov kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import Limits, finite_evidence, warn_unsettled
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.passes import Rows
from qpruntime.inference.markov.posterior import SeriesPosterior
from qpruntime.inference.markov.solution import Placed, concluded
from qpruntime.inference.markov.streaming import settle
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import NotMarkov, StateSpace, state_space
from qpruntime.learning.objective import (
    KernelParameters,
    Objective,
    parameter_slopes,
    reparametrised,
)
from qpruntime.learning.settings import Data, Settings
from qpruntime.projection.projector import Projector

__all__ = ["SeriesFamily", "SeriesObjective", "SeriesSolver", "why_not"]


def why_not(kernel: Kernel, data: Data, settings: Settings) -> str:
    """Say why a fit is none of a series; nothing if it is one."""
    if data.X.shape[1] != 1:
        return f"X must have one column, got {data.X.shape[1]}"
    if data.projector.method == "vb":
        return 'method "vb" needs the dense solver'
    if settings.search.objective == "loo" and settings.optimize:
        return 'optimize="loo" needs the dense solver'
    try:
        state_space(kernel, settings.approximate)
    except NotMarkov as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class SeriesSolver:
    """The solver of series; see `qpruntime.learning.solvers.Solver`."""

    settings: Settings

    @property
    def objective(self) -> type[Objective]:
        """Objective class to maximise."""
        return SeriesObjective

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Do nothing: memory grows with n alone."""

    def expect(self, data: Data, kernel: Kernel) -> None:
        """Say nothing: a million rows take seconds."""

    def family(self, kernel: Kernel, data: Data) -> SeriesFamily:
        """Return the priors of a kernel."""
        approximate = self.settings.approximate
        return SeriesFamily(kernel, data.X, data.observed_prior, data.scale, approximate)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> SeriesPosterior:
        """Return the posterior under a fixed kernel, and warn if it has not converged."""
        order, series = sorted_series(
            data.X, data.y, data.projector, data.observed_prior, data.scale, data.weights
        )
        if sites is not None:
            sites = Sites(sites.tau[order], sites.nu[order])
        settings, n = self.settings, len(data.X)
        space = state_space(kernel, settings.approximate)
        limits = Limits(settings.tol, settings.max_sweeps, 1.0)
        placed = Placed(Clock(0, False), order, np.arange(n), n)
        outcome, solution = concluded(kernel, space, series, limits, sites, placed)
        post = SeriesPosterior._of(outcome, solution, swept=outcome.n)
        warn_unsettled(post, settings.tol, n, of_estimator=True)
        return post


class SeriesFamily(KernelParameters):
    """The priors of one kernel over a series; arguments as those of `KernelFamily`.

    `approximate` is that of `state_space`.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Array,
        mean: Array,
        scale: Array | None = None,
        approximate: float | None = None,
    ) -> None:
        self._kernel, self.X, self.mean, self.scale = clone(kernel), X, mean, scale
        self.approximate = approximate

    def at(self, theta: Array) -> StateSpace:
        """Return the states of these log parameters."""
        return state_space(self._kernel.clone_with_theta(theta), self.approximate)


class SeriesObjective(Objective):
    """Negative log evidence of a series and its gradient; arguments as those of `Objective`."""

    def __init__(self, family: Any, y: Array, projector: Projector, *args: Any) -> None:
        super().__init__(family, y, projector, *args)
        self._order, self._series = sorted_series(
            family.X, y, projector, family.mean, family.scale, self.weights
        )

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Return the log evidence and its gradient with respect to theta."""
        count = theta.size - len(self.learn)
        space: Any = self.family.at(theta[:count])
        series = replace(self._series, bounded=self._bounded)
        if self.learn:
            projector = reparametrised(self.projector, self.learn, theta[count:])
            series = replace(series, projector=projector)
        guess = self._extrapolation.guess(theta)
        n = series.t.size
        sites = Sites(np.zeros(n), np.zeros(n)) if guess is None else guess
        sites = Sites(*(s.copy() for s in sites))
        rows = Rows(series, space, sites)
        end = settle(rows, Limits(self.tolerance(), self.max_sweeps, 1.0), warm=guess is not None)
        is_free = series.projector.likelihood.log_concave or not self.learn
        if not is_free and self.evaluations > 1 and (end.held or not end.settled):
            raise NumericalError("the sites have no fixed point at these parameters")
        summary = end.summary
        finite_evidence(summary.log_evidence)
        slopes = space.gradient(rows.slope(), summary.noise)
        if self.learn:
            parameter_gradient = parameter_slopes(series, self.learn, *rows.cavities())[0]  # type: ignore[arg-type]
            slopes = np.concatenate([slopes, parameter_gradient.sum(axis=1)])
        self._extrapolation.learn(theta, sites)
        self._bounded |= end.held > 0
        inverse_order = np.empty(n, dtype=np.intp)
        inverse_order[self._order] = np.arange(n)
        self.sites = Sites(
            sites.tau[inverse_order], (sites.nu + sites.tau * series.prior)[inverse_order]
        )
        return summary.log_evidence, slopes


def sorted_series(
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    scale: Array | None,
    weights: Array | None,
) -> tuple[NDArray[np.intp], SortedSeries]:
    """Return the order of rows in time, and the rows in this order."""
    t = X[:, 0]
    order = np.argsort(t, kind="stable")

    def in_order(values: Array | None) -> Array | None:
        return None if values is None else np.ascontiguousarray(values[order])

    series = SortedSeries(
        t[order],
        y[order].astype(float),
        projector,
        prior[order],
        in_order(weights),
        in_order(scale),
    )
    return order, series
