"""Options of one engine as one value, checked when it is made: `Search` and `Series`.

An estimator takes them beside plain values: ``optimize=True`` is ``optimize=Search()``. What cannot
act together is refused where the value is made, so that no fit has to ignore it. `Inducing` is in
`qpruntime.learning.options_inducing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.priors import checked_priors
from qpruntime.validation import choice, flag, number, shown, whole

__all__ = ["Callback", "Options", "Search", "Series"]

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
