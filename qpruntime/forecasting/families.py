"""Which families a forecaster has, and how their likelihoods are learnt."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.forecasting.scale import Scale, reals_scale
from qpruntime.likelihoods import Likelihood
from qpruntime.validation import shown

__all__ = ["COUNTS", "REALS", "bounds_of", "is_whole", "likelihood_of", "scale_of"]

#: Counts with a log link, whose exposures shift it.
COUNTS = ("poisson", "negative-binomial", "zero-inflated", "hurdle")
#: Of real numbers; the last is "gaussian" of logarithms.
REALS = ("gaussian", "student-t", "log-normal")
_NAMES = {"poisson": "poisson-exp", "log-normal": "gaussian"}
# What is learnt, from where, and between what: scales in units of the spread of all observations.
_LEARNT = {
    "scale": (0.3, (1e-4, 1e2)),
    "dispersion": (1.0, (1e-2, 1e6)),
    "zeros": (0.2, (1e-4, 0.9999)),
}


def is_whole(family: str | Likelihood, y: Array) -> bool:
    """Whether observations are counts; of a likelihood of its own, whether they look so."""
    if isinstance(family, str) and family in REALS:
        return False
    wrong = (y < 0.0) | (y != np.round(y))
    if isinstance(family, str) and family in COUNTS and wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(
            f'y is {y[i]:g} at number {i}, which is no count: family="auto" takes other numbers, '
            '"gaussian" and "student-t" are of them'
        )
    return not wrong.any()


def scale_of(family: str | Likelihood, y: Array) -> Scale:
    """Return how the likelihood of a family sees these observations, none of them missing."""
    if not isinstance(family, str) or family not in REALS:
        return Scale()
    return reals_scale(y, family == "log-normal")


def likelihood_of(family: str | Likelihood) -> Likelihood:
    """Return the likelihood where its learnt parameters start.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    if isinstance(family, Likelihood):
        return family
    name = _NAMES.get(family, family)
    try:
        found = likelihoods.get(name)
    except InputError as error:
        known = ", ".join((*COUNTS, *REALS))
        raise InputError(
            f'family must be "auto", one of {known}, or a likelihood, got {shown(family)}'
        ) from error
    starts = {p: _LEARNT[p][0] for p in found.parameters if p in _LEARNT}
    return found.with_parameters(**starts) if starts else found


def bounds_of(likelihood: Likelihood) -> dict[str, Any]:
    """Return between what the parameters of a likelihood are learnt."""
    return {p: _LEARNT[p][1] for p in likelihood.parameters if p in _LEARNT}
