"""Fit one Gaussian process to one encoded target: hyper-parameters, then the final posterior.

What estimators share. Knows kernels, objectives and restarts, nothing of labels.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel
from threadpoolctl import ThreadpoolController

from qpruntime.engine import Problem
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.factor import Sites
from qpruntime.hyper import OBJECTIVES, Optimum, maximise, settle_fast
from qpruntime.inference import summarise, warn_unsettled
from qpruntime.posterior import Posterior
from qpruntime.projection import Projector
from qpruntime.validation import choice, number, shown, whole

__all__ = ["Fit", "Settings", "check_parameters", "checked", "train"]

Array = NDArray[np.float64]
Callback = Callable[[Array, float], Any]

# Below this many points a second BLAS thread costs more than it does.
_ONE_THREAD = 400
# Restarts are drawn within this factor of the kernel's own parameters, and within its bounds.
_SPREAD = np.log(1e3)


@dataclass(frozen=True)
class Settings:
    """How to fit; the fields are parameters of the estimators and documented there."""

    objective: str = "evidence"
    optimize: bool = True
    n_restarts: int = 0
    max_iter: int = 1000
    ftol: float = 1e-9
    tol: float = 1e-6
    max_sweeps: int = 100
    n_jobs: int | None = None
    verbose: int = 0
    callback: Callback | None = None


#: More are a slip of the keyboard.
_MOST_RESTARTS = 100_000


def check_parameters(model: Any) -> None:
    """Raise `InputError` if a parameter of this estimator is of no use to any fit."""
    if not (model.kernel is None or isinstance(model.kernel, Kernel)):
        raise InputError(f"kernel must be None or scikit-learn's, got {shown(model.kernel)}")
    if not isinstance(model.optimize, (bool, np.bool_)):
        raise InputError(f"optimize must be True or False, got {shown(model.optimize)}")
    whole(model.max_iter, "max_iter", 0)
    whole(model.max_sweeps, "max_sweeps", 1)
    number(model.ftol, "ftol", above=0.0, most=1.0)
    number(model.tol, "tol", above=0.0)
    if hasattr(model, "n_restarts") and whole(model.n_restarts, "n_restarts", 0) > _MOST_RESTARTS:
        raise InputError(f"n_restarts must be at most {_MOST_RESTARTS}, got {model.n_restarts}")
    if getattr(model, "n_jobs", None) is not None:
        cores = whole(model.n_jobs, "n_jobs", -_MOST_RESTARTS)
        if cores == 0 or cores > _MOST_RESTARTS:
            raise InputError(f"n_jobs must be None or a number of threads, got {cores}")
    if hasattr(model, "verbose"):
        whole(int(model.verbose is True) or model.verbose, "verbose", 0)
    callback = getattr(model, "callback", None)
    if not (callback is None or callable(callback)):
        raise InputError(f"callback must be None or a function, got {shown(callback)}")
    if hasattr(model, "objective"):
        choice(model.objective, "objective", tuple(OBJECTIVES))


def checked(validate: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Call a validator of scikit-learn on data that may be anything.

    Its own exceptions are `ValueError`, and `TypeError` for sparse matrices; what foreign objects
    raise on the way becomes an `InputError`, as do masked entries, which it would take for data.
    """
    for array in arrays:
        if np.ma.is_masked(array):
            raise InputError("masked entries cannot be fitted or predicted; leave them out")
    try:
        with np.errstate(all="ignore"):
            return validate(*arrays, **options)
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise InputError(f"the data cannot be converted to numbers: {error}") from error


@dataclass(frozen=True)
class Fit:
    """One fitted process: its kernel, its posterior, and every optimiser run, best first."""

    kernel: Any
    posterior: Posterior
    optima: tuple[Optimum, ...]


def train(
    kernel: Any,
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    settings: Settings,
    rng: np.random.Generator,
    weights: Array | None = None,
    stacklevel: int = 3,
) -> Fit:
    """Maximise the objective from the kernel's parameters and from restarts, then infer."""
    choice(settings.objective, "objective", tuple(OBJECTIVES))
    if settings.objective == "loo" and projector.method in ("vb", "wp"):
        why = "maximises its bound" if projector.method == "vb" else "has no gradient for it"
        raise InputError(
            f'method {projector.method!r} {why}; objective "loo" needs method "ep" or "qp"'
        )
    if weights is not None and settings.objective == "loo":
        raise InputError('objective "loo" takes no sample weights; use "evidence"')
    with _threads(len(X)):
        optima: tuple[Optimum, ...] = ()
        sites: Sites | None = None
        if settings.optimize and kernel.n_dims:
            optima, sites = _optimise(kernel, X, y, projector, prior, settings, rng, weights)
            if not optima[0].success:
                warnings.warn(
                    f"the {settings.objective} was not maximised: {optima[0].message}; "
                    "raise max_iter or widen the kernel's bounds",
                    ConvergenceWarning,
                    stacklevel=stacklevel,
                )
            kernel = kernel.clone_with_theta(optima[0].theta)
        problem = Problem(kernel(X), y, projector, prior, weights=weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, stacklevel=stacklevel + 1)
        return Fit(kernel, summarise(problem, end), optima)


def _optimise(
    kernel: Any,
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    settings: Settings,
    rng: np.random.Generator,
    weights: Array | None,
) -> tuple[tuple[Optimum, ...], Sites | None]:
    """All optimiser runs, best first, and the sites where the best one ended."""
    objective = OBJECTIVES[settings.objective]
    # The gradient of the evidence is exact for EP only: QP runs at EP's optimum, as published.
    # VB has its own bound.
    own = settings.objective == "loo" or projector.method == "vb"
    judge = projector if own else projector.for_evidence()

    def one(start: Array) -> tuple[Optimum, Sites | None]:
        return maximise(
            kernel,
            X,
            y,
            judge,
            prior,
            start=start,
            max_iterations=settings.max_iter,
            ftol=settings.ftol,
            tol=settings.tol,
            max_sweeps=settings.max_sweeps,
            weights=weights,
            objective=objective,
            callback=_reporter(settings),
        )

    starts = _starts(kernel, settings.n_restarts, rng)
    if len(starts) == 1:
        runs = [one(starts[0])]
    else:
        runs = Parallel(n_jobs=settings.n_jobs, prefer="threads")(delayed(one)(s) for s in starts)
    runs.sort(key=lambda run: -run[0].value)
    return tuple(run[0] for run in runs), runs[0][1]


def _starts(kernel: Any, restarts: int, rng: np.random.Generator) -> list[Array]:
    """The kernel's own parameters, then log-uniform draws around them within the bounds."""
    low, high = kernel.bounds.T
    low = np.maximum(low, np.minimum(kernel.theta - _SPREAD, high))
    high = np.minimum(high, np.maximum(kernel.theta + _SPREAD, low))
    return [kernel.theta] + [rng.uniform(low, high) for _ in range(restarts)]


def _reporter(settings: Settings) -> Callback | None:
    """Call the user's callback, and print a line per evaluation if asked to."""
    if not settings.verbose:
        return settings.callback

    def report(theta: Array, value: float) -> None:
        numbers = " ".join(f"{t:.4g}" for t in np.exp(theta))
        print(f"{settings.objective} {value:.6f} at {numbers}", file=sys.stderr)
        if settings.callback is not None:
            settings.callback(theta, value)

    return report


@cache
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process; finding them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    """One BLAS thread for small matrices."""
    with _blas().limit(limits=1) if n < _ONE_THREAD else contextlib.nullcontext():
        yield
