"""Settings of a fit: the parameters that all estimators have, checked, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.utils import check_random_state

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, flag, no_kernel, number, path_of, shown, whole
from qpruntime.errors import InputError
from qpruntime.execution.threads import threads_of
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.kernels.derivative_covariance import DerivativeRows
from qpruntime.learning.inputs import Inputs, RowGroups
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.options import OPEN_POINTS, Inducing, Integrate, Search, Series
from qpruntime.learning.scaling import Units
from qpruntime.projection.projector import Projector

__all__ = [
    "SOLVERS",
    "Data",
    "Settings",
    "Slopes",
    "generator",
    "inducing_of",
    "left_open",
    "numbered",
    "search_of",
    "settings_of",
]

SOLVERS = ("auto", "dense", "markov")

_SEARCHES = 'or what is maximised, "evidence" or "loo", or Search(...)'


@dataclass(frozen=True)
class Settings:
    """Parameters of an estimator; they are documented there.

    `search` has how hyper-parameters are searched for, if `optimize` is true. `inducing` is None
    for the dense engine; `approximate` is that of `Series`. `seeded` says whether the user gives a
    seed: without one, draws of hyper-parameters are the same in every fit. Model
    selection learns its default kernel alone, with the fewest inducing points, if `compare_kernels`
    is false. `linear` gives the default kernel of a dense fit a linear part.
    """

    kernel: Kernel | str | None
    search: Search
    optimize: bool
    tol: float
    max_sweeps: int
    n_jobs: int | None
    verbose: int
    solver: str = "auto"
    approximate: float | None = None
    inducing: Inducing | None = None
    integrate: Integrate | None = None
    seeded: bool = True
    compare_kernels: bool = True
    linear: bool = False

    @property
    def given(self) -> bool:
        """True if the user gives the kernel."""
        return isinstance(self.kernel, Kernel)

    @property
    def sparse(self) -> Inducing | None:
        """Settings of a sparse fit, if the number of inducing points or the points are given."""
        return None if self.inducing is None or self.inducing.open else self.inducing

    @property
    def auto(self) -> Inducing | None:
        """Settings of inducing points, if the number of rows decides whether there are any."""
        return self.inducing if self.inducing is not None and self.inducing.open else None

    @property
    def scheduler(self) -> str | None:
        """Address of a dask scheduler, if there is one."""
        return None if self.inducing is None else self.inducing.scheduler

    @property
    def checkpoint(self) -> Path | None:
        """File that a fit goes on from, if there is one."""
        path = None if self.inducing is None else self.inducing.checkpoint
        return None if path is None else path_of(path, "checkpoint")

    def shortened(self, ftol: float, iterations: int, **search: Any) -> Settings:
        """Return the settings of a search from one start that ends early, with other `search`."""
        ftol, iterations = max(ftol, self.search.ftol), min(iterations, self.search.max_iter)
        return replace(
            self, search=self.search.but(restarts=0, ftol=ftol, max_iter=iterations, **search)
        )

    def in_units(self, units: Units) -> Settings:
        """Return the settings for scaled features: so are inducing inputs that are given."""
        inducing = self.inducing
        if inducing is None or not isinstance(inducing.points, np.ndarray):
            return self
        if inducing.points.shape[1] != units.spread.size:
            raise InputError(
                f"inducing must have {units.spread.size} columns like X, got "
                f"{inducing.points.shape[1]}"
            )
        return replace(self, inducing=inducing.but(points=units.scaled(inducing.points)))


def settings_of(model: Any) -> Settings:
    """Return the settings of an estimator; `InputError` if one is of no use to any fit."""
    kernel = model.kernel
    automatic = kernel is None or (isinstance(kernel, str) and kernel == "auto")
    if not (automatic or isinstance(kernel, Kernel)):
        raise no_kernel(kernel, "None, 'auto' or ")
    if _compound(model.kernel):
        raise InputError(
            f"kernel {shown(model.kernel)} contains a CompoundKernel, which stands for one "
            "covariance matrix per class, and a Gaussian process has one: give one of its "
            "kernels, or their sum"
        )
    search, (solver, approximate) = search_of(model.optimize), _solver_of(model.solver)
    inducing = inducing_of(model.inducing)
    chosen = inducing is not None and inducing.open
    if search is not None and search.priors and automatic:
        raise InputError(
            "priors need a kernel, whose parameters they name; the default kernel has priors "
            "of its own: give kernel="
        )
    max_sweeps = whole(model.max_sweeps, "max_sweeps", 1)
    tol = number(model.tol, "tol", above=0.0)
    threads_of(model.n_jobs)
    verbose = model.verbose
    if isinstance(verbose, (bool, np.bool_)):
        verbose = int(verbose)
    if solver == "markov" and not (chosen or inducing is None):
        raise InputError(
            'solver="markov" cannot be used with inducing points: leave one of the two out'
        )
    checkpointed = inducing is not None and inducing.checkpoint is not None
    if checkpointed and not isinstance(model.random_state, Integral):
        raise InputError(
            "checkpoint= needs a whole number as random_state=, so that a resumed fit draws "
            f"the same rows; got {shown(model.random_state)}"
        )
    return Settings(
        kernel=kernel if automatic else clone(kernel),
        search=search or Search(),
        optimize=search is not None,
        tol=tol,
        max_sweeps=max_sweeps,
        n_jobs=model.n_jobs,
        verbose=whole(verbose, "verbose", 0),
        solver=solver,
        approximate=approximate,
        inducing=inducing,
    )


def numbered(settings: Settings, count: int) -> list[Settings]:
    """Return the settings of so many processes: of several, each has a checkpoint of its own."""
    path, inducing = settings.checkpoint, settings.inducing
    if count == 1 or path is None or inducing is None:
        return [settings] * count
    names = [path.with_name(f"{path.stem}.{k}{path.suffix}") for k in range(count)]
    return [replace(settings, inducing=inducing.but(checkpoint=name)) for name in names]


def inducing_of(option: Any) -> Inducing | None:
    """Convert the argument ``inducing=`` of an estimator; None is the dense engine."""
    return option if option is None or isinstance(option, Inducing) else Inducing(option)


def left_open(option: object) -> bool:
    """Decide whether the number of rows determines how many inducing points there are."""
    points = option.points if isinstance(option, Inducing) else option
    return isinstance(points, str) and points in OPEN_POINTS


def search_of(option: object) -> Search | None:
    """Convert the argument ``optimize=`` of an estimator; None is no search."""
    if isinstance(option, Search):
        return option
    if isinstance(option, str):
        return Search(choice(option, "optimize", tuple(OBJECTIVES)))  # type: ignore[arg-type]
    return Search() if flag(option, "optimize", _SEARCHES) else None


def _solver_of(option: object) -> tuple[str, float | None]:
    """Return the name of the solver, and the tolerance on squared exponentials."""
    if not isinstance(option, Series):
        return choice(option, "solver", SOLVERS), None
    return "markov" if option.required else "auto", option.approximate


def _compound(kernel: object) -> bool:
    """Decide whether there is a `CompoundKernel` among the kernels that this one is made of."""
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return isinstance(kernel, CompoundKernel) or any(
        _compound(part) for part in parts if isinstance(part, Kernel)
    )


def generator(
    random_state: int | np.random.RandomState | np.random.Generator | None,
) -> np.random.Generator:
    """Return a new generator that is seeded from scikit-learn's ``random_state``."""
    if isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state.integers(2**31))
    return np.random.default_rng(check_random_state(random_state).randint(2**31))


