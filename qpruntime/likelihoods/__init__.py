"""The registry: every module in this folder that defines ``likelihood`` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from qpruntime.errors import InputError
from qpruntime.likelihoods.base import Likelihood

__all__ = ["Likelihood", "get", "names"]


@cache
def _registry() -> dict[str, Likelihood]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        candidate = getattr(
            importlib.import_module(f"{__name__}.{module.name}"), "likelihood", None
        )
        if isinstance(candidate, Likelihood):
            found[candidate.name] = candidate
    return dict(sorted(found.items()))


def names() -> tuple[str, ...]:
    """Return the names of all registered likelihoods."""
    return tuple(_registry())


def get(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood of that name; a `Likelihood` is returned as it is.

    Raises
    ------
    InputError
        If no likelihood of that name is registered.
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    try:
        return _registry()[likelihood]
    except (KeyError, TypeError):
        known = ", ".join(names())
        raise InputError(f"unknown likelihood {likelihood!r}; known are: {known}") from None
