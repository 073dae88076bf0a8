"""The evidence of sparse inference as a function of hyper-parameters and inducing inputs.

One sweep an evaluation: sites come from the evaluation before, and the evidence is stationary in
them. Learnt by EP, whose gradient is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._duration import announce
from qpruntime._numba import compilations
from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, NumericalError, warn
from qpruntime.inference.fixed_point.convergence import Limits, warn_unsettled
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import SparsePosterior, conclude
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.kernels.cross_covariance import moves_inputs
from qpruntime.learning.initialisation import learns_nothing
from qpruntime.learning.objective import LogPrior, reparametrised
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.options import Settings
from qpruntime.projection.projector import Projector

__all__ = ["EvidenceSearch", "Place", "advise", "climb", "optimum_of", "posterior_of"]

# Tolerance and largest number of sweeps of the sites before the first evaluation.
_FIRST_LIMITS = Limits(tol=3e-3, sweeps=12)
# The first step of the optimiser changes no log parameter by more than this.
_MAX_FIRST_STEP = 0.5
# Inducing points stay within the data extended by this multiple of their spread.
_MARGIN = 1.0
# Number of consecutive iterations with little gain that end a search, after these first few.
_PATIENCE, _MIN_ITERATIONS = 2, 4
# An evaluation that is lower than the best by more than this many times N has lost its sites.
_LOST_DROP_PER_ROW = 1.0


@dataclass(frozen=True, eq=False)
class Place:
    """Point of a search: log parameters of the kernel, then of the likelihood, and Z (M, d)."""

    theta: Array
    Z: Array


@dataclass(eq=False)
class EvidenceSearch:
    """One stage of a fit.

    Parameters
    ----------
    engine : Engine
        With the rows of the stage; its sites are carried along.
    kernel : scikit-learn kernel
    learn : mapping
        Parameters of the likelihood that are learnt, with their bounds.
    log_prior : callable or None
        Of theta, and its gradient.
    units : ndarray, shape (d,)
        What a step of the inducing inputs is measured in; infinite for inputs that stay.

    Attributes
    ----------
    best, place, kept
        The highest score so far, where that was, and the sites there.
    """

    engine: Engine
    kernel: Kernel
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    log_prior: LogPrior | None = None
    units: Array | None = None
    evaluations: int = 0

    def __post_init__(self) -> None:
        self._projector = self.engine.rule.projector
        self.kept: Sites | None = None
        self.best = -np.inf
        self.place: Place | None = None
        self.slope = np.zeros(0)

    @property
    def moves(self) -> bool:
        """True if the inducing points move."""
        return self.units is not None and moves_inputs(self.kernel)

    def go(self, place: Place) -> None:
        """Move the engine to a place."""
        dims = place.theta.size - len(self.learn)
        if self.learn:
            projector = reparametrised(self._projector, tuple(self.learn), place.theta[dims:])
            self.engine.rule = PowerProjector(
                projector, self.engine.rule.power, self.engine.rule.bounded
            )
        self.engine.move(self.kernel.clone_with_theta(place.theta[:dims]), place.Z)

    def evaluate(self, place: Place) -> tuple[float, Array, Array]:
        """Return score, gradient in theta, and gradient in Z.

        Raises
        ------
        NumericalError
            If double precision does not suffice, or the sites diverge.
        """
        self.evaluations += 1
        engine = self.engine
        self.go(place)
        if not engine.tau.any():
            settle(engine, _FIRST_LIMITS)
        evaluation = engine.evaluate(1, tuple(self.learn))
        value, slope = (
            evaluation.value,
            np.concatenate([evaluation.by_theta, evaluation.by_parameters]),
        )
        if self.log_prior is not None:
            prior_value, by_theta = self.log_prior(place.theta)
            value, slope = value + prior_value, slope + by_theta
        if not (
            np.isfinite(value) and np.isfinite(slope).all() and np.isfinite(evaluation.by_Z).all()
        ):
            raise NumericalError("the log evidence is not finite")
        if value > self.best:
            self.best, self.place, self.slope = value, place, slope
            # Single precision is enough for a warm start, and takes half the memory.
            self.kept = Sites(engine.tau.astype(np.float32), engine.nu.astype(np.float32))
        elif self.best - value > _LOST_DROP_PER_ROW * engine.rows.n and self.kept is not None:
            # Sites of a place this bad are no start for the next one.
            self._return()
        return value, slope, evaluation.by_Z

    def tried(self, place: Place) -> tuple[float, Array, Array] | None:
        """Call `evaluate`; if it fails return None and restore the sites of the best place."""
        try:
            return self.evaluate(place)
        except NumericalError as error:
            if error.__cause__ is not None and not isinstance(
                error.__cause__, (np.linalg.LinAlgError, ArithmeticError)
            ):
                raise  # a user's own exception
            self._return()
            return None

    def _return(self) -> None:
        if self.kept is not None:
            self.engine.tau[:], self.engine.nu[:] = self.kept
        else:
            self.engine.tau[:] = self.engine.nu[:] = 0.0


@dataclass(frozen=True)
class EvidenceOptimum:
    """Result of a search."""

    iterations: int
    success: bool
    message: str


def _box(Z: Array, units: Array, bounds: Array) -> tuple[Array, Array]:
    """Return the optimiser's units of theta and of moving points, and the bounds in them.

    Points move within the box of all of them, and by a unit beyond.
    """
    moving = np.isfinite(units) & (units > 0.0)
    spread = np.broadcast_to(np.where(moving, units, 0.0), Z.shape)
    z = np.stack([Z - Z.min(axis=0) + spread, Z.max(axis=0) - Z + spread], axis=-1)
    z = np.where(spread[..., None] > 0.0, z, 0.0).reshape(-1, 2)
    wide = np.where(spread > 0.0, spread, 1.0).ravel()
    limits = np.vstack([bounds, np.column_stack([-z[:, 0], z[:, 1]]) / wide[:, None]])
    return np.concatenate([np.ones(len(bounds)), wide]), limits


class _SmallGains:
    """Callback that stops the optimiser after several iterations with little gain."""

    def __init__(self, unit: float, first: float, least: float) -> None:
        self.unit, self.last, self.least = unit, first, least
        self.n_iterations, self.n_small_gains = 0, 0

    def __call__(self, intermediate_result: OptimizeResult) -> None:
        reached = -float(intermediate_result.fun) / self.unit
        self.n_iterations += 1
        self.n_small_gains = self.n_small_gains + 1 if reached - self.last < self.least else 0
        self.last = reached
        # The first steps are short, before curvatures are known.
        if self.n_small_gains == _PATIENCE and self.n_iterations > _MIN_ITERATIONS:
            raise StopIteration


def climb(
    search: EvidenceSearch,
    start: Place,
    bounds: Array,
    *,
    iterations: int,
    change: float,
    report: Callable[[Array, float], Any] | None = None,
) -> EvidenceOptimum:
    """Maximise by L-BFGS-B from a place; the best place found is in ``search.place``.

    Parameters
    ----------
    search : EvidenceSearch
    start : Place
    bounds : ndarray, shape (p, 2)
        Bounds of theta.
    iterations : int
        Largest number of iterations.
    change : float
        Stop when two consecutive iterations raise the score per row by less than this.
    report : callable, optional
        Called with theta and the score after every evaluation.

    Raises
    ------
    NumericalError
        If the evidence cannot be computed at the start.
    """
    p, n = start.theta.size, search.engine.rows.n
    theta = np.clip(start.theta, *bounds.T)
    search.best = -np.inf
    first = search.evaluate(Place(theta, start.Z))
    if report is not None:
        report(theta, first[0])
    units = search.units if search.moves else None
    steps, limits = (np.ones(p), bounds) if units is None else _box(start.Z, units, bounds)

    def place_of(x: Array) -> Place:
        if units is None:
            return Place(x, start.Z)
        return Place(x[:p], start.Z + (x[p:] * steps[p:]).reshape(start.Z.shape))

    def joined(found: tuple[float, Array, Array]) -> Array:
        slope = found[1] if units is None else np.concatenate([found[1], found[2].ravel()])
        return np.asarray(slope * steps)

    steepest = float(np.abs(joined(first)).max(initial=0.0))
    unit = min(1.0 / n, _MAX_FIRST_STEP / max(steepest, 1e-300))
    known = [first]
    failures = 0

    def scaled(x: Array) -> tuple[float, Array]:
        """Return the negative score and gradient in the optimiser's units."""
        nonlocal failures
        place = place_of(x)
        evaluation = known.pop() if known else search.tried(place)
        if evaluation is None:
            failures += 1
            # Return a value that no line search accepts.
            return unit * (-search.best + 10.0 * n * _LOST_DROP_PER_ROW), np.zeros(x.size)
        if report is not None and evaluation is not first:
            report(place.theta, evaluation[0])
        return -unit * evaluation[0], -unit * joined(evaluation)

    x0 = theta if units is None else np.concatenate([theta, np.zeros(start.Z.size)])
    result = minimize(
        scaled,
        x0,
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        callback=_SmallGains(unit, first[0], change * n),
        options={"maxiter": iterations, "ftol": 0.0, "gtol": 0.0, "maxcor": 10},
    )
    message, short = str(result.message), result.nit >= iterations
    return EvidenceOptimum(int(result.nit), not short and not failures, message)


