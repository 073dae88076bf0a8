"""Fits of a series: evidence and gradient in O(N), where X is one column and the kernel is Markov.

The one place that chooses between the dense engine and states. Knows no labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.markov.evidence import require_evidence
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.posterior import Placed, SeriesPosterior, Sweeper, conclude
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.settle import settle
from qpruntime.inference.markov.state_space import NotMarkov, StateSpace, state_space
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.learning.maximise import Objective
from qpruntime.learning.parameter_slopes import parameter_slopes, reparametrised
from qpruntime.projection.projector import Projector

__all__ = ["SeriesFamily", "SeriesObjective", "infer_rows", "takes_states"]

#: Below this many rows the dense engine is as fast, and nothing compiles for it.
_FEWEST = 300


def takes_states(
    solver: str, kernel: Any, X: Array, projector: Projector, objective: str, optimize: bool
) -> bool:
    """Whether a fit is that of a series.

    Raises
    ------
    InputError
        If ``solver="markov"`` was asked for and cannot be had.
    """
    if solver == "dense" or (solver == "auto" and len(X) < _FEWEST):
        return False
    reason = ""
    if X.shape[1] != 1:
        reason = f"X must have one column, got {X.shape[1]}"
    elif projector.method == "vb":
        reason = 'method "vb" needs the dense solver'
    elif objective == "loo" and optimize:
        reason = 'objective "loo" needs the dense solver'
    else:
        try:
            state_space(kernel)
        except NotMarkov as error:
            reason = str(error)
    if reason and solver == "markov":
        raise InputError(f'solver="markov": {reason}')
    return not reason


class SeriesFamily:
    """The priors of one kernel over a series; arguments as those of `KernelFamily`."""

    def __init__(
        self,
        kernel: Any,
        X: Array,
        mean: Array,
        scale: Array | None = None,
        sweeper: Sweeper = Rows,
    ) -> None:
        self.kernel, self.X, self.mean, self.scale = clone(kernel), X, mean, scale
        self.sweeper = sweeper

    @property
    def theta(self) -> Array:
        theta: Array = self.kernel.theta
        return theta

    @property
    def bounds(self) -> Array:
        bounds: Array = self.kernel.bounds
        return bounds.reshape(-1, 2)

    def at(self, theta: Array) -> StateSpace:
        """Return the states of these log parameters."""
        return state_space(self.kernel.clone_with_theta(theta))


class SeriesObjective(Objective):
    """Negative log evidence of a series and its gradient; arguments as those of `Objective`."""

    def __init__(self, family: Any, y: Array, projector: Projector, *args: Any) -> None:
        super().__init__(family, y, projector, *args)
        self._order, self._series = sorted_series(
            family.X, y, projector, family.mean, family.scale, self.weights
        )

    def evaluate(self, theta: Array) -> tuple[float, Array]:
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
        family: Any = self.family
        rows = family.sweeper(series, space, sites)
        end = settle(rows, Limits(self.tolerance(), self.max_sweeps, 1.0), warm=guess is not None)
        free = series.projector.likelihood.log_concave or not self.learn
        if not free and self.evaluations > 1 and (end.held or not end.settled):
            raise NumericalError("the sites have no fixed point at these parameters")
        found = end.summary
        require_evidence(found)
        slopes = space.gradient(rows.slope(), found.noise)
        if self.learn:
            own = parameter_slopes(series, self.learn, *rows.cavities())[0]  # type: ignore[arg-type]
            slopes = np.concatenate([slopes, own.sum(axis=1)])
        self._extrapolation.learn(theta, sites)
        self._bounded |= end.held > 0
        back = np.empty(n, dtype=np.intp)
        back[self._order] = np.arange(n)
        self.sites = Sites(sites.tau[back], (sites.nu + sites.tau * series.prior)[back])
        return found.log_evidence, slopes


def sorted_series(
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    scale: Array | None,
    weights: Array | None,
) -> tuple[Any, Series]:
    """Rows in order of time."""
    t = X[:, 0]
    order = np.argsort(t, kind="stable")

    def some(values: Array | None) -> Array | None:
        return None if values is None else np.ascontiguousarray(values[order])

    series = Series(
        t[order], y[order].astype(float), projector, prior[order], some(weights), some(scale)
    )
    return order, series


def infer_rows(
    kernel: Any,
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    limits: Limits,
    *,
    sites: Sites | None,
    options: Mapping[str, Array | None],
    sweeper: Sweeper = Rows,
) -> SeriesPosterior:
    """Posterior of the rows of X (N, 1) under a kernel; `options` are scale and weights."""
    order, series = sorted_series(
        X, y, projector, prior, options.get("scale"), options.get("weights")
    )
    if sites is not None:
        sites = Sites(sites.tau[order], sites.nu[order])
    space: StateSpace = state_space(kernel)
    placed = Placed(Clock(0, False), order, np.arange(len(X)), len(X))
    return conclude(kernel, space, series, limits, sites, placed, sweeper)
