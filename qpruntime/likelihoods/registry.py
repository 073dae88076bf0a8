"""Registry of the likelihoods that modules of this package define.

A module defines one as ``likelihood``, or several as ``NAME_likelihood``.

`get` finds the likelihoods of `kinds` as well. They have no formulas for other libraries, no tables
and no references to 20 digits, so `names` leaves them out by default.
"""

from __future__ import annotations

import copyreg
import importlib
import pkgutil
import sys
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

from qpruntime._formatting import file_stem, meant, read
from qpruntime._restorable import restorable_call
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.likelihoods.base import Likelihood, restore
from qpruntime.likelihoods.user_defined import reserve

__all__ = ["get", "is_registered", "names", "shortest", "stem"]

_PACKAGE = __name__.rpartition(".")[0]


#: Modules of kinds of y. The first call of `get` does not import them, which takes 0.12 s.
_KINDS = frozenset(
    (
        "beta",
        "gamma",
        "gaussian",
        "noisy_probit",
        "ordinal",
        "ordinal_logistic",
        "survival",
        "zero_inflated",
    )
)


def _defined(kinds: bool) -> dict[str, Likelihood]:
    by_name = {}
    for module in pkgutil.iter_modules(sys.modules[_PACKAGE].__path__):
        if module.ispkg or (module.name in _KINDS) is not kinds:
            continue
        members = vars(importlib.import_module(f"{_PACKAGE}.{module.name}"))
        for name, candidate in members.items():
            if name.endswith("likelihood") and isinstance(candidate, Likelihood):
                by_name[candidate.name] = candidate
    return dict(sorted(by_name.items()))


@cache
def _core() -> dict[str, Likelihood]:
    return _defined(kinds=False)


@cache
def _kinds() -> dict[str, Likelihood]:
    return _defined(kinds=True)


def _found(name: str) -> Likelihood | None:
    """Return the likelihood of a name; `kinds` is imported where the others have none."""
    known = _core().get(name)
    return _kinds().get(name) if known is None else known


def names(kinds: bool = False) -> tuple[str, ...]:
    """Return the names of registered likelihoods.

    Parameters
    ----------
    kinds : bool
        Those of `qpruntime.likelihoods` instead: kinds of y that estimators and `infer` take,
        without formulas for other libraries and without tables.

    Returns
    -------
    tuple of str
        Names in alphabetical order.

    See Also
    --------
    qpruntime.likelihoods.get

    Examples
    --------
    >>> from qpruntime.likelihoods import names
    >>> "probit" in names(), "gamma" in names(kinds=True)
    (True, True)
    """
    return tuple(_kinds() if kinds else _core())


def _every() -> tuple[str, ...]:
    return names() + names(kinds=True)


@restorable_call("likelihood/1")
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

    See Also
    --------
    qpruntime.likelihoods.names, qpruntime.Likelihood

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
    name, spelt = read(likelihood) if isinstance(likelihood, str) else (likelihood, {})
    registered = _found(name) if isinstance(name, str) else None
    if registered is None:
        raise InputError(
            f"unknown likelihood {shown(likelihood)}{meant(name, _every())}; known are: "
            + ", ".join(_every())
        )
    repeated = sorted(set(spelt) & set(parameters))
    if repeated:
        raise InputError(f"parameter {repeated[0]!r} is given twice: in {likelihood!r} and by name")
    wanted = registered.with_parameters(**spelt, **parameters)
    return _made(wanted.name, tuple(wanted.parameters.items()))


@cache
def _made(name: str, parameters: tuple[tuple[str, float], ...]) -> Likelihood:
    registered = _found(name)
    assert registered is not None
    return registered.with_parameters(**dict(parameters))


def is_registered(likelihood: Likelihood) -> bool:
    """Return True if `get` returns this likelihood for its name and parameters.

    Parameters
    ----------
    likelihood : Likelihood

    Returns
    -------
    bool

    See Also
    --------
    qpruntime.likelihoods.get

    Examples
    --------
    >>> from qpruntime.likelihoods import get, is_registered
    >>> is_registered(get("probit"))
    True
    """
    try:
        return _found(likelihood.name) is not None and get(likelihood.spelt) is likelihood
    except InputError:
        return False


def shortest(likelihood: Likelihood) -> str:
    """Return how `get` finds a registered likelihood: without parameters, if all have defaults.

    Parameters
    ----------
    likelihood : Likelihood
        One for which `is_registered` is true.

    Returns
    -------
    str

    See Also
    --------
    qpruntime.likelihoods.get

    Examples
    --------
    >>> from qpruntime.likelihoods import get, shortest
    >>> shortest(get("student-t", nu=4.0)), shortest(get("student-t", scale=0.3))
    ('student-t', 'student-t(nu=4, scale=0.3)')
    """
    plain = likelihood is _found(likelihood.name)
    return likelihood.name if plain else likelihood.spelt


def stem(likelihood: Likelihood, preset: str = "grid", p: float | None = None) -> str:
    """Return the name of the file of a likelihood's table, without ``.h5``.

    Parameters
    ----------
    likelihood : Likelihood
        Its parameters are part of the name, unless all have their defaults.
    preset : {"grid", "compact", "surfaces"}
        Kind of table.
    p : float, optional
        Order of L_p projections.

    Returns
    -------
    str

    See Also
    --------
    qpruntime.likelihoods.get, qpruntime.open_table

    Examples
    --------
    >>> from qpruntime.likelihoods import get, stem
    >>> stem(get("student-t", scale=0.3), "surfaces"), stem(get("student-t"), "surfaces")
    ('student-t,nu=4,scale=0.3-surfaces', 'student-t-surfaces')
    """
    plain = likelihood is _found(likelihood.name)
    return file_stem(likelihood.name, {} if plain else likelihood.parameters, preset, p)


def _reduced(likelihood: Likelihood) -> tuple[Any, ...]:
    """Return how a likelihood pickles: by its recipe, by its name, or with all it holds."""
    if likelihood.recipe is not None:
        return restore, (likelihood.recipe,)
    if likelihood.rows is not None and _found(likelihood.name) is not None:
        plain = get(likelihood.spelt)
        if plain.split is likelihood.split:
            return holding, (plain, likelihood.rows)
    if _like_registered(likelihood):
        return get, (likelihood.spelt,)
    return cast("tuple[Any, ...]", object.__reduce_ex__(likelihood, 2))


def _like_registered(likelihood: Likelihood) -> bool:
    """Return True if `get` returns this likelihood, or one that differs in fitted values only."""
    known = _found(likelihood.name)
    if known is None or likelihood.rows is not None:
        return False
    parts = [field.name for field in fields(Likelihood)]
    return all(
        getattr(likelihood, part) is getattr(known, part)
        for part in parts
        if part not in ("name", "parameters", "theta")
    )


@restorable_call("likelihood-holding/1")
def holding(likelihood: Likelihood, rows: Array) -> Likelihood:
    """Return a likelihood that holds these observations, as `Likelihood.observing` makes it."""
    return replace(likelihood, rows=likelihood.validate(rows).reshape(-1, likelihood.columns))


reserve(_every)
copyreg.pickle(Likelihood, _reduced)
