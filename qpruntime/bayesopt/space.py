"""Space of a search: rows of numbers, one a variable, and their points in the unit cube.

A real is a length of the cube, an integer the middle of a cell of it, both by logarithms if so
wished. A category is one coordinate a choice, of which one is 1, or a single 0 or 1 if there are
two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import choice as one_of, finite, flag, number, real, shown, whole
from qpruntime.bayesopt.surrogate import noise_variance, points
from qpruntime.errors import InputError
from qpruntime.kernels.random_features import stationary_terms

__all__ = [
    "LARGEST_VALUE",
    "Box",
    "Category",
    "Integer",
    "Points",
    "Real",
    "Space",
    "Variable",
    "box",
    "kernels_of",
    "name_of",
    "noises_of",
    "prices_of",
    "space_of",
    "spelt",
    "told",
]

# --- Arguments of `Optimizer` that are of one function each, checked.

#: Value of a variable in its user's terms.
Choice = str | int | float | bool | None
#: Several points: an array, or dicts, or a data frame if variables have names.
Points = ArrayLike | Mapping[str, Choice] | Sequence[Mapping[str, Choice]]

#: Values of functions are within; their squares are finite.
LARGEST_VALUE = 1e100


def kernels_of(
    kernel: Kernel | str | Sequence[Kernel | str | None] | None, outputs: int
) -> list[Kernel | str | None]:
    """Return a kernel, its name or None for every function, the objective first."""
    kernels = list(kernel) if isinstance(kernel, (list, tuple)) else [kernel] * outputs
    if len(kernels) != outputs:
        raise InputError(
            f"kernel must be one kernel or a list of {outputs}, the objective's first; "
            f"got {len(kernels)}"
        )
    for k in kernels:
        if isinstance(k, str):
            one_of(k, "kernel", ("rbf", "matern"))
        elif k is not None and not hasattr(k, "is_stationary"):
            raise InputError(f"kernel must be None or one of scikit-learn's, got {shown(k)}")
        elif k is not None:
            stationary_terms(k)
    return kernels


def noises_of(noise: object, outputs: int) -> list[float | None]:
    """Return the variance of every function's noise, None where it is to be learnt."""
    noises = list(noise) if isinstance(noise, (list, tuple, np.ndarray)) else [noise] * outputs
    if len(noises) != outputs:
        raise InputError(
            f"noise must be one variance or a list of {outputs}, the objective's first; "
            f"got {len(noises)}"
        )
    return [None if value is None else noise_variance(value) for value in noises]


def prices_of(cost: object, outputs: int) -> Array:
    """Return what evaluating each function costs, 1 by default."""
    if cost is None:
        return np.ones(outputs)
    prices = finite(cost, "cost", (outputs,))
    if (prices <= 0.0).any():
        raise InputError(f"costs must be positive, got {prices.min():g}")
    return prices


def spelt(kernel: Kernel | str | None) -> str:
    """Return a kernel in words, with all its digits and bounds, which `repr` rounds."""
    if kernel is None or isinstance(kernel, str):
        return repr(kernel)
    parameters = kernel.get_params(deep=False)
    words = []
    for name, value in sorted(parameters.items()):
        if hasattr(value, "is_stationary"):
            value = spelt(value)
        elif isinstance(value, (np.ndarray, np.generic, list, tuple)):
            value = np.asarray(value).tolist()
        words.append(f"{name}={value}")
    return f"{type(kernel).__name__}({', '.join(words)})"


def told(f: object, c: ArrayLike | None, constraints: int) -> tuple[Array, set[int]]:
    """Return values of (f, c_1, ..., c_K), NaN where there are none, and which were left out."""
    values = np.full(constraints + 1, np.nan)
    left_out = {0} if f is None else set()
    if f is not None:
        values[0] = outcome(f, "f", ())
    if c is None:
        return values, left_out | set(range(1, constraints + 1))
    if constraints == 1 and np.ndim(c) == 0:
        c = np.atleast_1d(c)
    if constraints and np.ndim(c) == 0:
        raise InputError(
            f"c must be a list of {constraints} values, one a constraint, got {shown(c)}: those "
            "that are not evaluated are None"
        )
    values[1:] = outcome(c, "c", (constraints,))
    if isinstance(c, (list, tuple)):
        left_out |= {k for k, value in enumerate(c, 1) if value is None}
    return values, left_out


