"""How to fit: the parameters that all estimators have, checked, and their defaults resolved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.utils import check_random_state

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.units import Units
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.validation import (
    choice,
    finite,
    flag,
    no_kernel,
    number,
    path_of,
    shown,
    whole,
)

__all__ = [
    "SOLVERS",
    "Auto",
    "Callback",
    "ObjectiveName",
    "Settings",
    "Sparse",
    "generator",
    "numbered",
    "settings_of",
]

SOLVERS = ("auto", "dense", "markov")
Callback = Callable[[Array, float], Any]
ObjectiveName = Literal["evidence", "loo"]

#: More are a slip of the keyboard.
_MOST_RESTARTS, _MOST_NEAREST = 100_000, 1000


@dataclass(frozen=True)
class Sparse:
    """How to fit with inducing points, under the names of the estimators."""

    inducing: int | str | Array
    power: float
    optimize: bool
    subsample: int
    dtype: str
    memory: float
    checkpoint: Path | None
    resume: bool


@dataclass(frozen=True)
class Auto:
    """How to fit as many rows as there are, under the names of the estimators.

    `sparse` says how with inducing points; `few`, whether rows held out judge few rows too.
    """

    sparse: Sparse
    few: bool
    budget: float | None
    nearest: int | str


@dataclass(frozen=True)
class Settings:
    """Parameters of an estimator, under its own names; they are documented there."""

    kernel: Kernel | str | None
    objective: str
    optimize: bool
    n_restarts: int
    max_iter: int
    ftol: float
    tol: float
    max_sweeps: int
    n_jobs: int | None
    verbose: int
    callback: Callback | None
    solver: str = "auto"
    scheduler: str | None = None
    approximate: float | None = None
    sparse: Sparse | None = None
    auto: Auto | None = None

    @property
    def given(self) -> bool:
        """Whether the user gives the kernel."""
        return isinstance(self.kernel, Kernel)

    def in_units(self, units: Units) -> Settings:
        """Return the settings for scaled features: so are inducing inputs that are given."""
        if self.sparse is None or not isinstance(self.sparse.inducing, np.ndarray):
            return self
        if self.sparse.inducing.shape[1] != units.spread.size:
            raise InputError(
                f"inducing must have {units.spread.size} columns like X, got "
                f"{self.sparse.inducing.shape[1]}"
            )
        inducing = units.scaled(self.sparse.inducing)
        return replace(self, sparse=replace(self.sparse, inducing=inducing))


def settings_of(model: Any) -> Settings:
    """Return the settings of an estimator; `InputError` if one is of no use to any fit."""
    kernel = model.kernel
    automatic = kernel is None or (isinstance(kernel, str) and kernel == "auto")
    if not (automatic or isinstance(kernel, Kernel)):
        raise no_kernel(kernel, "None, 'auto' or ")
    if _compound(model.kernel):
        raise InputError(
            f"kernel {shown(model.kernel)} has a CompoundKernel in it, which stands for one "
            "covariance matrix per class: a Gaussian process has one; give one of its kernels, or "
            "their sum"
        )
    max_iter = whole(model.max_iter, "max_iter", 0)
    max_sweeps = whole(model.max_sweeps, "max_sweeps", 1)
    ftol = number(model.ftol, "ftol", above=0.0, most=1.0)
    tol = number(model.tol, "tol", above=0.0)
    n_restarts = whole(model.n_restarts, "n_restarts", 0)
    if n_restarts > _MOST_RESTARTS:
        raise InputError(f"n_restarts must be at most {_MOST_RESTARTS}, got {n_restarts}")
    if model.n_jobs is not None:
        cores = whole(model.n_jobs, "n_jobs", -_MOST_RESTARTS)
        if cores == 0 or cores > _MOST_RESTARTS:
            raise InputError(f"n_jobs must be None or a number of threads, got {cores}")
    verbose = model.verbose
    if isinstance(verbose, (bool, np.bool_)):
        verbose = int(verbose)
    if not (model.callback is None or callable(model.callback)):
        raise InputError(f"callback must be None or a function, got {shown(model.callback)}")
    scheduler = model.scheduler
    if not (scheduler is None or isinstance(scheduler, str)):
        raise InputError(f"scheduler must be None or an address, got {shown(scheduler)}")
    solver = choice(model.solver, "solver", SOLVERS)
    chosen = left_open(model.inducing)
    _budget_of(model)
    if solver == "markov" and not (chosen or model.inducing is None):
        raise InputError('solver="markov" has no inducing points: leave one of the two out')
    approximate = model.approximate
    if approximate is not None:
        approximate = number(approximate, "approximate", above=0.0, most=1.0)
    return Settings(
        kernel=kernel if automatic else clone(kernel),
        objective=choice(model.objective, "objective", tuple(OBJECTIVES)),
        optimize=flag(model.optimize, "optimize"),
        n_restarts=n_restarts,
        max_iter=max_iter,
        ftol=ftol,
        tol=tol,
        max_sweeps=max_sweeps,
        n_jobs=model.n_jobs,
        verbose=whole(verbose, "verbose", 0),
        callback=model.callback,
        solver=solver,
        scheduler=scheduler,
        approximate=approximate,
        sparse=None if chosen else _sparse_of(model),
        auto=_auto_of(model) if chosen else None,
    )


def numbered(settings: Settings, count: int) -> list[Settings]:
    """Return the settings of so many processes: of several, each has a checkpoint of its own."""
    sparse = settings.sparse
    if count == 1 or sparse is None or sparse.checkpoint is None:
        return [settings] * count
    path = sparse.checkpoint
    names = [path.with_name(f"{path.stem}.{k}{path.suffix}") for k in range(count)]
    return [replace(settings, sparse=replace(sparse, checkpoint=name)) for name in names]


def left_open(inducing: Any) -> bool:
    """Whether the number of inducing points, and whether there are any, is left to the rows."""
    return isinstance(inducing, str) and inducing in ("auto", "judged")


def _sparse_of(model: Any) -> Sparse | None:
    """Return how to fit with inducing points, None if there are none."""
    given, checkpoint = model.inducing, model.checkpoint
    own = _by_inducing(model)
    if flag(model.resume, "resume") and checkpoint is None:
        raise InputError("resume=True needs checkpoint=, the file to go on from")
    if given is None:
        if checkpoint is not None:
            raise InputError("checkpoint= is for fits with inducing points: give inducing=200")
        return None
    if checkpoint is not None and not isinstance(model.random_state, Integral):
        raise InputError(
            "checkpoint= needs random_state=, a whole number: a fit that goes on draws the same "
            f"rows again; got {shown(model.random_state)}"
        )
    kinds = "inducing must be None, a number, 'auto', 'judged', 'variance' or inputs (M, d), got"
    if isinstance(given, str):
        if given != "variance":
            raise InputError(f"{kinds} {given!r}")
    elif np.ndim(given) == 0:
        given = whole(given, "inducing", 1)
    else:
        given = np.array(finite(given, "inducing"))
        if given.ndim != 2 or 0 in given.shape:
            raise InputError(f"{kinds} shape {given.shape}")
    path = None if checkpoint is None else path_of(checkpoint, "checkpoint")
    return replace(own, inducing=given, checkpoint=path, resume=model.resume)


def _auto_of(model: Any) -> Auto:
    """Return how to fit where kernel and engine are chosen for the rows there are."""
    if model.checkpoint is not None:
        raise InputError("checkpoint= is for fits with inducing points: give inducing=200")
    if flag(model.resume, "resume"):
        raise InputError("resume=True needs checkpoint=, the file to go on from")
    return Auto(_by_inducing(model), model.inducing == "judged", *_budget_of(model))


def _by_inducing(model: Any) -> Sparse:
    """Return how to fit with inducing points; checked also where there are none."""
    return Sparse(
        inducing="auto",
        power=number(model.power, "power", above=0.0, most=1.0),
        optimize=flag(model.optimize_inducing, "optimize_inducing"),
        subsample=whole(model.subsample, "subsample", 1),
        dtype=choice(model.dtype, "dtype", ("mixed", "float64")),
        memory=number(model.memory, "memory", above=-1.0),
        checkpoint=None,
        resume=False,
    )


def _budget_of(model: Any) -> tuple[float | None, int | str]:
    """Budget and nearest rows, checked."""
    budget, nearest = model.budget, model.nearest
    if budget is not None:
        budget = number(budget, "budget", above=0.0)
    if not (isinstance(nearest, str) and nearest == "auto"):
        nearest = whole(nearest, "nearest", 0)
        if nearest > _MOST_NEAREST:
            raise InputError(f"nearest must be at most {_MOST_NEAREST} rows, got {nearest}")
    return budget, nearest


def _compound(kernel: Any) -> bool:
    """Whether there is a `CompoundKernel` among the kernels that this one is made of."""
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return isinstance(kernel, CompoundKernel) or any(
        _compound(part) for part in parts if isinstance(part, Kernel)
    )


def generator(random_state: int | np.random.RandomState | None) -> np.random.Generator:
    """Return the generator that scikit-learn's ``random_state`` stands for."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31))
