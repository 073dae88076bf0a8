"""Find the likelihood a command names: a registered one, or ``package.module:name`` of the user's.

The user's module is imported and runs with the user's rights, as if they had imported it
themselves. This happens when a table is built, never when one is opened. A function there is called
only if it is annotated to return a Likelihood.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from types import FunctionType

from qpruntime import likelihoods
from qpruntime._formatting import MODULE_NAME, meant
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood

__all__ = ["is_users", "load"]


def is_users(likelihood: str | Likelihood) -> bool:
    """Decide whether this names code outside the registry."""
    if isinstance(likelihood, str):
        return ":" in likelihood
    return not likelihoods.is_registered(likelihood)


def load(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood; modules are looked for in the current directory, too.

    Parameters
    ----------
    likelihood : str or Likelihood
        A registered name, or ``package.module:name``: a Likelihood, or a function that needs no
        arguments and is annotated to return one, ``def name() -> Likelihood``.

    Raises
    ------
    InputError
        If there is no such module or name, or it is something else.
    """
    if isinstance(likelihood, Likelihood) or ":" not in likelihood:
        return likelihoods.get(likelihood)
    if not MODULE_NAME.fullmatch(likelihood):
        raise InputError(f"likelihood must be NAME or package.module:name, got {shown(likelihood)}")
    module, _, name = likelihood.partition(":")
    attribute = _attribute(module, name, likelihood)
    if isinstance(attribute, Likelihood):
        return attribute
    if not inspect.isfunction(attribute) or not _is_factory(attribute):
        raise InputError(_refusal(attribute, likelihood, name))
    try:
        with redirect_stdout(sys.stderr):
            made: object = attribute()
    except (Exception, SystemExit) as error:
        raise InputError(f"{likelihood} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Likelihood):
        raise InputError(f"{likelihood} returned a {type(made).__name__}, not a Likelihood")
    return made


def _refusal(found: object, spec: str, name: str) -> str:
    """Say what to write instead of this."""
    refused = f"{spec} is a {type(found).__name__}, not a qpruntime Likelihood"
    if not callable(found):
        return f"{refused}; name one, or a function annotated '-> Likelihood'"
    needed = _needed(found) if inspect.isfunction(found) else ["..."]
    annotate = "" if needed else f"annotate it, def {name}() -> Likelihood, or "
    return (
        f"{refused}, and is not called unasked; if it returns one, {annotate}call it in the "
        f"module, made = {name}({', '.join(needed)}), and name that: {spec.split(':')[0]}:made"
    )


def _needed(function: Callable[..., object]) -> list[str]:
    """Names of the arguments that a function cannot do without."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in optional
    ]


def _is_factory(found: FunctionType) -> bool:
    """Return True for a function without required arguments, annotated to return a Likelihood."""
    returns = found.__annotations__.get("return")
    if isinstance(returns, str):
        returns = Likelihood if returns.split(".")[-1] == "Likelihood" else None
    return returns is Likelihood and not _needed(found)


def _attribute(module: str, name: str, spec: str) -> object:
    had_folder = "" in sys.path
    if not had_folder:
        sys.path.insert(0, "")
    try:
        # Its output is not our result, and neither is its exit if it is a script.
        with redirect_stdout(sys.stderr):
            imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise InputError(f"cannot import {module}: it needs {error.name}") from error
        raise InputError(
            f"no module {module!r} in the current directory or on the Python path ({spec})"
        ) from error
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot import {module}: {type(error).__name__}: {error}") from error
    finally:
        if not had_folder:
            with suppress(ValueError):
                sys.path.remove("")
    try:
        attribute: object = getattr(imported, name)
    except AttributeError as error:
        raise InputError(
            f"module {module!r} has no {name!r}{meant(name, dir(imported))}"
        ) from error
    return attribute
