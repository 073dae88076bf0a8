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
from qpruntime.learning.progress import Report, both, named
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.solvers import Solver

__all__ = ["optimise"]

Run = tuple[Optimum, Sites | None]

# Restarts are drawn within this factor of the kernel's own parameters, and within its bounds.
_SPREAD = np.log(1e3)
# Values of the objective that differ by less are one.
_SAME = 1e-4


def optimise(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    report: Report | None,
    solver: Solver,
) -> tuple[tuple[Optimum, ...], Sites | None, list[str]]:
    """All optimiser runs, best first, the sites where the best one ended, and what to warn of."""
    kernel, projector = begin.kernel, data.projector
    callback = both(named(report, kernel, data.learn), settings.search.callback)
    # The gradient of the evidence is exact for EP only: QP runs at EP's optimum, as published.
    # VB has its own bound.
    own = settings.search.objective == "loo" or projector.method == "vb"
    judge = projector if own else projector.for_evidence()

    def one(start: Array, max_iter: int = settings.search.max_iter) -> Run:
        with blas_threads(len(data.X), callers):
            return maximise(
                solver.family(kernel, data),
                data.y,
                judge,
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
    tries = _starts(first, bounds, settings.search.restarts, rng)
    if begin.thetas:
        known = [np.concatenate([theta, first[theta.size :]]) for theta in begin.thetas]
        tries[0] = np.array(known)
    if len(tries) == 1:
        runs = [one(tries[0])]
    else:
        tasks = (delayed(_or_failure)(one, start) for start in tries)
        ended = Parallel(n_jobs=n_jobs, prefer="threads")(tasks)
        failures = [run for run in ended if isinstance(run, NumericalError)]
        if len(failures) == len(ended):
            raise failures[0]
        runs = [_run(start, run) for start, run in zip(tries, ended, strict=True)]
    runs.sort(key=_worse)
    advice = several_fixed_points([run[0] for run in runs])
    if settings.given:
        advice += _second_chance(data, kernel, settings, bounds, one, runs)
    return tuple(run[0] for run in runs), runs[0][1], advice


def _second_chance(
    data: Data,
    kernel: Kernel,
    settings: Settings,
    bounds: Array,
    one: Callable[..., Run],
    runs: list[Run],
) -> list[str]:
    """Begin once more, from the data, where the kernel given cannot learn; say what is wrong.

    `runs` are those so far, best first; the new one takes its place among them.
    """
    X = data.X
    advice, tried = [], ""
    shape = initialisation.degenerate(kernel, X)
    if settings.search.restarts and shape is not None:
        # Restarts are for this: there is nothing to say if one got away.
        at_best = kernel.clone_with_theta(runs[0][0].theta[: kernel.n_dims])
        shape, tried = initialisation.degenerate(at_best, X), ", which no restart changes"
    if shape is not None or _flat(runs[0][0], kernel.n_dims, bounds, one):
        theta = None if settings.search.restarts else initialisation.start_from(kernel, X)
        if theta is not None:
            start = runs[0][0].start.copy()
            start[: kernel.n_dims] = theta
            run = _run(start, _or_failure(one, start))
            better = run[0].value > runs[0][0].value
            tried = f"; a start from the data was tried too, and is {'' if better else 'no '}better"
            runs.append(run)
            runs.sort(key=_worse)
        advice.append(initialisation.unrelated(kernel, X, shape, tried))
    best = runs[0][0]
    return advice + initialisation.at_bounds(
        kernel, X, best.theta, best.slope, settings.search.objective
    )


def _flat(best: Optimum, dims: int, bounds: Array, one: Callable[..., Run]) -> bool:
    """Whether a run never moved, and the objective is the same with other kernel parameters.

    An optimum that was given as the start is none either way: two evaluations tell.
    """
    if not dims or best.n_iterations or not best.success:
        return False
    for step in (-initialisation.MOVED, initialisation.MOVED):
        moved = best.theta.copy()
        moved[:dims] = np.clip(moved[:dims] + step, *bounds[:dims].T)
        if np.abs(moved - best.theta).max() < 0.1 * initialisation.MOVED:
            return False  # between bounds this close there is nothing to learn
        run = _or_failure(one, moved, 0)
        if isinstance(run, NumericalError) or abs(run[0].value - best.value) > _SAME:
            return False
    return True


def _or_failure(run: Callable[..., Run], start: Array, *arguments: Any) -> Run | NumericalError:
    """What `run` returns, or the failure of double precision at its start.

    What a user's own function raised is its cause, and ends the fit.
    """
    try:
        return run(start, *arguments)
    except NumericalError as error:
        if error.__cause__ is not None:
            raise
        return error


def _run(start: Array, run: Run | NumericalError) -> Run:
    """A run that could not begin is kept with the others, and last among them."""
    if not isinstance(run, NumericalError):
        return run
    theta = np.atleast_2d(start)[0]
    return Optimum(theta, -np.inf, 0, 1, False, str(run), theta, np.zeros_like(theta)), None


def _worse(run: Run) -> float:
    return -run[0].score


def _starts(first: Array, bounds: Array, restarts: int, rng: np.random.Generator) -> list[Array]:
    """The given parameters, then log-uniform draws around them within the bounds."""
    low, high = bounds.T
    low = np.maximum(low, np.minimum(first - _SPREAD, high))
    high = np.minimum(high, np.maximum(first + _SPREAD, low))
    return [first] + [rng.uniform(low, high) for _ in range(restarts)]
