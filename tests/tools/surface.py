"""The public surface: functions, classes and public methods, and names of their arguments."""

import importlib
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

__all__ = ["Argument", "arguments", "places"]

PACKAGES = ["qpruntime", "qpruntime.bayesopt"]
if find_spec("jax") and find_spec("optax"):
    PACKAGES.append("qpruntime.deep")
if find_spec("optuna"):
    PACKAGES.append("qpruntime.bayesopt.optuna_sampler")


class Argument(NamedTuple):
    """One argument of one public function."""

    place: str
    name: str
    default: Any
    annotation: str
    by_position: bool


def places() -> Iterator[tuple[str, Any]]:
    """Public functions and constructors, of whatever package, and public methods of classes."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) and issubclass(found, (Exception, Warning)):
                continue
            if callable(found):
                yield name, found
            if not inspect.isclass(found):
                continue
            for method, own in inspect.getmembers(found, callable):
                ours = (getattr(own, "__module__", None) or "").startswith("qpruntime")
                if not method.startswith("_") and ours:
                    yield f"{name}.{method}", own


def arguments() -> list[Argument]:
    """Return every argument of every public function."""
    found = []
    for place, function in places():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name in ("self", "cls") or parameter.kind in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                continue
            by_position = parameter.kind is not parameter.KEYWORD_ONLY
            type_ = parameter.annotation
            text = "" if type_ is parameter.empty else inspect.formatannotation(type_)
            found.append(Argument(place, parameter.name, parameter.default, text, by_position))
    return found
