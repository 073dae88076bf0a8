"""Maximisation of the evidence by L-BFGS, and agreement between restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.threads import blas_threads
from qpruntime.inference.sites import Sites
from qpruntime.learning import initialisation
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data
from qpruntime.learning.objective import Family, LogPrior, Objective
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import Report, call_both, named
from qpruntime.learning.solvers import Solver
from qpruntime.projection.projector import Projector

__all__ = [
    "INFERENCE_FAILS_MESSAGE",
    "Optimum",
    "all_bounds",
    "first_theta",
    "maximise",
    "objective_of",
    "optimise",
    "several_fixed_points",
]

# --- Several fixed points
#
# EP of a likelihood with two modes may have several fixed points for the same hyper-parameters, and
# each restart follows its own.

# Log parameters that differ by no more than this are equal.
_SAME_LOG_PARAMETER = 1e-2
# Near an optimum the objective changes by less than this over that distance, beside its slope.
_MAX_OBJECTIVE_CHANGE = 0.05


def several_fixed_points(optima: Sequence[Optimum]) -> list[str]:
    """Say so, in a list of one sentence, if runs end where the best one did with other values.

    Parameters
    ----------
    optima : sequence of Optimum
        Best first. Runs that have not succeeded are left out.
    """
    best = optima[0]
    values = {
        round(run.value, 3)
        for run in optima[1:]
        if run.success
        and best.success
        and run.theta.size == best.theta.size
        and (gap := np.abs(run.theta - best.theta)).max(initial=0.0) <= _SAME_LOG_PARAMETER
        and best.value - run.value > _MAX_OBJECTIVE_CHANGE + float(np.abs(run.slope) @ gap)
    }
    if not values:
        return []
    others = ", ".join(f"{value:g}" for value in sorted(values, reverse=True))
    return [
        "restarts end at the same parameters with different values, "
        f"{best.value:.6g} and {others}: the sites have several fixed points there, "
        "and the one of the highest is kept; move the "
        "prior mean away from zero or lower the prior variance"
    ]


# --- L-BFGS-B

# Message of an optimiser that ends where inference fails.
INFERENCE_FAILS_MESSAGE = "inference fails further on"
# The first step of L-BFGS-B is the gradient itself, which may be hundreds long. It would waste
# evaluations, or miss the optimum nearby, so it is limited to this length in log parameters. If
# noise is learnt, a seventh of it already has no fixed point, which takes thirty sweeps to find
# out.
_MAX_FIRST_STEP, _MAX_FIRST_STEP_NOISE = 2.0, 0.5
# A slope below this counts as zero.
_ZERO_SLOPE = 1e-5


@restorable("optimum/1")
@dataclass(frozen=True)
class Optimum:
    """Result of one optimiser run.

    Attributes
    ----------
    theta : ndarray
        Log-transformed kernel parameters, as in ``kernel.theta``, and after them those of the
        likelihood that were learnt.
    value : float
        Objective at theta, such as the log evidence of EP.
    n_iterations, n_evaluations : int
    success : bool
    message : str
        Message of the optimiser.
    start : ndarray
        Starting point.
    slope : ndarray
        Gradient of the score at theta, which points outwards at an active bound.
    log_prior : float
        Log prior density at the optimum, relative to its maximum for the default kernel; 0 without
        a prior. It is not part of `value`.

    See Also
    --------
    qpruntime.Search, qpruntime.GPClassifier

    Examples
    --------
    >>> from qpruntime import GPClassifier
    >>> model = GPClassifier().fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])
    >>> model.optimum_.theta.shape, model.optimum_.value < 0.0
    ((3,), True)
    """

    theta: Array
    value: float
    n_iterations: int
    n_evaluations: int
    success: bool
    message: str
    start: Array
    slope: Array
    log_prior: float = 0.0

    @property
    def score(self) -> float:
        """Maximised quantity: the objective plus the log prior."""
        return self.value + self.log_prior


def first_theta(family: Family | Kernel, projector: Projector, learn: Iterable[str]) -> Array:
    """Return log parameters of a family or kernel, then those of the likelihood that are learnt."""
    values = [projector.likelihood.parameters[name] for name in learn]
    return np.concatenate([family.theta, np.log(values)])


def all_bounds(family: Family | Kernel, learn: Mapping[str, tuple[float, float]]) -> Array:
    """Return the bounds of `first_theta`, shape (p, 2)."""
    return np.vstack([family.bounds.reshape(-1, 2), np.log([*learn.values()]).reshape(-1, 2)])


def objective_of(
    solver: Solver, kernel: Kernel, data: Data, settings: Settings, log_prior: LogPrior | None
) -> Objective:
    """Return the objective over the parameters of a kernel, and those of `data.learn` after them.

    The gradient of the evidence is exact for EP only: QP is learnt by EP's evidence, as published.
    VB has its own bound, and leave-one-out densities are those of the method itself.
    """
    projector = data.projector
    if settings.search.objective != "loo" and projector.method != "vb":
        projector = projector.for_evidence()
    return solver.objective(
        solver.family(kernel, data),
        data.y,
        projector,
        settings.tol,
        settings.max_sweeps,
        data.weights,
        tuple(data.learn),
        log_prior,
    )


def maximise(
    objective: Objective,
    starts: Array,
    bounds: Array,
    *,
    max_iterations: int = 1000,
    ftol: float = 1e-9,
    callback: Callable[[Array, float], Any] | None = None,
) -> tuple[Optimum, Sites | None]:
    """Maximise an objective by L-BFGS-B in the log parameters, within their bounds.

    Parameters
    ----------
    objective : Objective
        One that was not evaluated before.
    starts : ndarray, shape (p,) or (S, p)
        Starting point, or several of which the best one is used.
    bounds : ndarray, shape (p, 2)
    ftol : float
        Relative tolerance on the objective.
    callback : callable, optional
        Called with theta and the value after every evaluation.

    Returns
    -------
    Optimum
    Sites
        Sites at the last evaluation, for a warm start.

    Raises
    ------
    NumericalError
        If inference fails at the starting point.
    """
    lowest: list[tuple[float, Array, Array]] = []

    def reported(theta: Array) -> tuple[float, Array]:
        value, slope = objective(theta)
        if not lowest or value < lowest[0][0]:
            lowest[:] = [(value, theta.copy(), -slope)]
        if callback is not None:
            callback(theta, -value)
        return value, slope

    low, high = bounds.T
    candidates = np.clip(np.atleast_2d(starts), low, high)
    evaluations = [reported(theta) for theta in candidates]
    best = int(np.argmin([value for value, _ in evaluations]))
    theta, first_evaluation = candidates[best], [evaluations[best]]
    steepest = float(np.abs(first_evaluation[0][1]).max(initial=0.0))
    uneven = objective.learn and not objective.projector.likelihood.log_concave
    max_step = _MAX_FIRST_STEP_NOISE if uneven else _MAX_FIRST_STEP
    unit = min(1.0, max_step / max(steepest, 1e-300))

    def scaled(theta: Array) -> tuple[float, Array]:
        value, slope = first_evaluation.pop() if first_evaluation else reported(theta)
        return unit * value, unit * slope

    result = minimize(
        scaled,
        theta,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": max_iterations, "ftol": ftol, "gtol": unit * _ZERO_SLOPE},
    )
    end, reached = result.x, float(result.fun) / unit
    slope = -np.asarray(result.jac, dtype=float) / unit
    success, message = bool(result.success), str(result.message)
    if reached > lowest[0][0] + 1.0:
        # The optimiser ended on the plateau that stands for failed inference.
        reached, end, slope = lowest[0]
        success, message = False, INFERENCE_FAILS_MESSAGE
    extra = 0.0 if objective.log_prior is None else objective.log_prior(end)[0]
    optimum = Optimum(
        theta=end,
        value=-reached - extra,
        n_iterations=int(result.nit),
        n_evaluations=objective.evaluations,
        success=success,
        message=message,
        start=np.atleast_2d(starts)[best],
        slope=slope,
        log_prior=extra,
    )
    return optimum, objective.sites


Run = tuple[Optimum, Sites | None]

# --- Every run of the optimiser for one fit: where each begins, and how it ended

# Restarts are drawn within this factor of the kernel's own parameters, and within its bounds.
_RESTART_LOG_RANGE = np.log(1e3)
# Objective values that differ by less than this are equal.
_EQUAL_OBJECTIVE = 1e-4


def optimise(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    report: Report | None,
    solver: Solver,
) -> tuple[tuple[Optimum, ...], Sites | None, list[str]]:
    """Return all optimiser runs, best first, the sites of the best one, and warnings to give."""
    kernel, projector = begin.kernel, data.projector
    callback = call_both(named(report, kernel, data.learn), settings.search.callback)

    def run_from(start: Array, max_iter: int = settings.search.max_iter) -> Run:
        """Run the optimiser from these parameters."""
        with blas_threads(len(data.X), callers):
            return maximise(
                objective_of(solver, kernel, data, settings, begin.log_prior),
                start,
                bounds,
                max_iterations=max_iter,
                ftol=settings.search.ftol,
                callback=callback,
            )

    # The workers of a scheduler take one run at a time.
    n_jobs = 1 if settings.scheduler or not settings.search.restarts else settings.n_jobs
    callers = min(effective_n_jobs(n_jobs), 1 + settings.search.restarts)
    first = first_theta(kernel, projector, data.learn)
    bounds = all_bounds(kernel, data.learn)
    starts = _starts(first, bounds, settings.search.restarts, rng)
    if begin.thetas:
        known = [np.concatenate([theta, first[theta.size :]]) for theta in begin.thetas]
        starts[0] = np.array(known)
    if len(starts) == 1:
        runs = [run_from(starts[0])]
    else:
        tasks = (delayed(_or_failure)(run_from, start) for start in starts)
        results = Parallel(n_jobs=n_jobs, prefer="threads")(tasks)
        failures = [run for run in results if isinstance(run, NumericalError)]
        if len(failures) == len(results):
            raise failures[0]
        runs = [_run(start, run) for start, run in zip(starts, results, strict=True)]
    runs.sort(key=_worse)
    advice = several_fixed_points([run[0] for run in runs])
    if settings.given:
        advice += _second_chance(data, kernel, settings, bounds, run_from, runs)
    return tuple(run[0] for run in runs), runs[0][1], advice


def _second_chance(
    data: Data,
    kernel: Kernel,
    settings: Settings,
    bounds: Array,
    run_from: Callable[..., Run],
    runs: list[Run],
) -> list[str]:
    """Start once more from the data if the given kernel cannot learn, and return warnings.

    `runs` are the runs so far, best first; the new run is inserted among them.
    """
    X = data.X
    advice, tried = [], ""
    shape = initialisation.degenerate(kernel, X)
    if settings.search.restarts and shape is not None:
        # Restarts serve this purpose, so there is nothing to warn about if one succeeded.
        at_best = kernel.clone_with_theta(runs[0][0].theta[: kernel.n_dims])
        shape, tried = initialisation.degenerate(at_best, X), ", which no restart changes"
    if shape is not None or _flat(runs[0][0], kernel.n_dims, bounds, run_from):
        theta = None if settings.search.restarts else initialisation.start_from(kernel, X)
        if theta is not None:
            start = runs[0][0].start.copy()
            start[: kernel.n_dims] = theta
            run = _run(start, _or_failure(run_from, start))
            better = run[0].value > runs[0][0].value
            tried = f"; a start from the data was tried too, and is {'' if better else 'no '}better"
            runs.append(run)
            runs.sort(key=_worse)
        advice.append(initialisation.unrelated(kernel, X, shape, tried))
    best = runs[0][0]
    return advice + initialisation.at_bounds(
        kernel, X, best.theta, best.slope, settings.search.objective
    )


def _flat(best: Optimum, dims: int, bounds: Array, run_from: Callable[..., Run]) -> bool:
    """Decide whether a run never moved, and the objective does not depend on the parameters.

    A run that starts at its optimum does not move either, so two evaluations elsewhere decide.
    """
    if not dims or best.n_iterations or not best.success:
        return False
    for step in (-initialisation.FLATNESS_STEP, initialisation.FLATNESS_STEP):
        moved = best.theta.copy()
        moved[:dims] = np.clip(moved[:dims] + step, *bounds[:dims].T)
        if np.abs(moved - best.theta).max() < 0.1 * initialisation.FLATNESS_STEP:
            return False  # between bounds this close there is nothing to learn
        run = _or_failure(run_from, moved, 0)
        if isinstance(run, NumericalError) or abs(run[0].value - best.value) > _EQUAL_OBJECTIVE:
            return False
    return True


def _or_failure(run: Callable[..., Run], start: Array, *arguments: Any) -> Run | NumericalError:
    """Return the result of `run`, or the numerical failure at its start.

    An exception of a user's own function is the cause of its error, and ends the fit.
    """
    try:
        return run(start, *arguments)
    except NumericalError as error:
        if error.__cause__ is not None:
            raise
        return error


def _run(start: Array, run: Run | NumericalError) -> Run:
    """Return the run, or for one that failed at its start a result that sorts last."""
    if not isinstance(run, NumericalError):
        return run
    theta = np.atleast_2d(start)[0]
    return Optimum(theta, -np.inf, 0, 1, False, str(run), theta, np.zeros_like(theta)), None


def _worse(run: Run) -> float:
    return -run[0].score


def _starts(first: Array, bounds: Array, restarts: int, rng: np.random.Generator) -> list[Array]:
    """Return the given parameters, then log-uniform draws around them within the bounds."""
    low, high = bounds.T
    low = np.maximum(low, np.minimum(first - _RESTART_LOG_RANGE, high))
    high = np.minimum(high, np.maximum(first + _RESTART_LOG_RANGE, low))
    return [first] + [rng.uniform(low, high) for _ in range(restarts)]
