"""Solvers of a fit, and their choice: dense, monotone, states of a Markov process, joint classes.

Fits with inducing points have their own stages in `qpruntime.learning.sparse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits, finite_evidence, warn_unsettled
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.passes import Rows
from qpruntime.inference.markov.posterior import SeriesPosterior
from qpruntime.inference.markov.solution import Placed, concluded
from qpruntime.inference.markov.streaming import settle
from qpruntime.inference.multiclass.infer import concluded as joint_posterior, problem_of
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.multiclass.solver import ClassPrior
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites, no_sites
from qpruntime.kernels.derivative_covariance import DerivativeRows, contract, covariance
from qpruntime.kernels.gradients import covariance_function, quickest
from qpruntime.kernels.state_space import NotMarkov, StateSpace, state_space
from qpruntime.learning.inputs import Data, Slopes
from qpruntime.learning.objective import (
    OBJECTIVES,
    Family,
    KernelFamily,
    KernelParameters,
    Objective,
    parameter_slopes,
    reparametrised,
    settle_fast,
)
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import USUAL_EVALUATIONS, announce_duration
from qpruntime.projection.projector import Projector
from qpruntime.projection.sign_observations import encoded, signed

__all__ = [
    "Dense",
    "GivenSlopes",
    "Joint",
    "JointFamily",
    "SeriesFamily",
    "SeriesObjective",
    "SlopeFamily",
    "Solver",
    "and_slopes",
    "joint_covariance",
    "least_bytes",
    "solvers",
    "with_slopes",
]

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


# --- Covariance matrices: any kernel, N^3 operations an evaluation

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

    def problem(self, kernel: Kernel, data: Data) -> Problem:
        """Return the inference problem under a fixed kernel."""
        K = kernel(data.X)
        if data.scale is not None:
            K *= np.outer(data.scale, data.scale)
        prior = DensePrior(K, data.observed_prior)
        return Problem(prior, data.y, data.projector, weights=data.weights)

    def infer(self, kernel: Kernel, data: Data, sites: Sites | None) -> Posterior:
        """Return the posterior under a fixed kernel, and warn if it has not converged."""
        problem, settings = self.problem(kernel, data), self.settings
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, len(data.y), of_estimator=True)
        return summarise(problem, end)


# Derivatives make K ill-conditioned, so their variances are raised by this share.
_JITTER = 1e-8
# Number of N x N arrays of a fit: pairs and their derivatives, K, a factor, its inverse, the slope.
_N_ARRAYS = 14.0


def with_slopes(data: Data, slopes: Slopes, signs: Array) -> Data:
    """Return the data with these slopes, of signs -1 and +1, as rows after the others."""
    more, n = len(signs), len(data.y)
    weights = data.weights
    return replace(
        data,
        y=np.concatenate([data.y, signs]),
        prior=np.concatenate([data.prior, np.zeros(more)]),
        weights=None if weights is None else np.concatenate([weights, np.ones(more)]),
        scale=slopes.scales(n, data.scale),
        slopes=slopes,
    )


def and_slopes(data: Data, slopes: Slopes, signs: Array) -> Data:
    """Return the data with further slopes after the existing ones."""
    assert data.slopes is not None
    assert data.scale is not None
    extended = with_slopes(replace(data, slopes=None), slopes, signs)
    scale = np.concatenate([data.scale, slopes.times])
    return replace(extended, scale=scale, slopes=data.slopes.joined(slopes))


def joint_covariance(kernel: Kernel, rows: DerivativeRows, scale: Array) -> Array:
    """Return the covariance of the observed values and slopes."""
    K = covariance(kernel, rows)
    K.flat[:: len(K) + 1] *= 1.0 + _JITTER * (rows.feature >= 0)
    K *= np.outer(scale, scale)
    return K


class SlopeFamily(KernelParameters, Family):
    """Priors of values and slopes of f, whose covariance is a kernel's.

    Parameters
    ----------
    kernel : scikit-learn kernel
    rows : DerivativeRows
    mean : ndarray, shape (N + M,)
        Prior mean of the observed values and slopes.
    scale : ndarray, shape (N + M,)
    own_signs : bool
        True if slopes are observed by the likelihood of the values, False if by the probit.
    """

    def __init__(
        self,
        kernel: Kernel,
        rows: DerivativeRows,
        mean: Array,
        scale: Array,
        own_signs: bool = True,
    ) -> None:
        self._kernel, self._rows, self._mean, self._scale = kernel, rows, mean, scale
        self._at, self._own_signs = kernel, own_signs

    @property
    def count(self) -> int:
        """Number of slopes."""
        return int((self._rows.feature >= 0).sum())

    def slopes_alone(self) -> SlopeFamily:
        """Return the same family without the function values."""
        is_slope = self._rows.feature >= 0
        slope_rows = DerivativeRows(self._rows.points[is_slope], self._rows.feature[is_slope])
        return SlopeFamily(self._kernel, slope_rows, self._mean[is_slope], self._scale[is_slope])

    def observed(self, y: Array, projector: Projector) -> tuple[Array, Projector]:
        """Return observations and projector of values and slopes together."""
        if self._own_signs:
            return y, projector
        split = len(y) - self.count
        labels = np.concatenate([y[:split], encoded(y[split:])])
        # A table belongs to a single likelihood.
        return labels, Projector(signed(projector.likelihood), projector.method, "exact")

    def signs_alone(self, y: Array, projector: Projector) -> tuple[Array, Projector]:
        """Return observations and projector of the slopes alone."""
        signs_projector = projector if self._own_signs else Projector("probit", projector.method)
        return y[len(y) - self.count :], signs_projector

    def at(self, theta: Array) -> DensePrior:
        """Return the prior of these parameters."""
        self._at = self._kernel.clone_with_theta(theta)
        return DensePrior(joint_covariance(self._at, self._rows, self._scale), self._mean)

    def contract(self, slope: Array) -> Array:
        """Turn a slope by the prior into that by theta."""
        slope *= np.outer(self._scale, self._scale)
        slope.flat[:: len(slope) + 1] *= 1.0 + _JITTER * (self._rows.feature >= 0)
        return contract(self._at, self._rows, slope)


class GivenSlopes(Objective):
    """The evidence of the values given the slopes: log Z of both, less that of slopes alone.

    Signs of slopes are a part of the prior. The evidence of both is higher the more probable they
    are before any value, and so the smoother the function: length-scales would be too long.
    """

    def __init__(self, family: SlopeFamily, y: Array, projector: Projector, *options: Any) -> None:
        super().__init__(family, *family.observed(y, projector), *options)
        tol, max_sweeps = options[:2]
        signs = family.signs_alone(y, projector)
        self._alone = Objective(family.slopes_alone(), *signs, tol, max_sweeps)

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Return the evidence of the values given the slopes, and its derivatives by theta."""
        value, slope = super().evaluate(theta)
        kernel_theta = theta[: theta.size - len(self.learn)]
        slope_evidence, slope_gradient = self._alone.evaluate(kernel_theta)
        slope[: kernel_theta.size] -= slope_gradient
        return value - slope_evidence, slope