# --- `Data`


@dataclass(frozen=True)
class Data:
    """Data that one process is fitted to; the fields are arguments of `optimise.maximise`.

    The projector is of the method that the posterior is to have; `prior` is the prior mean of f.
    Rows observe `scale` times f. Weights and scales are positive, and None if all are 1. `discrete`
    says that p(y|f) is a probability, not a density. If there are `slopes` of f, every array with a
    row for each observation has their rows after those of X. The signs of the slopes are observed
    by the likelihood of the labels, or by the probit if that likelihood has no labels; `own_signs`
    is False then. `joint` has the rows of classes fitted jointly; `y` then has a row for each site.
    """

    inputs: Inputs
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    discrete: bool = True
    slopes: Slopes | None = None
    own_signs: bool = True
    joint: Layout | None = None

    @property
    def X(self) -> Array:
        """Inputs that are in memory, shape (N, d)."""
        return self.inputs.X

    @property
    def groups(self) -> RowGroups | None:
        """Rows that are left out together."""
        return self.inputs.groups

    @property
    def observed_prior(self) -> Array:
        """Prior mean of what is observed, `scale` times that of f."""
        return self.prior if self.scale is None else self.prior * self.scale


# --- Observed slopes


@restorable("slopes/1")
@dataclass(frozen=True)
class Slopes:
    """Points and directions of observed slopes.

    Attributes
    ----------
    where : ndarray, shape (M, d)
    feature : ndarray of int, shape (M,)
        Feature that each slope is along.
    times : ndarray, shape (M,)
        Factor of each slope in what is observed.
    """

    where: Array
    feature: NDArray[np.intp]
    times: Array

    def scaled(self, units: Units) -> Slopes:
        """Return these slopes for scaled features."""
        kept = np.cumsum(units.spread > 0.0) - 1
        times = self.times / units.spread[self.feature]
        return Slopes(units.scaled(self.where), kept[self.feature], times)

    def unscaled(self, units: Units, first: Slopes) -> Slopes:
        """Return these slopes for the features themselves; those of `first` keep their points."""
        kept = np.flatnonzero(units.spread > 0.0)
        feature = kept[self.feature]
        where = units.unscaled(self.where)
        where[: len(first.where)] = first.where
        return Slopes(where, feature, self.times * units.spread[feature])

    def joined(self, other: Slopes) -> Slopes:
        """Return these slopes, followed by others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Slopes(*(np.concatenate(pair) for pair in pairs))

    def asked(self, X: Array) -> DerivativeRows:
        """Return rows of the function at X, followed by these slopes."""
        return DerivativeRows.both(X, self.where, self.feature)

    def scales(self, n: int, scale: Array | float | None = None) -> Array:
        """Return the factors of n values, followed by those of slopes, shape (n + M,)."""
        values = np.broadcast_to(1.0 if scale is None else scale, n)
        return np.concatenate([values, self.times])