def name_of(id: object) -> str | None:
    """Return the id of an evaluation as text, or raise `InputError`."""
    if id is None:
        return None
    if isinstance(id, bool) or not isinstance(id, (str, int, np.integer)):
        raise InputError(f"id must be a text or a whole number, got {shown(id)}")
    return str(id)


def outcome(value: object, name: str, shape: tuple[int, ...]) -> Array:
    """Return values of functions, NaN where not evaluated; infinities are refused."""
    values = real(value, name)
    if values.shape != shape:
        wanted = f"of shape {shape}, one value a constraint" if shape else "one number"
        if shape == (0,):
            wanted = "left out, as there are no constraints"
        raise InputError(f"{name} must be {wanted}, got shape {values.shape}")
    if np.isinf(values).any() or (np.abs(values[np.isfinite(values)]) > LARGEST_VALUE).any():
        raise InputError(
            f"{name} is {values}: values must be within 1e100; tell NaN for what failed"
        )
    return values


# --- What is searched: rows of numbers, one a variable, and the points of the unit cube they are.


class Space:
    """Variables in order, with names or, as a box of reals, without.

    Attributes
    ----------
    d : int
        Coordinates in the unit cube, a choice of a category counting as one.
    box : Box
        Low and high end of every variable as a number.
    loose : ndarray of bool, shape (d,)
        Coordinates that may have any value in [0, 1]; the others belong to integers and categories.
    """

    def __init__(self, variables: Sequence[Variable], names: Sequence[str] | None) -> None:
        self.variables = tuple(variables)
        self.names = None if names is None else tuple(names)
        self.box = Box(
            np.array([float(v.low) for v in variables]),
            np.array([float(v.high) for v in variables]),
        )
        self._scalars, at, self._categories = [], [], []
        self.d = 0
        for i, v in enumerate(self.variables):
            if isinstance(v, Category):
                size = len(v.choices) if len(v.choices) > 2 else 1
                self._categories.append((i, slice(self.d, self.d + size)))
            else:
                size = 1
                self._scalars.append(i)
                at.append(self.d)
            self.d += size
        self._at = np.array(at, dtype=np.intp)
        kept = [v for v in self.variables if not isinstance(v, Category)]
        self._whole = np.array([isinstance(v, Integer) for v in kept], dtype=bool)
        self._log = np.array([v.log for v in kept], dtype=bool)
        self._low, self._high = (end[self._scalars] for end in self.box)
        # An integer has the cell half a unit to both of its sides.
        self._left = self._logs(self._low - 0.5 * self._whole)
        self._right = self._logs(self._high + 0.5 * self._whole)
        self.loose = np.zeros(self.d, dtype=bool)
        self.loose[self._at] = ~self._whole
        #: Coordinates of each variable that is rounded.
        self._rounded = [slice(k, k + 1) for k in self._at[self._whole]]
        self._rounded += [where for _, where in self._categories]

    def _logs(self, values: Array) -> Array:
        if not self._log.any():
            return values
        return np.where(self._log, np.log(np.where(self._log, values, 1.0)), values)

    # Between numbers and the cube

    def to_unit(self, P: Array) -> Array:
        """Points (T, d) of the cube for rows of numbers (T, variables)."""
        U = np.zeros((len(P), self.d))
        U[:, self._at] = (self._logs(P[:, self._scalars]) - self._left) / (self._right - self._left)
        for i, where in self._categories:
            if where.stop - where.start == 1:
                U[:, where.start] = P[:, i]
            else:
                U[np.arange(len(P)), where.start + P[:, i].astype(np.intp)] = 1.0
        return U

    def from_unit(self, U: Array) -> Array:
        """Numbers (T, variables) for points of the cube, rounded where they have to be."""
        P = np.empty((len(U), len(self.variables)))
        values = self._left + (self._right - self._left) * U[:, self._at]
        if self._log.any():
            values = np.where(self._log, np.exp(np.where(self._log, values, 0.0)), values)
        if self._whole.any():
            values = np.where(self._whole, np.rint(values), values)
        P[:, self._scalars] = np.clip(values, self._low, self._high)
        for i, where in self._categories:
            is_binary = where.stop - where.start == 1
            P[:, i] = U[:, where.start] >= 0.5 if is_binary else np.argmax(U[:, where], axis=1)
        return P

    def snap(self, U: Array) -> Array:
        """Return the nearest points that are evaluated: integers and categories rounded."""
        if self.loose.all():
            return U
        V = np.array(U)
        V[:, ~self.loose] = self.to_unit(self.from_unit(U))[:, ~self.loose]
        return V

    def stirred(self, U: Array, rng: np.random.Generator) -> Array:
        """Draw one integer or category of every fourth point anew: small steps would not leave."""
        if not self._rounded:
            return U
        V = np.array(U)
        for i in np.flatnonzero(rng.random(len(V)) < 0.25):
            where = self._rounded[rng.integers(len(self._rounded))]
            V[i, where] = rng.random(where.stop - where.start)
        return V

    def held(self, u: Array) -> list[tuple[float, float]]:
        """Return ends of coordinates for a search from u (d,) that leaves what is rounded."""
        ends = zip(u.tolist(), self.loose.tolist(), strict=True)
        return [(0.0, 1.0) if loose else (at, at) for at, loose in ends]

    # Between users' terms and numbers

    def take(self, x: object) -> Array:
        """Return a user's point as numbers, shape (variables,), or raise `InputError`."""
        if self.names is None:
            return self.box.inside(x)
        if not isinstance(x, Mapping):
            raise InputError(f"x must be a dict of {shown(list(self.names))}, got {shown(x)}")
        wrong = [name for name in x if name not in self.names]
        missing = [name for name in self.names if name not in x]
        if wrong or missing:
            raise InputError(
                f"x must have the names {shown(list(self.names))}: "
                + " and ".join(
                    f"{shown(names)} {words}"
                    for names, words in ((missing, "missing"), (wrong, "unknown"))
                    if names
                )
            )
        pairs = zip(self.variables, self.names, strict=True)
        return np.array([v.take(x[name], f"x[{name!r}]") for v, name in pairs])

    def take_all(self, X: object) -> Array:
        """Return users' points as numbers, shape (T, variables), or raise `InputError`."""
        if self.names is None:
            return points(X, "X", len(self.variables))
        if hasattr(X, "to_dict") and hasattr(X, "columns"):
            X = X.to_dict("records")
        if isinstance(X, Mapping):
            X = [X]
        if isinstance(X, (str, bytes)) or not isinstance(X, (Sequence, np.ndarray)):
            raise InputError(f"X must be a list of dicts or a data frame, got {shown(X)}")
        return np.array([self.take(x) for x in X]).reshape(len(X), len(self.variables))

    def give(self, place: ArrayLike) -> Any:
        """Return a row of numbers as an array, or as a dict if variables have names."""
        row = np.array(place, dtype=float)
        if self.names is None:
            return row
        pairs = zip(self.names, self.variables, row.tolist(), strict=True)
        return {name: v.give(value) for name, v, value in pairs}

    def columns(self, rows: Sequence[Sequence[float]]) -> dict[str, list[Choice]]:
        """Rows of numbers by variables, in their user's terms."""
        names = self.names or [f"x{i}" for i in range(len(self.variables))]
        return {
            name: [v.give(row[i]) for row in rows]
            for i, (name, v) in enumerate(zip(names, self.variables, strict=True))
        }

    # Saved state

    def state(self) -> dict[str, Any]:
        """Plain values that JSON holds; `from_state` reads them."""
        variables: list[dict[str, Any]] = []
        for v in self.variables:
            if isinstance(v, Category):
                variables.append({"choices": list(v.choices)})
            else:
                kind = "integer" if isinstance(v, Integer) else "real"
                variables.append({"kind": kind, "low": v.low, "high": v.high, "log": v.log})
        return {"names": None if self.names is None else list(self.names), "variables": variables}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Space:
        """Return the space of a file, or raise what reading something else raises."""
        variables: list[Variable] = []
        for v in state["variables"]:
            if "choices" in v:
                variables.append(Category(v["choices"]))
            else:
                kinds: dict[str, type[Real] | type[Integer]] = {"integer": Integer, "real": Real}
                variables.append(kinds[v["kind"]](v["low"], v["high"], v["log"]))
        names = state["names"]
        if names is None:
            if not variables or not all(type(v) is Real and not v.log for v in variables):
                raise ValueError("variables without names must be a box of reals")
            return cls(variables, None)
        if not isinstance(names, list) or len(set(names)) < len(names):
            raise ValueError(f"names must be different texts, got {shown(names)}")
        return space_of(None, dict(zip(names, variables, strict=True)))


