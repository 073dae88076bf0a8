"""Options of one engine as one value, checked when it is made: `Search` and `Series`.

An estimator takes them beside plain values: ``optimize=True`` is ``optimize=Search()``. What cannot
act together is refused where the value is made, so that no fit has to ignore it. `Inducing` is in
`qpruntime.learning.options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime._validation import choice, finite, flag, number, path_of, shown, whole
from qpruntime.errors import InputError
from qpruntime.inference.sparse.engine import MEMORY
from qpruntime.learning.hyperpriors import checked_priors
from qpruntime.learning.objective import OBJECTIVES

__all__ = [
    "DESIGNS",
    "OPEN",
    "Callback",
    "Inducing",
    "Integrate",
    "Options",
    "Search",
    "Series",
    "integrate_of",
]

Callback = Callable[[Array, float], Any]

#: More are a slip of the keyboard.
_MOST_RESTARTS = 100_000


class Options:
    """A value made of options: it compares and hashes by them, and shows those that were given."""

    def changed(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        defaults = {field.name: field.default for field in fields(self)}  # type: ignore[arg-type]
        return {name: v for name, v in own.items() if not _same(v, defaults[name])}

    def but(self, **options: Any) -> Any:
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
    """How hyper-parameters are searched for.

    Parameters
    ----------
    objective : {"evidence", "loo"}
        What they maximise: EP's evidence, as published, also for QP; or the leave-one-out log
        predictive density of the very posterior that the method gives.
    restarts : int
        Further optimiser runs, from parameters drawn log-uniformly within a factor of 1000 of the
        kernel's own and within its bounds. None with inducing points.
    max_iter : int
        Optimiser iterations at most.
    ftol : float
        Relative tolerance of the optimiser on the objective.
    callback : callable, optional
        Called with the log parameters and the objective after every evaluation.
    priors : dict, optional
        Of a kernel that is given, by names of its parameters, "k2__length_scale", or their ends,
        "length_scale" for all that end so; of parameters of the likelihood that are learnt by
        theirs, in units of the fit. Each a name with numbers, or a frozen distribution of
        `scipy.stats`: ("half-normal", scale), ("log-normal", median, deviation),
        ("gamma", shape, scale), ("inverse-gamma", shape, scale), and those that penalise
        complexity: ("pc-variance", s, p) and ("pc-deviation", s, p), by which a standard deviation
        is above s with probability p; ("pc-length", l, p, d), by which a length-scale of d features
        is below l. Densities are of the logarithms, and added to the objective.

    Raises
    ------
    InputError
        If an option is not usable.

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
        if self.restarts > _MOST_RESTARTS:
            raise InputError(f"restarts must be at most {_MOST_RESTARTS}, got {self.restarts}")
        if not (self.callback is None or callable(self.callback)):
            raise InputError(f"callback must be None or a function, got {shown(self.callback)}")


