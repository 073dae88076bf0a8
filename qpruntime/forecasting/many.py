"""Series fitted one after the other, as one call of an executor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from qpruntime.errors import QPError
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.forecasting.choosing import choose
from qpruntime.forecasting.clock import Clock
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.pool import like
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.tried import fitted

__all__ = ["Task", "fit_some", "pieces"]

#: Series of one call: on a cluster what it costs to hand one out is shared.
_PIECE = 20


class Task(NamedTuple):
    """One series.

    Attributes
    ----------
    number : int
    series : dict
        Arguments of `GPForecaster.fit`.
    """

    number: int
    series: dict[str, Any]


#: Options, what all have in common, their clock, and series.
Item = tuple[GPForecaster, Structure | None, Clock | None, Sequence[Task]]
#: Number, forecaster or None, what was wrong.
Result = tuple[int, GPForecaster | None, str]


def pieces(lasting: tuple[Any, ...], tasks: Sequence[Task], far: bool) -> list[Any]:
    """Arguments of `fit_some`."""
    size = _PIECE if far else 1
    return [(*lasting, tasks[k : k + size]) for k in range(0, len(tasks), size)]


def fit_some(item: Item) -> list[Result]:
    """Fit series; what is wrong with one is said in its place."""
    options, structure, clock, tasks = item
    found: list[Result] = []
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore")
        for number, series in tasks:
            try:
                found.append((number, _fitted(options, structure, clock, series), ""))
            except (QPError, np.linalg.LinAlgError, FloatingPointError) as error:
                found.append((number, None, str(error)))
    return found


def _fitted(
    options: GPForecaster, structure: Structure | None, clock: Clock | None, series: dict[str, Any]
) -> GPForecaster:
    own: GPForecaster = clone(options)
    if own.integrate == "auto":
        own.integrate = "mode"  # of thousands of series, nodes would take hours
    known = own._read(**series, clock=clock)
    if structure is None:
        return own._taken(choose(own, known))
    found = fitted(like(structure, known), known, own.integrate)
    # What was learnt from the others stays with the panel.
    return own._taken(replace(found, structure=replace(found.structure, learnt=None)))
