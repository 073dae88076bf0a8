"""Parameters of likelihoods that estimators learn: which, between what, and in which units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qpruntime.errors import InputError
from qpruntime.learning.settings import search_of
from qpruntime.likelihoods import Likelihood
from qpruntime.validation import number, shown

__all__ = ["learnt_between", "learnt_by_name"]

# Between what parameters are learnt where nothing is said: so many times less and more than at
# first; degrees of freedom, of which few have no variance and many are normal.
_FACTOR = 1e4
_USUAL = {"nu": (1.0, 100.0), "zeros": (1e-4, 0.99), "flip": (1e-4, 0.4)}


def learnt_between(
    model: Any, likelihood: Likelihood, units: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the bounds of parameters that are learnt, by name.

    Parameters
    ----------
    model : estimator
        Its ``parameter_bounds``: None, or a dict of pairs and of "fixed" by names of parameters.
    likelihood : Likelihood
        With what they begin with.
    units : mapping
        Of parameters that users give in other units than the fit has: how many of the user's
        units one of the fit's is.

    Raises
    ------
    InputError
        If bounds are of no use.
    """
    given = model.parameter_bounds
    known = tuple(likelihood.parameters)
    if given is None:
        given = {}
    if not isinstance(given, Mapping) or set(given) - set(known):
        names = ", ".join(known) or "it has none"
        raise InputError(
            f"parameter_bounds must be None or a dict by parameters of {likelihood.name!r}, which "
            f"are: {names}; got {shown(given)}"
        )
    found = {}
    for name, value in likelihood.parameters.items():
        asked = given.get(name)
        if isinstance(asked, str) and asked == "fixed":
            continue
        if not value > 0.0:
            if asked is not None:
                raise InputError(
                    f"{name} of likelihood {likelihood.name!r} is {value:g}: the logarithm is what "
                    "is learnt, so that it must be positive; write log_prob in its exponential"
                )
            continue
        if asked is not None and search_of(model.optimize) is None:
            raise InputError(
                f"parameter_bounds of {name} cannot act with optimize=False: leave one of the two "
                "out"
            )
        found[name] = _between(likelihood, name, value, asked, units.get(name, 1.0))
    return found


def learnt_by_name(model: Any, likelihood: Likelihood) -> dict[str, tuple[float, float]]:
    """Bounds of parameters that are learnt because the model names the likelihood without numbers.

    None are if its ``optimize`` is False, or if numbers stand beside the name.
    """
    bare = isinstance(model.likelihood, str) and "(" not in model.likelihood
    if not bare or search_of(model.optimize) is None:
        return {}
    values = likelihood.parameters.items()
    return {name: _between(likelihood, name, value, None, 1.0) for name, value in values}


def _between(
    likelihood: Likelihood, name: str, value: float, asked: Any, unit: float
) -> tuple[float, float]:
    least, most = likelihood.limits.get(name, (0.0, np.inf))
    if asked is None:
        low, high = _USUAL.get(name, (value / _FACTOR, value * _FACTOR))
        low, high = min(low, value), max(high, value)
    else:
        try:
            low, high = (number(v, "a bound", above=0.0) / unit for v in asked)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"parameter_bounds of {name} must be two positive numbers or 'fixed', got "
                f"{shown(asked)}"
            ) from error
        if not low <= value <= high:
            raise InputError(
                f"{name} begins with {value * unit:g}, outside its parameter_bounds "
                f"{low * unit:g} to {high * unit:g}"
            )
    # With room for the differences that slopes are made of.
    return max(low, least), min(high, most)