def space_of(bounds: object, space: object) -> Space:
    """Return what `Optimizer` is to search, from pairs or from named variables."""
    if (bounds is None) == (space is None):
        raise InputError(
            "give bounds, pairs (low, high), or space, a dict of named Real, Integer and Category; "
            f"got {'neither' if space is None else 'both'}"
        )
    if isinstance(bounds, Mapping):
        raise InputError("bounds are pairs (low, high): pass named variables as space=")
    if space is None:
        low, high = box(bounds)
        return Space([Real(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)], None)
    if not isinstance(space, Mapping) or not space:
        raise InputError(f"space must be a dict of named variables, got {shown(space)}")
    variables = []
    for name, v in space.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"names in space must be text, got {shown(name)}")
        if isinstance(v, tuple) and len(v) == 2 and not any(isinstance(e, str) for e in v):
            v = _real(v, name)
        if not isinstance(v, (Real, Integer, Category)):
            raise InputError(
                f"space[{name!r}] must be a Real, an Integer, a Category or a pair (low, high) of "
                f"a real, got {shown(v)}"
            )
        variables.append(v)
    return Space(variables, list(space))


def _real(pair: tuple[float, float], name: str) -> Real:
    try:
        return Real(*pair)
    except InputError as error:
        raise InputError(f"space[{name!r}]: {error}") from error


