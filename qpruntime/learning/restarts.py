"""Every run of the optimiser for one fit: where each begins, and what to make of how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.blas_threads import blas_threads
from qpruntime.inference.sites import Sites
from qpruntime.learning import initialisation
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.optimise import (
    Optimum,
    all_bounds,
    first_theta,
    maximise,
    several_fixed_points,
)
from qpruntime.learning.progress import Report, call_both, named
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.solvers import Solver

__all__ = ["optimise"]

Run = tuple[Optimum, Sites | None]

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
    # The gradient of the evidence is exact for EP only: QP runs at EP's optimum, as published.
    # VB has its own bound.
    uses_projector = settings.search.objective == "loo" or projector.method == "vb"
    objective_projector = projector if uses_projector else projector.for_evidence()

    def run_from(start: Array, max_iter: int = settings.search.max_iter) -> Run:
        """Run the optimiser from these parameters."""
        with blas_threads(len(data.X), callers):
            return maximise(
                solver.family(kernel, data),
                data.y,
                objective_projector,
                start=start,
                max_iterations=max_iter,
                ftol=settings.search.ftol,
                tol=settings.tol,
                max_sweeps=settings.max_sweeps,
                weights=data.weights,
                objective=solver.objective,
                callback=callback,
                learn=data.learn,
                log_prior=begin.log_prior,
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
