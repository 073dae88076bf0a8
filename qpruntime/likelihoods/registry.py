"""The registry: every module of this package that defines ``likelihood`` is found by itself."""

from __future__ import annotations

import copyreg
import importlib
import pkgutil
import sys
from dataclasses import replace
from functools import cache
from typing import Any

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods.contract import Likelihood, restore
from qpruntime.likelihoods.own_density import reserve
from qpruntime.names import file_stem, meant, read
from qpruntime.validation import shown

__all__ = ["get", "is_registered", "names", "shortest", "stem"]

_PACKAGE = __name__.rpartition(".")[0]


@cache
def _registry() -> dict[str, Likelihood]:
    found = {}
    for module in pkgutil.iter_modules(sys.modules[_PACKAGE].__path__):
        candidate = getattr(
            importlib.import_module(f"{_PACKAGE}.{module.name}"), "likelihood", None
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
    name, given = read(likelihood) if isinstance(likelihood, str) else (likelihood, {})
    try:
        registered = _registry()[name]
    except (KeyError, TypeError):
        known = ", ".join(names())
        raise InputError(
            f"unknown likelihood {shown(likelihood)}{meant(name, names())}; known are: {known}"
        ) from None
    both = sorted(set(given) & set(parameters))
    if both:
        raise InputError(f"parameter {both[0]!r} is given twice: in {likelihood!r} and by name")
    wanted = registered.with_parameters(**given, **parameters)
    return _made(wanted.name, tuple(wanted.parameters.items()))


@cache
def _made(name: str, parameters: tuple[tuple[str, float], ...]) -> Likelihood:
    return _registry()[name].with_parameters(**dict(parameters))


def is_registered(likelihood: Likelihood) -> bool:
    """Whether this is what `get` returns for its name and parameters, and no other of that name."""
    try:
        return likelihood.name in _registry() and get(likelihood.spelt) is likelihood
    except InputError:
        return False


def shortest(likelihood: Likelihood) -> str:
    """Return how `get` finds a registered likelihood: without parameters, if all have defaults."""
    plain = likelihood is _registry().get(likelihood.name)
    return likelihood.name if plain else likelihood.spelt


def stem(likelihood: Likelihood, preset: str = "grid", p: float | None = None) -> str:
    """Return the name of the file of a table, without ``.h5``, as `qpruntime.names.file_stem` does.

    >>> from qpruntime.likelihoods import get
    >>> stem(get("student-t", scale=0.3), "surfaces"), stem(get("student-t"), "surfaces")
    ('student-t,nu=4,scale=0.3-surfaces', 'student-t-surfaces')
    """
    plain = likelihood is _registry().get(likelihood.name)
    return file_stem(likelihood.name, {} if plain else likelihood.parameters, preset, p)


def _reduced(likelihood: Likelihood) -> Any:
    """How a likelihood pickles: by its recipe, by its name, or with all it holds."""
    if likelihood.recipe is not None:
        return restore, (likelihood.recipe,)
    if likelihood.rows is not None and likelihood.name in _registry():
        plain = get(likelihood.spelt)
        if plain.split is likelihood.split:
            return _holding, (plain, likelihood.rows)
    if is_registered(likelihood):
        return get, (likelihood.spelt,)
    return object.__reduce_ex__(likelihood, 2)


def _holding(likelihood: Likelihood, rows: Array) -> Likelihood:
    return replace(likelihood, rows=rows)


reserve(names)
copyreg.pickle(Likelihood, _reduced)
