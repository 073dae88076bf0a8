"""What was renamed: the table of old options, and what lets functions take old spellings.

The next release has the new ones only. ``docs/renamed.md`` says the same; a test compares the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from qpruntime.errors import InputError, RenamedWarning, warn

__all__ = ["NEXT", "OPTIONS", "Option", "renamed", "renamed_parameters", "reordered"]

Given = ParamSpec("Given")
Found = TypeVar("Found")
Model = TypeVar("Model")

#: How messages about old spellings end.
NEXT = "the old spelling goes with the next release"


class Option(NamedTuple):
    """Where an old option of the estimators is now: a field of the value of a parameter."""

    parameter: str
    value: str
    field: str

    def spelt(self, shown: str) -> str:
        """Return how a value, as it is shown, is given now."""
        if self.value == "dict":
            return f'{self.parameter}={{"{self.field}": {shown}}}'
        return f"{self.parameter}={self.value}({self.field}={shown})"


#: Options of the estimators that are fields of a value now, by the names that they had.
OPTIONS = {
    "objective": Option("optimize", "Search", "objective"),
    "n_restarts": Option("optimize", "Search", "restarts"),
    "max_iter": Option("optimize", "Search", "max_iter"),
    "ftol": Option("optimize", "Search", "ftol"),
    "callback": Option("optimize", "Search", "callback"),
    "approximate": Option("solver", "Series", "approximate"),
    "power": Option("inducing", "Inducing", "power"),
    "optimize_inducing": Option("inducing", "Inducing", "learn"),
    "subsample": Option("inducing", "Inducing", "subsample"),
    "dtype": Option("inducing", "Inducing", "dtype"),
    "memory": Option("inducing", "Inducing", "memory"),
    "nearest": Option("inducing", "Inducing", "nearest"),
    "budget": Option("inducing", "Inducing", "budget"),
    "checkpoint": Option("inducing", "Inducing", "checkpoint"),
    "resume": Option("inducing", "Inducing", "resume"),
    "scheduler": Option("inducing", "Inducing", "scheduler"),
    "kernel_per_class": Option("multi_class", "Joint", "kernel_per_class"),
    "nu_bounds": Option("noise_bounds", "dict", "nu"),
    "scale_bounds": Option("noise_bounds", "dict", "scale"),
    "scale": Option("noise_bounds", "dict", "start"),
}


def renamed(**names: str) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Let a function take arguments by their old names too, with a warning: ``old="new"``.

    Raises
    ------
    InputError
        Of the function, if it is given the old name and the new one.
    """

    def taking(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                new, value = names[old], given.pop(old)
                if new in given:
                    raise InputError(f"{old}= is now {new}=: give {new}= alone")
                warn(f"{old}= is now {new}=; {NEXT}", RenamedWarning)
                given[new] = value
            return function(*args, **given)

        call.__dict__["renamed"] = {**vars(function).get("renamed", {}), **names}
        return call

    return taking


def renamed_parameters(**names: str) -> Callable[[type[Model]], type[Model]]:
    """`renamed`, for the parameters of an estimator: of its constructor and ``set_params``."""

    def taking(cls: Any) -> Any:
        for method in ("__init__", "set_params"):
            setattr(cls, method, renamed(**names)(getattr(cls, method)))
        return cls

    return taking


def reordered(
    *before: str, now: tuple[str, ...], when: Callable[[Any], bool]
) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Let a function take its first arguments in their old order too, with a warning.

    Parameters
    ----------
    *before : str
        Their names in the old order.
    now : tuple of str
        The same names in the new order.
    when : function
        Whether an argument that comes first is the first of the old order.
    """

    def taking(function: Callable[Given, Found]) -> Callable[Given, Found]:
        plain: Callable[..., Any] = function

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if not (args and when(args[0])):
                return plain(*args, **given)
            name = function.__name__
            warn(
                f"{name}({', '.join(before)}) is now {name}({', '.join(now)}); {NEXT}",
                RenamedWarning,
            )
            own, rest = dict(zip(before, args, strict=False)), args[len(before) :]
            if twice := own.keys() & given.keys():
                raise TypeError(f"{name}() got multiple values for argument {min(twice)!r}")
            if len(own) == len(before):
                return plain(*(own[word] for word in now), *rest, **given)
            return plain(**own, **given)

        call.__dict__["reordered"] = (before, now)
        return call

    return taking