@restorable("series-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Series(Options):
    """How to fit a series: X of one column, by the states of a Markov process.

    Parameters
    ----------
    approximate : float, optional
        Take squared exponentials, ``RBF``, by states whose covariances are off by this share of
        the variance at most, from 1.3e-5 up; see `qpruntime.infer_series`. By default they have
        none.
    required : bool
        Whether states are asked for, and what has none is refused. If not, they are taken from 300
        rows on, and covariance matrices for fewer rows.

    Raises
    ------
    InputError
        If an option is not usable.

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


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(value)
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


# --- `Integrate`

DESIGNS = ("auto", "grid", "composite", "importance")
_EVIDENCES = ("ep", "corrected")
#: Designs of which the number of nodes is asked for, and its limits.
_DRAWN, _FEWEST, _MOST = ("auto", "importance"), 8, 10_000


@restorable("integrate-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Integrate(Options):
    """How hyper-parameters are integrated: ``hyperparameters="integrate"`` is this as by default.

    Parameters
    ----------
    design : {"auto", "grid", "composite", "importance"}
        Where the density of the log parameters is looked at. "grid" is a lattice around its mode,
        for three parameters at most; "composite" a central composite design, for eight at most;
        "importance" draws of a Student t around the mode, weighted. "auto" is a grid for two
        parameters at most, else importance.
    n : int, optional
        Draws of "importance"; a power of 2 spreads them best. By default 64. Without a
        ``random_state`` of the estimator every fit has the same draws.
    evidence : {"ep", "corrected"}
        What weighs nodes, beside the prior: that of EP, or `Posterior.corrected_evidence`, of the
        dense engine alone.

    Raises
    ------
    InputError
        If an option is not usable.

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
        self._set(n=whole(self.n, "n", _FEWEST))
        if self.n > _MOST:
            raise InputError(f"n must be at most {_MOST}, got {self.n}")
        if self.design not in _DRAWN:
            raise InputError(
                f"n={self.n} cannot act with design={shown(self.design)}, whose nodes are found "
                'from the density: leave it out, or use design="importance"'
            )


def integrate_of(given: Any) -> Integrate | None:
    """Return what an estimator was given as ``hyperparameters=``; None is the mode alone."""
    if isinstance(given, Integrate):
        return given
    words = ("mode", "integrate")
    return Integrate() if choice(given, "hyperparameters", words) == "integrate" else None


# --- `Inducing`

#: What leaves the number of inducing points, and whether there are any, to the rows.
OPEN = ("auto", "judged")
#: Options that only act with points of a number of their own, and only where that is left open.
_NUMBERED = ("checkpoint", "learn", "subsample")
_CHOSEN = ("budget", "nearest")
#: More are a slip of the keyboard.
_MOST_NEAREST = 1000


@restorable("inducing-options/1")
@dataclass(frozen=True, eq=False, repr=False)
class Inducing(Options):
    """How to fit by inducing points.

    Parameters
    ----------
    points : int, "auto", "judged", "variance" or array-like, shape (M, d)
        How many, or which. "auto" and "judged" leave to the rows whether there are any:
        ``docs/defaults.md``. "variance" takes as many as the prior variance needs:
        ``docs/million-rows.md``.
    power : float in (0, 1]
        Of power EP: 1 is FITC, which overfits where inducing points are learnt, 0 would be the
        variational bound.
    learn : bool
        Whether inducing points are learnt too, where the kernel's slopes in its inputs are known:
        RBF, Matern, RationalQuadratic, ExpSineSquared, constants, white noise, what
        `qpruntime.kernels.register` was told of, sums and products. "auto" and "judged" have
        clusters of rows.
    subsample : int
        Rows at most on which a fit begins; not with "auto" and "judged".
    dtype : {"mixed", "float64"}
        Precision of the search for parameters; the posterior is always of double precision.
    memory : float
        Bytes for what inducing points make of rows, M numbers a row; see `qpruntime.infer_sparse`.
        Lazy rows that take more, and whose nearest correct predictions, are held on the disk.
    nearest : int or "auto"
        With "auto" and "judged", how many nearest rows correct each prediction: "auto" takes 30
        where rows left out say that it pays, 0 never holds rows.
    budget : float, optional
        Of "auto" and "judged", in seconds of one core, counted as 2e10 operations each and by no
        clock; by default 30 up to 10 000 rows, and four times as many for ten times as many rows.
        With 120 or more up to 6000 rows are fitted densely.
    checkpoint : path, optional
        File that a fit goes on from: written after stages on samples, then twice a minute, with
        two numbers a row; removed when the fit has ended. K > 2 classes have one each, numbered.
        Needs a whole number as ``random_state``. Not with "auto" and "judged".
    resume : bool
        Go on from `checkpoint`, if that is there, with the same data and parameters; else begin.
    scheduler : str, optional
        Address of a dask scheduler whose workers compute chunks of rows, to the same bits on
        processors of one kind: ``docs/million-rows.md``.

    Raises
    ------
    InputError
        If an option is not usable, or cannot act with these points.

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
            if nearest > _MOST_NEAREST:
                raise InputError(f"nearest must be at most {_MOST_NEAREST} rows, got {nearest}")
        if self.budget is not None:
            self._set(budget=number(self.budget, "budget", above=0.0))
        if self.checkpoint is not None:
            path_of(self.checkpoint, "checkpoint")
        elif self.resume:
            raise InputError("resume=True needs checkpoint=, the file to go on from")
        if not (self.scheduler is None or isinstance(self.scheduler, str)):
            raise InputError(f"scheduler must be None or an address, got {shown(self.scheduler)}")
        remedy = "inducing=200" if self.open else "inducing='auto'"
        for name in _NUMBERED if self.open else _CHOSEN:
            if name in self.changed():
                raise InputError(
                    f"{name}={shown(getattr(self, name))} cannot act with inducing="
                    f"{shown(self.points)}: give {remedy}, or leave it out"
                )

    @property
    def open(self) -> bool:
        """Whether the number of inducing points, and whether there are any, is left to the rows."""
        return isinstance(self.points, str) and self.points in OPEN


def _points(given: Any) -> Any:
    """Check which inducing points, or how many, are asked for."""
    kinds = "inducing must be None, a number, 'auto', 'judged', 'variance' or inputs (M, d), got"
    if isinstance(given, str):
        if given not in (*OPEN, "variance"):
            raise InputError(f"{kinds} {given!r}")
        return given
    if given is None:
        raise InputError("inducing=None is the dense engine, which has no such options")
    if np.ndim(given) == 0:
        return whole(given, "inducing", 1)
    array = np.array(finite(given, "inducing"))
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{kinds} shape {array.shape}")
    array.flags.writeable = False
    return array
