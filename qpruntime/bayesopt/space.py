"""What is searched: rows of numbers, one a variable, and the points of the unit cube they are.

A real is a length of the cube, an integer the middle of a cell of it, both by logarithms if so
wished. A category is one coordinate a choice, of which one is 1, or a single 0 or 1 if there are
two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.bayesopt.box import Box, box
from qpruntime.bayesopt.surrogate import points
from qpruntime.bayesopt.variables import Category, Integer, Real, Variable
from qpruntime.errors import InputError
from qpruntime.validation import shown

__all__ = ["Space", "space_of"]


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
            one = where.stop - where.start == 1
            P[:, i] = U[:, where.start] >= 0.5 if one else np.argmax(U[:, where], axis=1)
        return P

    def snap(self, U: Array) -> Array:
        """The nearest points of the cube that are evaluated: integers and categories rounded."""
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
        """Ends of every coordinate for a search from a point u (d,) that leaves what is rounded."""
        ends = zip(u.tolist(), self.loose.tolist(), strict=True)
        return [(0.0, 1.0) if loose else (at, at) for at, loose in ends]

    # Between users' terms and numbers

    def take(self, x: Any) -> Array:
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
                    f"{shown(some)} {words}"
                    for some, words in ((missing, "missing"), (wrong, "unknown"))
                    if some
                )
            )
        pairs = zip(self.variables, self.names, strict=True)
        return np.array([v.take(x[name], f"x[{name!r}]") for v, name in pairs])

    def take_all(self, X: Any) -> Array:
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
        """A row of numbers in its user's terms: an array, or a dict if variables have names."""
        row = np.array(place, dtype=float)
        if self.names is None:
            return row
        pairs = zip(self.names, self.variables, row.tolist(), strict=True)
        return {name: v.give(value) for name, v, value in pairs}

    def columns(self, rows: Sequence[Sequence[float]]) -> dict[str, list[Any]]:
        """Rows of numbers by variables, in their user's terms."""
        names = self.names or [f"x{i}" for i in range(len(self.variables))]
        return {
            name: [v.give(row[i]) for row in rows]
            for i, (name, v) in enumerate(zip(names, self.variables, strict=True))
        }

    # In a file

    def state(self) -> dict[str, Any]:
        """Plain values that JSON holds; `from_state` reads them."""
        found: list[dict[str, Any]] = []
        for v in self.variables:
            if isinstance(v, Category):
                found.append({"choices": list(v.choices)})
            else:
                kind = "integer" if isinstance(v, Integer) else "real"
                found.append({"kind": kind, "low": v.low, "high": v.high, "log": v.log})
        return {"names": None if self.names is None else list(self.names), "variables": found}

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


def space_of(bounds: Any, space: Any) -> Space:
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
    found = []
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
        found.append(v)
    return Space(found, list(space))


def _real(pair: tuple[Any, Any], name: str) -> Real:
    try:
        return Real(*pair)
    except InputError as error:
        raise InputError(f"space[{name!r}]: {error}") from error
