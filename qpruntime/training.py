"""Fit one Gaussian process to one encoded target: hyper-parameters, then the final posterior.

What estimators share. Knows kernels, objectives and restarts, nothing of labels.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from sklearn.utils import check_random_state
from threadpoolctl import ThreadpoolController

from qpruntime import likelihoods
from qpruntime.engine import Problem
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.factor import Sites
from qpruntime.hyper import (
    OBJECTIVES,
    Optimum,
    all_bounds,
    first_theta,
    maximise,
    settle_fast,
)
from qpruntime.inference import summarise, warn_unsettled
from qpruntime.posterior import Posterior
from qpruntime.projection import Projector
from qpruntime.validation import choice, number, shown, whole

__all__ = [
    "Callback",
    "Fit",
    "Settings",
    "check_parameters",
    "checked",
    "default_kernel",
    "generator",
    "settings_of",
    "train",
]

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


def settings_of(estimator: Any) -> Settings:
    """Return the settings among an estimator's parameters."""
    return Settings(**{field.name: getattr(estimator, field.name) for field in fields(Settings)})


def generator(random_state: int | np.random.RandomState | None) -> np.random.Generator:
    """Return the generator that scikit-learn's ``random_state`` stands for."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31))


def default_kernel() -> Kernel:
    """Return the paper's kernel: isotropic squared exponential, variance and length-scale 1.

    The evidence of separable data keeps rising with the variance, hence its wide bounds.
    """
    return ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))


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
    """One fitted process: its kernel, its posterior, and every optimiser run, best first.

    `projector` has the parameters of the likelihood that were learnt.
    """

    kernel: Any
    posterior: Posterior
    optima: tuple[Optimum, ...]
    projector: Projector


def train(
    kernel: Any,
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    settings: Settings,
    rng: np.random.Generator,
    weights: Array | None = None,
    scale: Array | None = None,
    learn: Mapping[str, tuple[float, float]] | None = None,
    stacklevel: int = 3,
) -> Fit:
    """Maximise the objective from the kernel's parameters and from restarts, then infer.

    Parameters
    ----------
    kernel, X, y, projector, prior, weights, scale, learn
        As for `qpruntime.hyper.maximise`, but of the method that the posterior is to have.
    settings : Settings
    rng : Generator
        For restarts.
    stacklevel : int
        Of warnings; 3 is the caller of the caller.
    """
    learn = learn or {}
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
        if settings.optimize and (kernel.n_dims or learn):
            data = _Data(X, y, projector, prior, weights, scale, learn)
            optima, sites = _optimise(kernel, data, settings, rng)
            if not optima[0].success:
                warnings.warn(
                    f"the {settings.objective} was not maximised: {optima[0].message}; "
                    "raise max_iter or widen the kernel's bounds",
                    ConvergenceWarning,
                    stacklevel=stacklevel,
                )
            theta = optima[0].theta
            kernel = kernel.clone_with_theta(theta[: kernel.n_dims])
            if learn:
                projector = learnt(projector, tuple(learn), theta[kernel.n_dims :])
        K = kernel(X) if scale is None else kernel(X) * np.outer(scale, scale)
        problem = Problem(K, y, projector, prior, weights=weights)
        end = settle_fast(problem, tol=settings.tol, max_sweeps=settings.max_sweeps, sites=sites)
        warn_unsettled(end, settings.tol, stacklevel=stacklevel + 1)
        return Fit(kernel, summarise(problem, end), optima, projector)


def learnt(projector: Projector, names: Sequence[str], logs: Array) -> Projector:
    """Return the projector with learnt parameters; its likelihood is the registered one."""
    values = np.exp(logs)
    likelihood = projector.likelihood.with_parameters(**dict(zip(names, values, strict=True)))
    if likelihood.name in likelihoods.names():
        likelihood = likelihoods.get(likelihood.spelt)
    return Projector(likelihood, projector.method)


@dataclass(frozen=True)
class _Data:
    """What stays the same from one optimiser run to the next."""

    X: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None
    scale: Array | None
    learn: Mapping[str, tuple[float, float]]


def _optimise(
    kernel: Any, data: _Data, settings: Settings, rng: np.random.Generator
) -> tuple[tuple[Optimum, ...], Sites | None]:
    """All optimiser runs, best first, and the sites where the best one ended."""
    objective = OBJECTIVES[settings.objective]
    # The gradient of the evidence is exact for EP only: QP runs at EP's optimum, as published.
    # VB has its own bound.
    projector = data.projector
    own = settings.objective == "loo" or projector.method == "vb"
    judge = projector if own else projector.for_evidence()

    def one(start: Array) -> tuple[Optimum, Sites | None]:
        return maximise(
            kernel,
            data.X,
            data.y,
            judge,
            data.prior,
            start=start,
            max_iterations=settings.max_iter,
            ftol=settings.ftol,
            tol=settings.tol,
            max_sweeps=settings.max_sweeps,
            scale=data.scale,
            weights=data.weights,
            objective=objective,
            callback=_reporter(settings),
            learn=data.learn,
        )

    first = first_theta(kernel, projector, data.learn)
    starts = _starts(first, all_bounds(kernel, data.learn), settings.n_restarts, rng)
    if len(starts) == 1:
        runs = [one(starts[0])]
    else:
        runs = Parallel(n_jobs=settings.n_jobs, prefer="threads")(delayed(one)(s) for s in starts)
    runs.sort(key=lambda run: -run[0].value)
    return tuple(run[0] for run in runs), runs[0][1]


def _starts(first: Array, bounds: Array, restarts: int, rng: np.random.Generator) -> list[Array]:
    """The given parameters, then log-uniform draws around them within the bounds."""
    low, high = bounds.T
    low = np.maximum(low, np.minimum(first - _SPREAD, high))
    high = np.minimum(high, np.maximum(first + _SPREAD, low))
    return [first] + [rng.uniform(low, high) for _ in range(restarts)]


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
