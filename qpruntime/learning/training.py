"""Fit one Gaussian process to one encoded target: hyper-parameters, then the final posterior.

What estimators share. Knows kernels, objectives and restarts, nothing of labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.gaussian_process.kernels import Kernel
from threadpoolctl import ThreadpoolController

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.inference.arguments import check_powers
from qpruntime.inference.complaints import warn_unsettled
from qpruntime.inference.markov.series import warn_unsettled_series
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.inference.summary import summarise
from qpruntime.learning import starts
from qpruntime.learning.agreement import several_fixed_points
from qpruntime.learning.default_kernel import Start, learns_nothing
from qpruntime.learning.family import KernelFamily, prior_of
from qpruntime.learning.maximise import LOST, Optimum, all_bounds, first_theta, maximise
from qpruntime.learning.objective import OBJECTIVES, settle_fast
from qpruntime.learning.progress import USUAL_EVALUATIONS, reporting
from qpruntime.learning.series import SeriesFamily, SeriesObjective, infer_rows, takes_states
from qpruntime.learning.settings import Callback, Settings
from qpruntime.likelihoods import Likelihood
from qpruntime.notice import announce, expected_seconds
from qpruntime.projection.projector import Projector

__all__ = ["Data", "Fit", "train"]

Run = tuple[Optimum, Sites | None]

# Below this many points a second BLAS thread costs more than it does.
_ONE_THREAD = 400
# Cholesky factorisations per evaluation: about six iterations, and the slope.
_PER_EVALUATION = 15.0
# Restarts are drawn within this factor of the kernel's own parameters, and within its bounds.
_SPREAD = np.log(1e3)
# Values of the objective that differ by less are one.
_SAME = 1e-4
# What the objective has to rise by at least for a length-scale of each feature's own: of a few
# features none is left to chance.
_BEYOND_CHANCE = 10.0
# Relative tolerance on the objective of that run, and its iterations at most.
_EARLY, _STEPS = 1e-3, 15


@dataclass(frozen=True)
class Data:
    """What one process is fitted to; the fields are those of `maximise`.

    The projector is of the method that the posterior is to have; weights are positive, and None
    if all are 1. `discrete` says that p(y|f) is a probability, not a density.
    """

    X: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    discrete: bool = True


@dataclass(frozen=True)
class Fit:
    """One fitted process: its kernel, its posterior, and every optimiser run, best first.

    `likelihood` has the parameters that were learnt.
    """

    kernel: Kernel
    likelihood: Likelihood
    posterior: Posterior
    optima: tuple[Optimum, ...]

    @property
    def optimum(self) -> Optimum | None:
        """The best optimiser run, if there was any."""
        return self.optima[0] if self.optima else None


def train(data: Data, begin: Start, settings: Settings, rng: np.random.Generator) -> Fit:
    """Maximise the objective from the kernel's parameters and from restarts, then infer.

    Parameters
    ----------
    data : Data
    begin : Start
        The kernel, whatever the settings say, and where to begin.
    settings : Settings
    rng : Generator
        For restarts.
    """
    kernel, projector = begin.kernel, data.projector
    if settings.objective == "loo" and projector.method in ("vb", "wp"):
        why = "maximises its bound" if projector.method == "vb" else "has no gradient for it"
        raise InputError(
            f'method {projector.method!r} {why}; objective "loo" needs method "ep" or "qp"'
        )
    check_powers(1.0, data.weights, projector, len(data.X))
    with _threads(len(data.X)):
        optima: tuple[Optimum, ...] = ()
        sites: Sites | None = None
        advice: list[str] = []
        if settings.optimize and (kernel.n_dims or data.learn):
            if not _of_states(data, kernel, settings, projector):
                _announce(len(data.X), settings)
            runs = (1 + settings.n_restarts) * (1 + len(begin.others))
            with reporting(settings.verbose, settings.objective, runs) as report:
                callback = _both(report, settings.callback)
                optima, sites, advice = _optimise(data, begin, settings, rng, callback)
                for other in begin.others:
                    others, ended, _ = _optimise(data, other, settings, rng, callback)
                    if others[0].score > optima[0].score:
                        begin, sites, optima = other, ended, others + optima
                    else:
                        optima += others
                kernel = begin.kernel
                if begin.by_feature and optima[0].success:
                    found = _refine(data, begin, settings, rng, callback, optima, sites)
                    kernel, optima, sites = found
            if not optima[0].success:
                advice.append(
                    f"the {settings.objective} was not maximised: {optima[0].message}; "
                    + _remedy(optima[0], data.learn)
                )
            theta = optima[0].theta
            if data.learn:
                projector = _learnt(projector, tuple(data.learn), theta[kernel.n_dims :])
            kernel = kernel.clone_with_theta(theta[: kernel.n_dims])
        elif settings.given and (shape := starts.degenerate(kernel, data.X)):
            advice = [starts.unrelated(kernel, data.X, shape, "")]
        if optima and not settings.given and (blind := learns_nothing(kernel, data.X)):
            advice.append(blind)
        for text in advice:
            warn(text, ConvergenceWarning)
        if _of_states(data, kernel, settings, projector):
            post = infer_rows(
                kernel,
                data.X,
                data.y,
                projector,
                data.prior,
                Limits(settings.tol, settings.max_sweeps, 1.0),
                sites=sites,
                options={"scale": data.scale, "weights": data.weights},
            )
            warn_unsettled_series(post, settings.tol, "raise max_sweeps,")
            return Fit(kernel, projector.likelihood, post, optima)
        prior = prior_of(kernel, data.X, data.prior, data.scale)
        problem = Problem(prior, data.y, projector, weights=data.weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, of_estimator=True)
        return Fit(kernel, projector.likelihood, summarise(problem, end), optima)


def _of_states(data: Data, kernel: Kernel, settings: Settings, projector: Projector) -> bool:
    """Whether this is a series, which `qpruntime.learning.series` fits."""
    shape = settings.objective, settings.optimize
    return takes_states(settings.solver, kernel, data.X, projector, *shape)


def _remedy(optimum: Optimum, learn: Iterable[str]) -> str:
    """What to do about an optimiser that has not succeeded."""
    if optimum.message != LOST:
        return "raise max_iter or widen the kernel's bounds"
    bounds = " and ".join(f"{name}_bounds" for name in learn) or "the kernel's bounds"
    return f"the best parameters before that are kept; narrow {bounds} to stay clear of it"


def _learnt(projector: Projector, names: Sequence[str], logs: Array) -> Projector:
    """Return the projector with learnt parameters; its likelihood is the registered one."""
    values = np.exp(logs)
    likelihood = projector.likelihood.with_parameters(**dict(zip(names, values, strict=True)))
    if likelihood.name in likelihoods.names():
        likelihood = likelihoods.get(likelihood.spelt)
    return Projector(likelihood, projector.method)


def _refine(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    callback: Callback | None,
    optima: tuple[Optimum, ...],
    sites: Sites | None,
) -> tuple[Kernel, tuple[Optimum, ...], Sites | None]:
    """Give each feature its own length-scale if that raises the objective by more than chance.

    Length-scales without any meaning raise it by half their number, and by more where data are
    few: it has to be more than their number (Akaike), and ten at least. The optimiser ends early,
    for the last digits of the objective are those that overfit.
    """
    further = begin.refined(optima[0].theta)
    least = max(begin.by_feature - 1, _BEYOND_CHANCE)
    # Log probabilities, unlike densities, do not rise above zero.
    if data.discrete and -optima[0].value <= least:
        return begin.kernel, optima, sites
    settings = replace(
        settings,
        n_restarts=0,
        ftol=max(settings.ftol, _EARLY),
        max_iter=min(settings.max_iter, _STEPS),
    )
    (run, *_), ended, _ = _optimise(data, further, settings, rng, callback)
    if not run.value - optima[0].value > least:
        return begin.kernel, optima, sites
    # It is meant to end early: where it did is nothing for the user to mend.
    return further.kernel, (replace(run, success=True), *optima), ended


def _optimise(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    callback: Callback | None,
) -> tuple[tuple[Optimum, ...], Sites | None, list[str]]:
    """All optimiser runs, best first, the sites where the best one ended, and what to warn of."""
    kernel, projector = begin.kernel, data.projector
    # The gradient of the evidence is exact for EP only: QP runs at EP's optimum, as published.
    # VB has its own bound.
    own = settings.objective == "loo" or projector.method == "vb"
    judge = projector if own else projector.for_evidence()
    objective = OBJECTIVES[settings.objective]
    family: type[KernelFamily] | type[SeriesFamily] = KernelFamily
    if _of_states(data, kernel, settings, judge):
        objective, family = SeriesObjective, SeriesFamily

    def one(start: Array, max_iter: int = settings.max_iter) -> Run:
        return maximise(
            family(kernel, data.X, data.prior, data.scale),  # type: ignore[arg-type]
            data.y,
            judge,
            start=start,
            max_iterations=max_iter,
            ftol=settings.ftol,
            tol=settings.tol,
            max_sweeps=settings.max_sweeps,
            weights=data.weights,
            objective=objective,
            callback=callback,
            learn=data.learn,
            log_prior=begin.log_prior,
        )

    first = first_theta(kernel, projector, data.learn)
    bounds = all_bounds(kernel, data.learn)
    tries = _starts(first, bounds, settings.n_restarts, rng)
    if begin.thetas:
        known = [np.concatenate([theta, first[theta.size :]]) for theta in begin.thetas]
        tries[0] = np.array(known)
    if len(tries) == 1:
        runs = [one(tries[0])]
    else:
        tasks = (delayed(_or_failure)(one, start) for start in tries)
        ended = Parallel(n_jobs=settings.n_jobs, prefer="threads")(tasks)
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
    shape = starts.degenerate(kernel, X)
    if settings.n_restarts and shape is not None:
        # Restarts are for this: there is nothing to say if one got away.
        at_best = kernel.clone_with_theta(runs[0][0].theta[: kernel.n_dims])
        shape, tried = starts.degenerate(at_best, X), ", which no restart changes"
    if shape is not None or _flat(runs[0][0], kernel.n_dims, bounds, one):
        theta = None if settings.n_restarts else starts.start_from(kernel, X)
        if theta is not None:
            start = runs[0][0].start.copy()
            start[: kernel.n_dims] = theta
            run = _run(start, _or_failure(one, start))
            better = run[0].value > runs[0][0].value
            tried = f"; a start from the data was tried too, and is {'' if better else 'no '}better"
            runs.append(run)
            runs.sort(key=_worse)
        advice.append(starts.unrelated(kernel, X, shape, tried))
    best = runs[0][0]
    return advice + starts.at_bounds(kernel, X, best.theta, best.slope, settings.objective)


def _flat(best: Optimum, dims: int, bounds: Array, one: Callable[..., Run]) -> bool:
    """Whether a run never moved, and the objective is the same with other kernel parameters.

    An optimum that was given as the start is none either way: two evaluations tell.
    """
    if not dims or best.n_iterations or not best.success:
        return False
    for step in (-starts.MOVED, starts.MOVED):
        moved = best.theta.copy()
        moved[:dims] = np.clip(moved[:dims] + step, *bounds[:dims].T)
        if np.abs(moved - best.theta).max() < 0.1 * starts.MOVED:
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


def _announce(n: int, settings: Settings) -> None:
    """Say how long a fit will take, if that is long."""
    work = _PER_EVALUATION * USUAL_EVALUATIONS * (1 + settings.n_restarts)
    announce(
        f"a fit of N = {n} points",
        expected_seconds(n, work),
        "fit the kernel's parameters to some of the rows and set optimize=False for all, lower "
        "n_restarts or max_iter, or use more BLAS threads; verbose=1 shows how far it is",
    )


def _both(first: Callback | None, second: Callback | None) -> Callback | None:
    """Call what there is of both."""
    if first is None or second is None:
        return first or second

    both = first, second

    def call(theta: Array, value: float) -> None:
        for one in both:
            one(theta, value)

    return call


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """One BLAS thread for small matrices."""
    with _blas().limit(limits=1) if n < _ONE_THREAD else contextlib.nullcontext():
        yield