# --- The box that is searched, in the units of its variables and as the unit cube.


class Box(NamedTuple):
    """Low and high end (d,) of every variable."""

    low: Array
    high: Array

    def inside(self, x: object) -> Array:
        """Return a point of the box as an array, or raise `InputError`."""
        place = finite(x, "x", self.low.shape)
        outside = (place < self.low) | (place > self.high)
        if outside.any():
            i = int(np.argmax(outside))
            raise InputError(
                f"x[{i}] = {place[i]:g} is outside its bounds ({self.low[i]:g}, "
                f"{self.high[i]:g}): widen them in a new Optimizer"
            )
        return place


def box(bounds: object) -> Box:
    """Return the box that is given as d pairs, or raise `InputError`."""
    ends = real(bounds, "bounds")
    if ends.ndim != 2 or ends.shape[1] != 2 or not len(ends):
        raise InputError(f"bounds must be pairs (low, high), one a variable, got {ends.shape}")
    for i, (low, high) in enumerate(ends):
        if not (np.isfinite([low, high]).all() and low < high and np.isfinite(high - low)):
            raise InputError(
                f"bounds[{i}] is ({low:g}, {high:g}): the low end must be below the high one, and "
                "both finite; leave out variables that are fixed"
            )
    return Box(ends[:, 0].copy(), ends[:, 1].copy())


# --- Variables in a user's terms: reals, integers and categories, and the numbers kept for them.
#
# A category is kept as the number of its choice. `Space` makes points of the unit cube of numbers.

#: Integers beyond are not all doubles.
_LARGEST_INTEGER = 2**53


@dataclass(frozen=True)
class Real:
    """A real number in [low, high]; with ``log=True`` searched by its logarithm.

    Parameters
    ----------
    low, high : float
        Finite, low below high, and above 0 if `log`.
    log : bool

    See Also
    --------
    qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> from qpruntime.bayesopt import Optimizer, Real
    >>> opt = Optimizer(space={"rate": Real(1e-4, 1e-1, log=True)}, random_state=0)
    >>> 1e-4 <= opt.ask()["rate"] <= 1e-1
    True
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        low, high = number(self.low, "low"), number(self.high, "high")
        _ends(low, high, flag(self.log, "log"), 0.0)
        _set(self, low=low, high=high)

    #: True if its values are whole numbers.
    whole = False

    def take(self, value: object, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        return _within(number(value, name), self, name)

    def give(self, value: float) -> float:
        """Return the value in its user's terms."""
        return value


