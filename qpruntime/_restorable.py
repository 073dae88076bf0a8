"""Stable names of the classes and functions that saved models are made of.

A file names a class by what `restorable` gave it where it is defined, not by its module, so that
models outlive a move. Nothing else is made from a file: making one of these from a stranger's
values runs none of the stranger's code, opens no file and removes none.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["call_of", "class_of", "is_root", "name_of", "restorable", "restorable_call"]

Thing = TypeVar("Thing")

_CLASSES: dict[str, type] = {}
_CALLS: dict[str, Callable[..., Any]] = {}
_NAMES: dict[object, str] = {}
_ROOTS: set[str] = set()

#: Packages whose modules define names.
_ROOMS = (
    *("inference", "likelihoods", "projection", "kernels", "dataframes", "learning"),
    *("predictive", "estimators", "effects", "forecasting"),
)
_SKLEARN = {
    f"sklearn-{name.lower()}/1": name
    for name in (
        *("CompoundKernel", "ConstantKernel", "DotProduct", "ExpSineSquared", "Exponentiation"),
        *("Matern", "PairwiseKernel", "Product", "RBF", "RationalQuadratic", "Sum"),
        *("WhiteKernel", "Hyperparameter"),
    )
}


def restorable(name: str, root: bool = False) -> Callable[[type[Thing]], type[Thing]]:
    """Give a class the name by which files hold its instances.

    Parameters
    ----------
    name : str
        Short and never changed, with the number of its form: ``"gp-classifier/1"``. A class whose
        state takes another form gets the next number, and files of the last one are refused.
    root : bool
        Whether a file may hold an instance as a whole: an estimator or a posterior.
    """

    def register(cls: type[Thing]) -> type[Thing]:
        _register(_CLASSES, name, cls)
        if root:
            _ROOTS.add(name)
        return cls

    return register


def restorable_call(name: str) -> Callable[[Thing], Thing]:
    """Give a function, or a class that is called, the name by which files hold its results."""

    def register(function: Thing) -> Thing:
        _register(_CALLS, name, function)
        return function

    return register


def _register(registry: dict[str, Any], name: str, thing: Any) -> None:
    known = registry.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (
        thing.__module__,
        thing.__qualname__,
    ):
        raise AssertionError(f"{name!r} is the name of {known} and of {thing}")
    registry[name] = thing
    _NAMES[thing] = name


def name_of(thing: Callable[..., object]) -> str | None:
    """Return the stable name of a class or function, None if it has none."""
    if getattr(thing, "__module__", None) == "sklearn.gaussian_process.kernels":
        name = f"sklearn-{thing.__qualname__.lower()}/1"
        return name if name in _SKLEARN else None
    return _NAMES.get(thing)


def is_root(name: str) -> bool:
    """Return whether a file may hold an instance of the class of this name as a whole."""
    return class_of(name) is not None and name in _ROOTS


def class_of(name: str) -> type | None:
    """Return the class of a stable name, None if there is none."""
    if name in _SKLEARN:
        kernels = importlib.import_module("sklearn.gaussian_process.kernels")
        kernel_class = getattr(kernels, _SKLEARN[name])
        assert isinstance(kernel_class, type)
        return kernel_class
    _import_home(_CLASSES, name)
    return _CLASSES.get(name)


def call_of(name: str) -> Callable[..., Any] | None:
    """Return the function of a stable name, None if there is none."""
    _import_home(_CALLS, name)
    return _CALLS.get(name)


def _import_home(registry: Mapping[str, Any], name: str) -> None:
    """Import the module that defines a name, if there is one and it is not imported yet."""
    if name not in registry and (module := _homes().get(name)):
        importlib.import_module(module)


@cache
def _homes() -> dict[str, str]:
    """Return the module that defines each name, from the sources: none is imported for it."""
    homes = {}
    root = Path(__file__).parent
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            module = ".".join(("qpruntime", *path.relative_to(root).with_suffix("").parts))
            for name in _GIVEN.findall(path.read_text(encoding="utf-8")):
                homes[name] = module.removesuffix(".__init__")
    return homes


_GIVEN = re.compile(r'^@restorable(?:_call)?\("([^"]+)"', re.M)
