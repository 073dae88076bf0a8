"""How to fit: the parameters that all estimators have, checked, and their defaults resolved."""

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
from qpruntime.execution.executors import threads_of
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.kernels.derivative_covariance import Asked
from qpruntime.kernels.scaling import Units
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.options import OPEN, Callback, Inducing, Integrate, Search, Series
from qpruntime.learning.row_groups import RowGroups
from qpruntime.projection.projector import Projector

__all__ = [
    "SOLVERS",
    "Auto",
    "Data",
    "Settings",
    "Slopes",
    "Sparse",
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
class Sparse:
    """How to fit with inducing points: `qpruntime.Inducing`, as fits take it."""

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
    """How to fit as many rows as there are: `qpruntime.Inducing`, as fits take it.

    `sparse` says how with inducing points; `few`, whether rows held out judge few rows too.
    """

    sparse: Sparse
    few: bool
    budget: float | None
    nearest: int | str


@dataclass(frozen=True)
class Settings:
    """Parameters of an estimator, its options of engines taken apart; they are documented there.

    `seeded` says whether the user gives a seed: without one, draws of hyper-parameters are the same
    in every fit.
    """

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
    priors: Any = None
    solver: str = "auto"
    scheduler: str | None = None
    approximate: float | None = None
    sparse: Sparse | None = None
    auto: Auto | None = None
    integrate: Integrate | None = None
    seeded: bool = True

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
    search, (solver, approximate) = search_of(model.optimize), _solver_of(model.solver)
    inducing = inducing_of(model.inducing)
    chosen = inducing is not None and inducing.open
    sought = Search() if search is None else search
    max_sweeps = whole(model.max_sweeps, "max_sweeps", 1)
    tol = number(model.tol, "tol", above=0.0)
    threads_of(model.n_jobs)
    verbose = model.verbose
    if isinstance(verbose, (bool, np.bool_)):
        verbose = int(verbose)
    if solver == "markov" and not (chosen or inducing is None):
        raise InputError('solver="markov" has no inducing points: leave one of the two out')
    checkpointed = inducing is not None and inducing.checkpoint is not None
    if checkpointed and not isinstance(model.random_state, Integral):
        raise InputError(
            "checkpoint= needs random_state=, a whole number: a fit that goes on draws the same "
            f"rows again; got {shown(model.random_state)}"
        )
    return Settings(
        kernel=kernel if automatic else clone(kernel),
        objective=sought.objective,
        optimize=search is not None,
        n_restarts=sought.restarts,
        max_iter=sought.max_iter,
        ftol=sought.ftol,
        tol=tol,
        max_sweeps=max_sweeps,
        n_jobs=model.n_jobs,
        verbose=whole(verbose, "verbose", 0),
        callback=sought.callback,
        priors=_priors_of(sought, automatic, search is not None),
        solver=solver,
        scheduler=None if inducing is None else inducing.scheduler,
        approximate=approximate,
        sparse=None if inducing is None or chosen else _sparse_of(inducing),
        auto=_auto_of(inducing) if inducing is not None and chosen else None,
    )


def _priors_of(search: Search, automatic: bool, learns: bool) -> Any:
    """Return the priors that were given; `InputError` if they cannot act."""
    if search.priors and automatic:
        raise InputError(
            "priors are of a kernel that is given, whose parameters they name: the default kernel "
            "has priors of its own; give kernel="
        )
    return search.priors if learns else None


def numbered(settings: Settings, count: int) -> list[Settings]:
    """Return the settings of so many processes: of several, each has a checkpoint of its own."""
    sparse = settings.sparse
    if count == 1 or sparse is None or sparse.checkpoint is None:
        return [settings] * count
    path = sparse.checkpoint
    names = [path.with_name(f"{path.stem}.{k}{path.suffix}") for k in range(count)]
    return [replace(settings, sparse=replace(sparse, checkpoint=name)) for name in names]


def inducing_of(given: Any) -> Inducing | None:
    """Return what an estimator was given as ``inducing=``, as a value; None is the dense engine."""
    return given if given is None or isinstance(given, Inducing) else Inducing(given)


def left_open(given: Any) -> bool:
    """Whether the number of inducing points, and whether there are any, is left to the rows."""
    points = given.points if isinstance(given, Inducing) else given
    return isinstance(points, str) and points in OPEN


def search_of(given: Any) -> Search | None:
    """Return what an estimator was given as ``optimize=``, as a value; None is no search."""
    if isinstance(given, Search):
        return given
    if isinstance(given, str):
        return Search(choice(given, "optimize", tuple(OBJECTIVES)))  # type: ignore[arg-type]
    return Search() if flag(given, "optimize", _SEARCHES) else None


def _solver_of(given: Any) -> tuple[str, float | None]:
    """Which solver is asked for, and how squared exponentials may be approximated."""
    if not isinstance(given, Series):
        return choice(given, "solver", SOLVERS), None
    return "markov" if given.required else "auto", given.approximate


def _sparse_of(inducing: Inducing) -> Sparse:
    """Return how to fit with inducing points."""
    given = inducing.points
    checkpoint = inducing.checkpoint
    return Sparse(
        inducing=given if isinstance(given, (int, str)) else np.array(given),
        power=inducing.power,
        optimize=inducing.learn,
        subsample=inducing.subsample,
        dtype=inducing.dtype,
        memory=inducing.memory,
        checkpoint=None if checkpoint is None else path_of(checkpoint, "checkpoint"),
        resume=inducing.resume,
    )


def _auto_of(inducing: Inducing) -> Auto:
    """Return how to fit where kernel and engine are chosen for the rows there are."""
    own = replace(_sparse_of(inducing), inducing="auto")
    return Auto(own, inducing.points == "judged", inducing.budget, inducing.nearest)


def _compound(kernel: Any) -> bool:
    """Whether there is a `CompoundKernel` among the kernels that this one is made of."""
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return isinstance(kernel, CompoundKernel) or any(
        _compound(part) for part in parts if isinstance(part, Kernel)
    )


def generator(
    random_state: int | np.random.RandomState | np.random.Generator | None,
) -> np.random.Generator:
    """Return the generator that scikit-learn's ``random_state`` stands for, or one drawn of it."""
    if isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state.integers(2**31))
    return np.random.default_rng(check_random_state(random_state).randint(2**31))


