"""Find the likelihood a command names: a registered one, or ``package.module:name`` of the user's.

The user's module is imported and runs with the user's rights, as if they had imported it
themselves. That happens when a table is built, never when one is opened.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from qpruntime import likelihoods
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood

__all__ = ["is_users", "load"]


def is_users(likelihood: str | Likelihood) -> bool:
    """Whether this names code outside the registry."""
    if isinstance(likelihood, str):
        return ":" in likelihood
    return likelihood.name not in likelihoods.names() or (
        likelihoods.get(likelihood.spelt) is not likelihood
    )


def load(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood; modules are looked for in the current directory, too.

    Raises
    ------
    InputError
        If there is no such module or name, or it is something else.
    """
    if isinstance(likelihood, Likelihood) or ":" not in likelihood:
        return likelihoods.get(likelihood)
    module, _, name = likelihood.partition(":")
    if not module or not all(part.isidentifier() for part in [*module.split("."), name]):
        raise InputError(f"likelihood must be NAME or package.module:name, got {likelihood!r}")
    found = _attribute(module, name, likelihood)
    if not isinstance(found, Likelihood) and callable(found):
        found = found()
    if not isinstance(found, Likelihood):
        raise InputError(
            f"{likelihood} is a {type(found).__name__}, not a qpruntime Likelihood or a function "
            "that returns one"
        )
    return found


def _attribute(module: str, name: str, spec: str) -> Any:
    here = "" in sys.path
    if not here:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise InputError(f"cannot import {module}: it needs {error.name}") from error
        raise InputError(
            f"no module {module!r} in the current directory or on the Python path ({spec})"
        ) from error
    except AttributeError as error:
        raise InputError(f"module {module!r} has no {name!r}") from error
    except Exception as error:
        raise InputError(f"cannot import {module}: {type(error).__name__}: {error}") from error
    finally:
        if not here:
            sys.path.remove("")
