"""`monotone=` of the estimators: which features, and at which rows slopes are observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.estimators.parameters import Parameters
from qpruntime.estimators.prior_mean import given_estimator
from qpruntime.kernels.derivative_covariance import require_slopes
from qpruntime.learning.fit import spread_rows
from qpruntime.learning.inputs import Data, Inputs, Slopes
from qpruntime.learning.options import Settings
from qpruntime.learning.scaling import Units
from qpruntime.learning.solvers import with_slopes

__all__ = ["monotone_data", "one_direction"]

# Rows at which the slope along each feature is observed, at most.
_ROWS = 40
# Scale of the probit of a slope, for features in units of their spread.
_SHARP = 1e-3


def monotone_data(
    model: Parameters, processes: Sequence[Data], settings: Settings
) -> tuple[list[Data], Settings, Slopes | None]:
    """Return data and settings of an estimator, with the slopes of its `monotone` option.

    Raises
    ------
    InputError
        If ``model.monotone`` is not usable, or another option does not support slopes.
    """
    directions = getattr(model, "monotone", None)
    if directions is None or (isinstance(directions, Mapping) and not directions):
        return list(processes), settings, None
    if not isinstance(directions, Mapping):
        raise InputError(
            'monotone must be a mapping of features to +1 or -1, {"age": +1}; '
            f"got {shown(directions)}"
        )
    if settings.sparse is not None:
        raise InputError("monotone needs the dense engine: use inducing=None")
    if settings.solver == "markov":
        raise InputError('monotone needs covariance matrices: use solver="dense"')
    if given_estimator(model.prior_mean) is not None:
        raise InputError(
            "monotone constrains the Gaussian process alone, and prior_mean may still fall: "
            "leave one out, or constrain boosting by its monotonic_cst"
        )
    data = processes[0]
    if data.projector.method == "wp":
        raise InputError('monotone takes method "qp", "ep" or "vb"')
    labels = is_classifier(model)
    if not labels:
        _of_numbers(model, settings, data)
    if settings.given:
        require_slopes(settings.kernel)
    inputs = data.inputs.in_memory()
    units = Units.of(inputs.X, data.weights)
    slopes, signs = _slopes(inputs.X, units, _directions(inputs, directions, units))
    settings = replace(settings, inducing=None, series=None)
    data = replace(data, inputs=inputs, own_signs=labels)
    return [with_slopes(data, slopes, signs)], settings, slopes


def _of_numbers(model: Parameters, settings: Settings, data: Data) -> None:
    """Raise `InputError` for what has no answer where values and slopes differ in likelihood."""
    if data.projector.likelihood.even:
        raise InputError(
            'monotone constrains f, and with link="square" the rate rises with |f|: use link="exp"'
        )
    if settings.search.objective == "loo":
        raise InputError('monotone for counts and numbers is learnt by evidence: leave out "loo"')
    if model.correction is not None:
        raise InputError("monotone for counts and numbers has no corrections: use correction=None")
    if not (model.table is None or (isinstance(model.table, str) and model.table == "exact")):
        raise InputError("monotone for counts and numbers takes no table: use table=None")


def one_direction(monotone: object, count: int) -> None:
    """Raise `InputError` if a classifier of more than two classes asks for a direction."""
    if monotone and count > 2:
        raise InputError(f"monotone needs two classes, got {count}: join classes, or leave it out")


def _directions(inputs: Inputs, monotone: Mapping[Any, Any], units: Units) -> dict[int, float]:
    """Return directions by the number of the feature."""
    names, count = inputs.names, inputs.width
    directions: dict[int, float] = {}
    for key, value in monotone.items():
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not number or float(value) not in (1.0, -1.0):
            raise InputError(
                f"monotone must be +1 for a feature along which the function rises, or -1; got "
                f"{shown(value)} for {shown(key)}"
            )
        if isinstance(key, str):
            if key not in names:
                have = f"it has {shown(list(names))}" if names else "X had no names, use numbers"
                raise InputError(
                    f"monotone names the feature {shown(key)}, which X does not have: {have}"
                )
            k = names.index(key)
        elif isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < count:
            k = int(key)
        else:
            raise InputError(
                f"monotone must name features, or number them from 0 to {count - 1}; "
                f"got {shown(key)}"
            )
        if not units.spread[k] > 0.0:
            raise InputError(
                f"monotone names the feature {shown(key)}, which is the same in every row: "
                "leave it out"
            )
        if directions.setdefault(k, float(value)) != float(value):
            raise InputError(f"monotone has two directions for feature {k}: leave one out")
    return directions


def _slopes(X: Array, units: Units, directions: dict[int, float]) -> tuple[Slopes, Array]:
    """Return slopes along features at rows far from each other, and their signs."""
    rows = spread_rows(units.scaled(X), _ROWS)
    feature = np.repeat(list(directions), len(rows)).astype(np.intp)
    signs = np.repeat([*directions.values()], len(rows))
    where = np.tile(X[rows], (len(directions), 1))
    return Slopes(where, feature, units.spread[feature] / _SHARP), signs