# --- `Data`


@dataclass(frozen=True)
class Data:
    """Data that one process is fitted to; the fields are arguments of `optimise.maximise`.

    The projector is of the method that the posterior is to have; `prior` is the prior mean of f.
    Rows observe `scale` times f. Weights and scales are positive, and None if all are 1. `discrete`
    says that p(y|f) is a probability, not a density. With `slopes` of f these are rows after those
    of X, of all that has a row for each observation; what is observed are their signs, by the
    likelihood of labels, or, where that has none, by the probit: `own_signs` is False then. `joint`
    has the rows of classes fitted jointly; `y` then are those of its sites. Columns `levels` of X
    are codes of levels. `groups` are rows that are left out together; without them each row is by
    itself.
    """

    X: Array
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
    levels: tuple[int, ...] = ()
    groups: RowGroups | None = None

    @property
    def observed_prior(self) -> Array:
        """Prior mean of what is observed, `scale` times that of f."""
        return self.prior if self.scale is None else self.prior * self.scale


# --- Observed slopes


@restorable("slopes/1")
@dataclass(frozen=True)
class Slopes:
    """Where slopes are observed.

    Attributes
    ----------
    where : ndarray, shape (M, d)
    feature : ndarray of int, shape (M,)
        That each is along.
    times : ndarray, shape (M,)
        What is observed is the slope times this.
    """

    where: Array
    feature: NDArray[np.intp]
    times: Array

    def scaled(self, units: Units) -> Slopes:
        """The same of scaled features."""
        kept = np.cumsum(units.spread > 0.0) - 1
        times = self.times / units.spread[self.feature]
        return Slopes(units.scaled(self.where), kept[self.feature], times)

    def unscaled(self, units: Units, first: Slopes) -> Slopes:
        """The same of the features themselves, of which the first are these already."""
        kept = np.flatnonzero(units.spread > 0.0)
        feature = kept[self.feature]
        where = units.unscaled(self.where)
        where[: len(first.where)] = first.where
        return Slopes(where, feature, self.times * units.spread[feature])

    def joined(self, other: Slopes) -> Slopes:
        """These, and then others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Slopes(*(np.concatenate(pair) for pair in pairs))

    def asked(self, X: Array) -> Asked:
        """The function at rows X, and then these slopes."""
        return Asked.both(X, self.where, self.feature)

    def scales(self, n: int, scale: Array | float | None = None) -> Array:
        """What values at n rows, and then slopes, are multiplied by, shape (n + M,)."""
        values = np.broadcast_to(1.0 if scale is None else scale, n)
        return np.concatenate([values, self.times])
