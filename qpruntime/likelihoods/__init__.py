"""The registry: every module in this folder that defines ``likelihood`` is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from typing import Any

from qpruntime.errors import InputError
from qpruntime.likelihoods.contract import Likelihood

__all__ = ["Likelihood", "get", "names"]

_SPELT = re.compile(r"\s*([^()\s]+)\s*\((.*)\)\s*")


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


def get(likelihood: str | Likelihood, **parameters: float) -> Likelihood:
    """Return the likelihood of that name; a `Likelihood` is returned as it is.

    Parameters
    ----------
    likelihood : str or Likelihood
        A registered name such as ``"probit"``, or a name with parameters such as
        ``"student-t(nu=4, scale=0.3)"``. What is not given keeps its default.
    **parameters : float
        Parameters by name, instead of those in the string.

    Returns
    -------
    Likelihood
        The same object for the same name and values.

    Raises
    ------
    InputError
        If no likelihood of that name is registered, or it has no such parameter or value.

    Examples
    --------
    >>> from qpruntime import likelihoods
    >>> likelihoods.get("student-t", nu=4, scale=0.3).spelt
    'student-t(nu=4, scale=0.3)'
    >>> likelihoods.get("student-t(scale=0.3)") is likelihoods.get("student-t", scale=0.3)
    True
    """
    if isinstance(likelihood, Likelihood):
        return likelihood.with_parameters(**parameters)
    name, given = _read(likelihood) if isinstance(likelihood, str) else (likelihood, {})
    try:
        registered = _registry()[name]
    except (KeyError, TypeError):
        known = ", ".join(names())
        raise InputError(f"unknown likelihood {likelihood!r}; known are: {known}") from None
    both = sorted(set(given) & set(parameters))
    if both:
        raise InputError(f"parameter {both[0]!r} is given twice: in {likelihood!r} and by name")
    wanted = registered.with_parameters(**given, **parameters)
    return _made(wanted.name, tuple(wanted.parameters.items()))


@cache
def _made(name: str, parameters: tuple[tuple[str, float], ...]) -> Likelihood:
    return _registry()[name].with_parameters(**dict(parameters))


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of ``name(parameter=value, ...)``; parameters are checked elsewhere."""
    match = _SPELT.fullmatch(text)
    if match is None:
        return text, {}
    parameters = {}
    for part in match[2].split(",") if match[2].strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals or key in parameters:
            raise InputError(
                f"cannot read {part.strip()!r} in {text!r}; write a likelihood with parameters "
                "as 'student-t(nu=4, scale=0.3)'"
            )
        parameters[key] = number
    return match[1], parameters