def optimum_of(search: EvidenceSearch, ended: EvidenceOptimum, start: Array) -> Optimum:
    """Return what a stage that began at `start` has found."""
    assert search.place is not None
    theta, prior = search.place.theta, search.log_prior
    extra = 0.0 if prior is None else prior(theta)[0]
    return Optimum(
        theta=theta,
        value=search.best - extra,
        n_iterations=ended.iterations,
        n_evaluations=search.evaluations,
        success=ended.success,
        message=ended.message,
        start=start,
        slope=search.slope,
        log_prior=extra,
    )


# --- End of a fit: the posterior of all rows
#
# It has double precision. EP converges first, then the requested method.

# EP converges to this tolerance before QP continues.
_EP_TOL = 1e-4
# Usual number of sweeps after the first one.
_USUAL_SWEEPS = 4
# Number of rows on which the default kernel is checked.
_CHECKED_ROWS = 2000


def posterior_of(
    engine: Engine,
    projector: Projector,
    settings: Settings,
    prior: float | None,
    after: Callable[[Engine], None],
) -> SparsePosterior:
    """Run an engine with EP's rule and double precision to convergence, and return its posterior.

    `projector` has the requested method, `prior` is the prior mean that all rows share, and `after`
    is called after every sweep.
    """
    limits = Limits(settings.tol, settings.max_sweeps, 1.0)
    needs_ep_first = projector.method != "ep"
    first_limits = limits._replace(tol=max(settings.tol, _EP_TOL)) if needs_ep_first else limits
    result = settle(engine, first_limits, after)
    if needs_ep_first:
        engine.rule = PowerProjector(projector, engine.rule.power)
        after_sweep = _announced(engine.rows.n, projector.method, after)
        first, result = result, settle(engine, limits, after_sweep)
        result.history[:0] = first.history
    warn_unsettled(result, limits.tol, engine.rows.n, of_estimator=True)
    return conclude(engine, result, prior)


def _announced(n: int, method: str, then: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Announce after a sweep in which nothing compiled how long others take, if that is long."""
    start_time, compiled, announced = time.perf_counter(), compilations(), False

    def after(engine: Engine) -> None:
        """Call `then`, and announce once how long a sweep takes."""
        nonlocal start_time, compiled, announced
        then(engine)
        if not announced:
            announced = compilations() == compiled
            if announced:
                seconds = _USUAL_SWEEPS * (time.perf_counter() - start_time)
                words = f'settling the sites of {n} rows by method "{method}"'
                announce(words, seconds, 'method="ep" spares it')
            start_time, compiled = time.perf_counter(), compilations()

    return after


def advise(kernel: Kernel, points: Array) -> None:
    """Warn if what the default kernel has learnt from these rows is nothing."""
    if blind := learns_nothing(kernel, points[:_CHECKED_ROWS]):
        warn(blind, ConvergenceWarning)
