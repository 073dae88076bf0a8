"""Old options of the estimators, which are fields of values now: taken for one more release."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from qpruntime._validation import choice, shown
from qpruntime.errors import InputError, RenamedWarning, warn
from qpruntime.learning.options import (
    Inducing,
    Joint,
    Options,
    Search,
    Series,
    integrate_of,
    joint_of,
)
from qpruntime.learning.settings import SOLVERS, inducing_of, search_of
from qpruntime.renamed import NEXT, OPTIONS

__all__ = ["VALUES", "folded", "upgraded", "value_of", "with_old_options"]

Model = TypeVar("Model")


def _series_of(given: Any) -> Series | None:
    if isinstance(given, Series):
        return given
    solver = choice(given, "solver", SOLVERS)
    return None if solver == "dense" else Series(required=solver == "markov")


#: Bounds of noise as they are where nothing is said.
_USUAL = {"nu": "fixed", "scale": None, "start": None}
#: What stood beside the bounds before, and is one of them now.
_BESIDE = {"start"}
#: What makes a value of what a parameter may be given as; None where there is nothing to set.
VALUES: dict[str, Callable[[Any], Options | None]] = {
    "optimize": search_of,
    "inducing": inducing_of,
    "solver": _series_of,
    "multi_class": joint_of,
    "hyperparameters": integrate_of,
}


def value_of(parameter: str, given: Any) -> Options | None:
    """Return what a parameter was given as a value, None where nothing of it can act."""
    return VALUES[parameter](given)


def with_old_options(cls: type[Model]) -> type[Model]:
    """Let the constructor of an estimator take old options too, with a warning."""
    plain: Callable[..., None] = cls.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        plain(self, *args, **folded(self, given, _defaults(type(self))))

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def _defaults(cls: Any) -> dict[str, Any]:
    return {name: field.default for name, field in cls.__dataclass_fields__.items()}


def folded(model: Any, given: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in which old options are fields of the values that they belong to.

    Parameters
    ----------
    model : estimator
    given : mapping
        Parameters by new and old names.
    now : mapping
        What the parameters are where they are not given.

    Raises
    ------
    InputError
        If an option is given in both ways, is not usable, or cannot act.
    """
    old = {name: value for name, value in given.items() if _is_old(name, now)}
    found = {name: value for name, value in given.items() if name not in old}
    groups: dict[str, dict[str, str]] = {}
    for name in old:
        groups.setdefault(OPTIONS[name].parameter, {})[OPTIONS[name].field] = name
    for parameter, names in groups.items():
        here = found.get(parameter)
        beside = isinstance(here, Mapping) and set(names) <= _BESIDE - set(here)
        if isinstance(here, (Options, Mapping)) and not beside:
            raise InputError(
                f"{', '.join(names.values())}: now of {parameter}={shown(found[parameter])}, which "
                "is given too; say it there alone"
            )
        plain = found.get(parameter, now[parameter])
        value = _joined(parameter, plain, {field: old[name] for field, name in names.items()})
        words = ", ".join(f"{name}={shown(old[name])}" for name in names.values())
        name = type(model).__name__
        now_spelt = f"{name}({parameter}={shown(value)})"
        warn(f"{name}({words}) is now {now_spelt}; {NEXT}", RenamedWarning)
        found[parameter] = value
    return found


def upgraded(cls: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier release has pickled, with its old options where they are now."""
    now = _defaults(cls)
    found = {name: value for name, value in state.items() if not _is_old(name, now)}
    # In the order of the table: what needs another option comes after it.
    for name, (parameter, _, field) in OPTIONS.items():
        if name not in state or name in found:
            continue
        plain = found.get(parameter, now[parameter])
        with suppress(InputError):  # what cannot act did not
            later = _joined(parameter, plain, {field: state[name]})
            if later and (parameter not in VALUES or later != value_of(parameter, plain)):
                found[parameter] = later
    return found


def _is_old(name: str, now: Mapping[str, Any]) -> bool:
    return name in OPTIONS and OPTIONS[name].parameter in now


def _joined(parameter: str, plain: Any, options: dict[str, Any]) -> Any:
    """Return the value of a parameter with some of its fields set."""
    if parameter not in VALUES:
        bounds = {**(plain or {}), **options}
        asked = {name: v for name, v in bounds.items() if repr(v) != repr(_USUAL[name])}
        return asked or None
    value = value_of(parameter, plain)
    if value is not None:
        return value.but(**options)
    kinds: dict[str, Callable[..., Options]] = {
        "optimize": Search,
        "inducing": Inducing,
        "multi_class": Joint,
    }
    # Checked all the same; what is as by default asks for nothing.
    changed = kinds.get(parameter, Series)(**options).changed()
    for field in changed:
        raise InputError(
            f"{field}={shown(options[field])} cannot act with {parameter}={shown(plain)}: leave "
            "one of the two out"
        )
    return plain
