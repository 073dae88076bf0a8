"""Variables in a user's terms: reals, integers and categories, and the numbers kept for them.

A category is kept as the number of its choice. How numbers become a point of the unit cube is in
`space`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.errors import InputError
from qpruntime.validation import flag, number, shown, whole

__all__ = ["Category", "Integer", "Real", "Variable"]

#: Integers beyond are not all doubles.
_LARGEST = 2**53


@dataclass(frozen=True)
class Real:
    """A real number in [low, high]; with ``log=True`` searched by its logarithm.

    Parameters
    ----------
    low, high : float
        Finite, low below high, and above 0 if `log`.
    log : bool
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        low, high = number(self.low, "low"), number(self.high, "high")
        _ends(low, high, flag(self.log, "log"), 0.0)
        _set(self, low=low, high=high)

    #: Whether its numbers are.
    whole = False

    def take(self, value: Any, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        return _within(number(value, name), self, name)

    def give(self, value: float) -> float:
        """The value in its user's terms."""
        return value


@dataclass(frozen=True)
class Integer:
    """A whole number from low to high, both included; with ``log=True`` by its logarithm.

    Parameters
    ----------
    low, high : int
        Within 2^53, low below high, and low at least 1 if `log`.
    log : bool
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        low, high = whole(self.low, "low", -_LARGEST), whole(self.high, "high", -_LARGEST)
        if high > _LARGEST:
            raise InputError(f"high must be at most 2^53, got {high}: give a Real instead")
        _ends(low, high, flag(self.log, "log"), 0.5)
        _set(self, low=low, high=high)

    whole = True

    def take(self, value: Any, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        found = number(value, name)
        if found != math.floor(found):
            raise InputError(f"{name} must be a whole number, got {shown(value)}: round it")
        return _within(found, self, name)

    def give(self, value: float) -> int:
        """The value in its user's terms."""
        return int(value)


@dataclass(frozen=True)
class Category:
    """One of several choices that have no order.

    Parameters
    ----------
    choices : sequence of str, int, float, bool or None
        At least two, all different.
    """

    choices: Sequence[str | int | float | bool | None]

    def __post_init__(self) -> None:
        given = self.choices
        if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray)):
            raise InputError(f"choices must be a list, got {shown(given)}")
        found = tuple(c.item() if isinstance(c, np.generic) else c for c in given)
        for choice in found:
            plain = choice is None or isinstance(choice, (str, int, float))
            if not plain or (isinstance(choice, float) and not math.isfinite(choice)):
                raise InputError(
                    f"choices must be text, finite numbers, True, False or None, which a file can "
                    f"keep; got {shown(choice)}: name it by a text"
                )
        if len(found) < 2:
            raise InputError(f"choices must be two at least, got {shown(found)}: leave it out")
        seen: set[Any] = set()
        for choice in found:
            if choice in seen:  # 1 is True, and 1.0
                raise InputError(f"choices must differ, got {shown(choice)} twice")
            seen.add(choice)
        _set(self, choices=found)

    whole = True

    @property
    def low(self) -> int:
        """Number of the first choice."""
        return 0

    @property
    def high(self) -> int:
        """Number of the last choice."""
        return len(self.choices) - 1

    def take(self, value: Any, name: str) -> float:
        """Return a user's value as the number that is kept, or raise `InputError`."""
        value = value.item() if isinstance(value, np.generic) else value
        for i, choice in enumerate(self.choices):
            # True is 1 to Python, and not to a user.
            if isinstance(value, bool) == isinstance(choice, bool) and _same(value, choice):
                return float(i)
        raise InputError(f"{name} must be one of {shown(self.choices)}, got {shown(value)}")

    def give(self, value: float) -> str | int | float | bool | None:
        """The value in its user's terms."""
        return self.choices[int(value)]


Variable = Real | Integer | Category


def _same(one: Any, other: Any) -> bool:
    found = one == other
    return isinstance(found, bool) and found


def _set(variable: Any, **fields: Any) -> None:
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
