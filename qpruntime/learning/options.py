"""Options of one engine as one value, and the settings of a fit that are made of them.

`Search`, `Inducing`, `Series` and `Integrate` are options that an estimator takes beside
plain values: ``optimize=True`` means ``optimize=Search()``. A value refuses options that cannot act
together, so that no fit has to ignore one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel
from sklearn.utils import check_random_state

from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime._validation import choice, finite, flag, no_kernel, number, path_of, shown, whole
from qpruntime.errors import InputError
from qpruntime.execution.threads import threads_of
from qpruntime.inference.sparse.engine import MEMORY
from qpruntime.learning.hyperpriors import checked_priors
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.scaling import Units

__all__ = [
    "DESIGNS",
    "OPEN_POINTS",
    "SOLVERS",
    "Callback",
    "Inducing",
    "Integrate",
    "Options",
    "Search",
    "Series",
    "Settings",
    "inducing_of",
    "integrate_of",
    "left_open",
    "new_generator",
    "numbered",
    "search_of",
    "series_of",
    "settings_of",
]

Callback = Callable[[Array, float], Any]

#: A larger number is probably a typing error.
_MAX_RESTARTS = 100_000


class Options:
    """A value made of options: it compares and hashes by them, and shows those that were given."""

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        defaults = {field.name: field.default for field in fields(self)}  # type: ignore[arg-type]
        return {name: v for name, v in values.items() if not _same(v, defaults[name])}

    def but(self, **options: Any) -> Self:
        """Return the value with other options; `InputError` for an option that there is not."""
        known = [field.name for field in fields(self)]  # type: ignore[arg-type]
        for name in options:
            choice(name, f"an option of {type(self).__name__}", known)
        return replace(self, **options)  # type: ignore[type-var]

    def __repr__(self) -> str:
        first = fields(self)[0].name  # type: ignore[arg-type]
        words = [
            shown(value) if name == first else f"{name}={shown(value)}"
            for name, value in self.changed().items()
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(value, vars(other)[name]) for name, value in vars(self).items())

    def __hash__(self) -> int:
        return hash((type(self), *(_hashable(value) for value in vars(self).values())))

    def _set(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@restorable("search-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Search(Options):
    """Options of the search for hyper-parameters.

    Parameters
    ----------
    objective : {"evidence", "loo"}
        Objective to maximise: EP's evidence, as published, also for QP; or the leave-one-out log
        predictive density of the posterior that the method gives.
    restarts : int
        Number of further optimiser runs. They start from parameters drawn log-uniformly within a
        factor of 1000 of the kernel's own and within its bounds. Must be 0 with inducing points.
    max_iter : int
        Largest number of optimiser iterations.
    ftol : float
        Relative tolerance of the optimiser on the objective.
    callback : callable, optional
        Called with the log parameters and the objective after every evaluation.
    priors : dict, optional
        Priors of the parameters of a given kernel, by name ("k2__length_scale") or by ending
        ("length_scale" for all that end so), and of learnt likelihood parameters, in the units of
        the fit. Each prior is a frozen distribution of `scipy.stats`, or a name with numbers:
        ("half-normal", scale), ("log-normal", median, deviation), ("gamma", shape, scale),
        ("inverse-gamma", shape, scale), or a prior that penalises complexity. The latter are
        ("pc-variance", s, p) and ("pc-deviation", s, p), where a standard deviation exceeds s with
        probability p, and ("pc-length", l, p, d), where a length-scale of d features is below l
        with probability p. Log densities of the log parameters are added to the objective.

    Raises
    ------
    InputError
        If an option is not usable.

    See Also
    --------
    qpruntime.Integrate, qpruntime.GPClassifier

    Examples
    --------
    >>> from qpruntime import Search
    >>> Search("loo", restarts=3)
    Search('loo', restarts=3)
    """

    objective: Literal["evidence", "loo"] = "evidence"
    _: KW_ONLY
    restarts: int = 0
    max_iter: int = 1000
    ftol: float = 1e-9
    callback: Callback | None = None
    priors: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._set(
            objective=choice(self.objective, "objective", tuple(OBJECTIVES)),
            restarts=whole(self.restarts, "restarts", 0),
            max_iter=whole(self.max_iter, "max_iter", 0),
            ftol=number(self.ftol, "ftol", above=0.0, most=1.0),
            priors=checked_priors(self.priors),
        )
        if self.restarts > _MAX_RESTARTS:
            raise InputError(f"restarts must be at most {_MAX_RESTARTS}, got {self.restarts}")
        if not (self.callback is None or callable(self.callback)):
            raise InputError(f"callback must be None or a function, got {shown(self.callback)}")


@restorable("series-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Series(Options):
    """Options of a fit of a series, X of one column, by the states of a Markov process.

    Parameters
    ----------
    approximate : float, optional
        Approximate squared exponentials (``RBF``) by states whose covariances have at most this
        error, as a share of the variance, from 1.3e-5 up; see `qpruntime.infer_series`. By default
        squared exponentials have no states.
    required : bool
        If True, raise an error for a kernel that has no states. If False, use states from 300 rows
        on, and covariance matrices for fewer rows or such a kernel.

    Raises
    ------
    InputError
        If an option is not usable.

    See Also
    --------
    qpruntime.infer_series, qpruntime.GPClassifier

    Examples
    --------
    >>> from qpruntime import Series
    >>> Series(1e-3, required=False)
    Series(0.001, required=False)
    """

    approximate: float | None = None
    _: KW_ONLY
    required: bool = True

    def __post_init__(self) -> None:
        self._set(required=flag(self.required, "required"))
        if self.approximate is not None:
            near = number(self.approximate, "approximate", above=0.0, most=1.0)
            self._set(approximate=near)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _hashable(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple(value)
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


# --- `Integrate`

DESIGNS = ("auto", "grid", "composite", "importance")
_EVIDENCES = ("ep", "corrected")
#: Designs with a free number of nodes, and the limits of that number.
_SAMPLED_DESIGNS, _MIN_DRAWS, _MAX_DRAWS = ("auto", "importance"), 8, 10_000


@restorable("integrate-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Integrate(Options):
    """Options of the integration over hyper-parameters, ``hyperparameters="integrate"``.

    Parameters
    ----------
    design : {"auto", "grid", "composite", "importance"}
        Nodes at which the density of the log parameters is evaluated. "grid" is a lattice around
        the mode, for at most three parameters. "composite" is a central composite design, for at
        most eight. "importance" has weighted draws of a Student t around the mode. "auto" is a grid
        for at most two parameters, and importance sampling for more.
    n : int, optional
        Number of draws of "importance", 64 by default; a power of 2 spreads them best. If the
        estimator has no ``random_state``, every fit uses the same draws.
    evidence : {"ep", "corrected"}
        Evidence that weights the nodes together with the prior: that of EP, or
        `Posterior.corrected_evidence`, which only the dense engine has.

    Raises
    ------
    InputError
        If an option is not usable.

    See Also
    --------
    qpruntime.Search, qpruntime.GPClassifier

    Examples
    --------
    >>> from qpruntime import Integrate
    >>> Integrate("importance", n=128)
    Integrate('importance', n=128)
    """

    design: Literal["auto", "grid", "composite", "importance"] = "auto"
    _: KW_ONLY
    n: int | None = None
    evidence: Literal["ep", "corrected"] = "ep"

    def __post_init__(self) -> None:
        self._set(
            design=choice(self.design, "design", DESIGNS),
            evidence=choice(self.evidence, "evidence", _EVIDENCES),
        )
        if self.n is None:
            return
        self._set(n=whole(self.n, "n", _MIN_DRAWS))
        if self.n > _MAX_DRAWS:
            raise InputError(f"n must be at most {_MAX_DRAWS}, got {self.n}")
        if self.design not in _SAMPLED_DESIGNS:
            raise InputError(
                f"n={self.n} cannot act with design={shown(self.design)}, whose nodes are found "
                'from the density: leave it out, or use design="importance"'
            )


def integrate_of(option: object) -> Integrate | None:
    """Convert the argument ``hyperparameters=`` of an estimator; None is the mode alone."""
    if isinstance(option, Integrate):
        return option
    words = ("mode", "integrate")
    return Integrate() if choice(option, "hyperparameters", words) == "integrate" else None


# --- `Inducing`

#: Values of `points` that leave to the number of rows whether there are inducing points.
OPEN_POINTS = ("auto", "judged")
#: Options that only act with a given number of points, and those that only act without one.
_FIXED_POINTS_OPTIONS = ("checkpoint", "learn", "subsample")
_OPEN_POINTS_OPTIONS = ("budget", "nearest")
#: A larger number is probably a typing error.
_MAX_NEAREST = 1000


@restorable("inducing-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Inducing(Options):
    """Options of a fit with inducing points.

    Parameters
    ----------
    points : int, "auto", "judged", "variance" or array-like, shape (M, d)
        Number of inducing points, or their positions. With "auto" and "judged" the number of rows
        decides whether there are any, see ``docs/defaults.md``. "variance" uses as many as the
        prior variance needs, see ``docs/million-rows.md``.
    power : float in (0, 1]
        Power of power EP. 1 is FITC, which overfits if inducing points are learnt; 0 would be the
        variational bound.
    learn : bool
        True to learn the positions of the inducing points too, if the kernel's derivatives in its
        inputs are known: RBF, Matern, RationalQuadratic, ExpSineSquared, constants, white noise,
        kernels of `qpruntime.kernels.register`, sums and products. With "auto" and "judged" the
        points are cluster centres of the rows.
    subsample : int
        Largest number of rows of the first stage of a fit; not with "auto" and "judged".
    dtype : {"mixed", "float64"}
        Precision of the search for parameters; the posterior is always of double precision.
    memory : float
        Bytes for the features of rows, M numbers a row; see `qpruntime.infer_sparse`. If lazy rows
        need more, and nearest rows correct predictions, the rows are stored on disk.
    nearest : int or "auto"
        Number of nearest rows that correct each prediction with "auto" and "judged". "auto" uses 30
        if leave-one-out densities gain by them; 0 never stores rows.
    budget : float, optional
        Budget of "auto" and "judged" in seconds of one core. A second counts as 2e10 operations, so
        that the result does not depend on a clock. The default is 30 up to 10 000 rows, and four
        times as much for ten times as many rows. From 120 on up to 6000 rows are fitted densely.
    checkpoint : path, optional
        File from which a fit can be resumed. It is written after stages on samples, then twice a
        minute, with two numbers a row, and removed when the fit has ended. K > 2 classes have one
        numbered file each. Needs an integer ``random_state``. Not with "auto" and "judged".
    resume : bool
        Resume from `checkpoint` if the file exists and has the same data and parameters.
    scheduler : str, optional
        Address of a dask scheduler whose workers compute chunks of rows. The result has the same
        bits on processors of one kind, see ``docs/million-rows.md``.

    Raises
    ------
    InputError
        If an option is not usable, or cannot act with these points.

    See Also
    --------
    qpruntime.GPClassifier, qpruntime.infer_sparse

    Examples
    --------
    >>> from qpruntime import Inducing
    >>> Inducing(200, power=1.0, learn=False)
    Inducing(200, power=1.0, learn=False)
    """

    points: int | str | ArrayLike = "auto"
    _: KW_ONLY
    power: float = 0.5
    learn: bool = True
    subsample: int = 10_000
    dtype: Literal["mixed", "float64"] = "mixed"
    memory: float = MEMORY
    nearest: int | Literal["auto"] = "auto"
    budget: float | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    scheduler: str | None = None

    def __post_init__(self) -> None:
        self._set(
            points=_points(self.points),
            power=number(self.power, "power", above=0.0, most=1.0),
            learn=flag(self.learn, "learn"),
            subsample=whole(self.subsample, "subsample", 1),
            dtype=choice(self.dtype, "dtype", ("mixed", "float64")),
            memory=number(self.memory, "memory", above=-1.0),
            resume=flag(self.resume, "resume"),
        )
        if not (isinstance(self.nearest, str) and self.nearest == "auto"):
            nearest = whole(self.nearest, "nearest", 0)
            if nearest > _MAX_NEAREST:
                raise InputError(f"nearest must be at most {_MAX_NEAREST} rows, got {nearest}")
        if self.budget is not None:
            self._set(budget=number(self.budget, "budget", above=0.0))
        if self.checkpoint is not None:
            path_of(self.checkpoint, "checkpoint")
        elif self.resume:
            raise InputError("resume=True needs checkpoint=, the file to resume from")
        if not (self.scheduler is None or isinstance(self.scheduler, str)):
            raise InputError(f"scheduler must be None or an address, got {shown(self.scheduler)}")
        remedy = "inducing=200" if self.open else "inducing='auto'"
        for name in _FIXED_POINTS_OPTIONS if self.open else _OPEN_POINTS_OPTIONS:
            if name in self.changed():
                raise InputError(
                    f"{name}={shown(getattr(self, name))} cannot act with inducing="
                    f"{shown(self.points)}: give {remedy}, or leave it out"
                )

    @property
    def open(self) -> bool:
        """True if the number of rows decides whether there are inducing points."""
        return isinstance(self.points, str) and self.points in OPEN_POINTS


def _points(option: Any) -> Any:
    """Return the inducing points or their number, checked."""
    kinds = "inducing must be None, a number, 'auto', 'judged', 'variance' or inputs (M, d), got"
    if isinstance(option, str):
        if option not in (*OPEN_POINTS, "variance"):
            raise InputError(f"{kinds} {option!r}")
        return option
    if option is None:
        raise InputError("inducing=None is the dense engine, which has no such options")
    if np.ndim(option) == 0:
        return whole(option, "inducing", 1)
    array = np.array(finite(option, "inducing"))
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{kinds} shape {array.shape}")
    array.flags.writeable = False
    return array


# --- Settings of a fit

SOLVERS = ("auto", "dense", "markov")

_SEARCHES = 'or what is maximised, "evidence" or "loo", or Search(...)'


@dataclass(frozen=True)
class Settings:
    """Parameters of an estimator; they are documented there.

    `search` has how hyper-parameters are searched for, if `optimize` is true. `inducing` is None
    for the dense engine, and `series` is None if that is to take no states. `seeded` says whether
    the user gives a seed: without one, draws of hyper-parameters are the same in every fit. Model
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
    series: Series | None = Series(required=False)
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
    def solver(self) -> str:
        """Argument ``solver=`` of an estimator that stands for `series`."""
        required = self.series is not None and self.series.required
        return "dense" if self.series is None else "markov" if required else "auto"

    @property
    def approximate(self) -> float | None:
        """Largest error of states of squared exponentials; None if these have no states."""
        return None if self.series is None else self.series.approximate

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
    """Return the settings of an estimator; `InputError` if one is of no use to any fit.

    An estimator without the parameter `inducing` or `solver` is fitted densely.
    """
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
    search, inducing = search_of(model.optimize), inducing_of(getattr(model, "inducing", None))
    series = series_of(getattr(model, "solver", "dense"))
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
    if series is not None and series.required and not (chosen or inducing is None):
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
        series=series,
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


def series_of(option: object) -> Series | None:
    """Convert the argument ``solver=`` of an estimator; None is the dense engine."""
    if isinstance(option, Series):
        return option
    name = choice(option, "solver", SOLVERS)
    return None if name == "dense" else Series(required=name == "markov")


def _compound(kernel: object) -> bool:
    """Decide whether there is a `CompoundKernel` among the kernels that this one is made of."""
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    return isinstance(kernel, CompoundKernel) or any(
        _compound(part) for part in parts if isinstance(part, Kernel)
    )


def new_generator(
    random_state: int | np.random.RandomState | np.random.Generator | None,
) -> np.random.Generator:
    """Return a new generator that is seeded from scikit-learn's ``random_state``."""
    if isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state.integers(2**31))
    return np.random.default_rng(check_random_state(random_state).randint(2**31))