@dataclass(frozen=True)
class Integer:
    """A whole number from low to high, both included; with ``log=True`` by its logarithm.

    Parameters
    ----------
    low, high : int
        Within 2^53, low below high, and low at least 1 if `log`.
    log : bool

    See Also
    --------
    qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> from qpruntime.bayesopt import Integer, Optimizer
    >>> opt = Optimizer(space={"layers": Integer(1, 8)}, random_state=0)
    >>> opt.ask()["layers"] in range(1, 9)
    True
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        low = whole(self.low, "low", -_LARGEST_INTEGER)
        high = whole(self.high, "high", -_LARGEST_INTEGER)
        if high > _LARGEST_INTEGER:
            raise InputError(f"high must be at most 2^53, got {high}: give a Real instead")
        _ends(low, high, flag(self.log, "log"), 0.5)
        _set(self, low=low, high=high)

    whole = True

    def take(self, value: object, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        checked = number(value, name)
        if checked != math.floor(checked):
            raise InputError(f"{name} must be a whole number, got {shown(value)}: round it")
        return _within(checked, self, name)

    def give(self, value: float) -> int:
        """Return the value in its user's terms."""
        return int(value)


@dataclass(frozen=True)
class Category:
    """One of several choices that have no order.

    Parameters
    ----------
    choices : sequence of str, int, float, bool or None
        At least two, all different.

    See Also
    --------
    qpruntime.bayesopt.Optimizer

    Examples
    --------
    >>> from qpruntime.bayesopt import Category, Optimizer
    >>> opt = Optimizer(space={"activation": Category(["relu", "tanh"])}, random_state=0)
    >>> opt.ask()["activation"] in ("relu", "tanh")
    True
    """

    choices: Sequence[Choice]

    def __post_init__(self) -> None:
        declared = self.choices
        if isinstance(declared, (str, bytes)) or not isinstance(declared, (Sequence, np.ndarray)):
            raise InputError(f"choices must be a list, got {shown(declared)}")
        choices = tuple(c.item() if isinstance(c, np.generic) else c for c in declared)
        for choice in choices:
            plain = choice is None or isinstance(choice, (str, int, float))
            if not plain or (isinstance(choice, float) and not math.isfinite(choice)):
                raise InputError(
                    f"choices must be text, finite numbers, True, False or None, which a file can "
                    f"keep; got {shown(choice)}: name it by a text"
                )
        if len(choices) < 2:
            raise InputError(f"choices must be two at least, got {shown(choices)}: leave it out")
        known: set[Choice] = set()
        for choice in choices:
            if choice in known:  # 1 is True, and 1.0
                raise InputError(f"choices must differ, got {shown(choice)} twice")
            known.add(choice)
        _set(self, choices=choices)

    whole = True

    @property
    def low(self) -> int:
        """Number of the first choice."""
        return 0

    @property
    def high(self) -> int:
        """Number of the last choice."""
        return len(self.choices) - 1

    def take(self, value: object, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        value = value.item() if isinstance(value, np.generic) else value
        for i, choice in enumerate(self.choices):
            # True is 1 to Python, and not to a user.
            if isinstance(value, bool) == isinstance(choice, bool) and _same(value, choice):
                return float(i)
        raise InputError(f"{name} must be one of {shown(self.choices)}, got {shown(value)}")

    def give(self, value: float) -> Choice:
        """Return the value in its user's terms."""
        return self.choices[int(value)]


Variable = Real | Integer | Category


def _same(one: object, other: object) -> bool:
    is_equal = one == other
    return isinstance(is_equal, bool) and is_equal


def _set(variable: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(variable, name, value)


def _ends(low: float, high: float, log: bool, margin: float) -> None:
    if not (low < high and math.isfinite(float(high) - float(low))):
        raise InputError(
            f"low is {low:g} and high {high:g}: low must be below high, and their difference "
            "finite; leave out variables that are fixed"
        )
    if log and not low > margin:
        raise InputError(f"low must be above 0 for a logarithm, got {low:g}: raise it or drop log")


def _within(value: float, variable: Real | Integer, name: str) -> float:
    if not variable.low <= value <= variable.high:
        raise InputError(
            f"{name} = {value:g} is outside its bounds ({variable.low:g}, {variable.high:g}): "
            "widen them in a new Optimizer"
        )
    return value