class WithSlopes(Dense):
    """The solver of covariance matrices of values and slopes."""

    @property
    def objective(self) -> type[Objective]:
        """Objective to be maximised: the evidence is that given the slopes."""
        objective = super().objective
        return GivenSlopes if objective is Objective else objective

    def require(self, n: int, kernel: Kernel, learns: bool) -> None:
        """Raise `InputError` if the matrices of values and slopes exceed the memory."""
        require(
            squares(n, _N_ARRAYS),
            f"a fit of N = {n} rows with slopes",
            "leave out monotone, or rows: every slope is a row more",
        )

    def family(self, kernel: Kernel, data: Data) -> SlopeFamily:  # type: ignore[override]
        """Return the family of priors of values and slopes."""
        assert data.slopes is not None
        assert data.scale is not None
        rows = data.slopes.asked(data.X)
        return SlopeFamily(kernel, rows, data.observed_prior, data.scale, data.own_signs)

    def problem(self, kernel: Kernel, data: Data) -> Problem:
        """Return the inference problem of values and slopes."""
        family = self.family(kernel, data)
        y, projector = family.observed(data.y, data.projector)
        return Problem(family.at(kernel.theta), y, projector, weights=data.weights)


# --- Series: X of one column and a Markov kernel, evidence and gradient in O(N)


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
        sites = no_sites(n) if guess is None else Sites(*(s.copy() for s in guess))
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


# --- Joint fits of all classes: one kernel for all of them, by their joint evidence

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
        with self.layout.naming_sites():
            end = settle_fast(
                problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites
            )
            warn_unsettled(end, settings.tol, self.layout.sites, of_estimator=True, words=words)
            return joint_posterior(problem, end)
