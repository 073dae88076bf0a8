"""Data that users hand to estimators: rows, targets and weights, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import (
    _check_sample_weight,
    check_X_y,
    column_or_1d,
    validate_data,
)

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.tables import matrix_of
from qpruntime.inference.sparse.lazy import as_array, inputs_of, is_lazy
from qpruntime.learning.policy.acts import DENSE
from qpruntime.learning.settings import left_open

__all__ = ["checked", "fit_data", "no_text", "weighed"]

# Sums of squares of larger numbers overflow.
_LARGEST = 1e150


def checked(validate: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Call a validator of scikit-learn on data that may be anything.

    Its own exceptions are `ValueError`, and `TypeError` for sparse matrices; what foreign objects
    raise on the way becomes an `InputError`, as do masked entries, which it would take for data.
    """
    for array in arrays:
        if np.ma.is_masked(array):
            raise InputError("masked entries cannot be fitted or predicted; leave them out")
    try:
        with np.errstate(all="ignore"):
            found = validate(*arrays, **options)
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise InputError(f"the data cannot be converted to numbers: {error}") from error
    for array in found if isinstance(found, tuple) else (found,):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size:
            reach = float(np.abs(array).max())
            if reach > _LARGEST:
                raise InputError(
                    f"the data reach {reach:.3g}, and squared distances leave double precision "
                    f"beyond {_LARGEST:g}: use other units, or a StandardScaler"
                )
    return found


def fit_data(model: Any, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
    """Validate training data; rows to be read in parts stay where they are with inducing points.

    Those are zarr arrays, memory maps, dask arrays and data frames: `qpruntime.infer_sparse`.
    """
    if options.get("y_numeric"):
        no_text(y, "y")
    table = matrix_of(model, X, options.get("reset", True))
    if table is not None:
        given = {name: value for name, value in options.items() if name != "reset"}
        points, targets = checked(check_X_y, table, y, dtype=np.float64, estimator=model, **given)
        return points, targets
    if not is_lazy(X) or _whole(model, X):
        no_text(X, "X")
        points, targets = checked(validate_data, model, X, y, dtype=np.float64, **options)
        return points, targets
    points = inputs_of(X, "X")
    targets = checked(column_or_1d, as_array(y, "y"))
    if len(targets) != points.shape[0]:
        raise InputError(f"y must have {points.shape[0]} rows like X, got {len(targets)}")
    width = int(points.shape[1])
    if options.get("reset", True):
        model.n_features_in_ = width
    elif width != model.n_features_in_:
        raise InputError(f"X must have {model.n_features_in_} columns as before, got {width}")
    return points, targets


def no_text(value: Any, name: str) -> None:
    """Raise `InputError` for text where numbers belong, also for text that looks like numbers.

    scikit-learn converts what it can: a column that was read as text would be taken for numbers.
    """
    if is_lazy(value):
        return
    try:
        array = np.asarray(value)
    except Exception:  # what is no array is for validators to complain of
        return
    kind = array.dtype.kind
    if kind in "SUT" or (kind == "O" and any(isinstance(one, (str, bytes)) for one in array.flat)):
        raise InputError(
            f"{name} must be numbers, and there is text in it: convert what are numbers, "
            f"np.asarray({name}, dtype=float)"
            + (
                ", or hand over a data frame, whose columns of text are levels"
                if name == "X"
                else ""
            )
        )


def weighed(sample_weight: ArrayLike | None, points: Array, *others: Any) -> tuple[Any, ...]:
    """Check sample weights and drop the rows of weight 0.

    Parameters
    ----------
    sample_weight : array-like, shape (N,), or None
        Powers of the single likelihoods.
    points : ndarray, shape (N, d)
    others : ndarray, shape (N,)
        What else has a row per point.

    Returns
    -------
    weights : ndarray, shape (M,), or None
        Those above 0; None if all of these are 1.
    points, *others : ndarray
        Their M rows.

    Raises
    ------
    ValueError
        If the weights are no finite numbers of 0 or more for each row; `InputError` if none is
        above 0.
    """
    if sample_weight is None:
        return None, points, *others
    no_text(sample_weight, "sample_weight")
    given: Array = checked(_check_sample_weight, sample_weight, points, ensure_non_negative=True)
    kept = given > 0.0
    if not kept.any():
        raise InputError("every sample weight is zero: nothing is left to fit")
    weights = None if (given[kept] == 1.0).all() else given[kept]
    if is_lazy(points):
        if not kept.all():
            raise InputError("rows of weight 0 cannot be left out of what is read in parts: do so")
        return weights, points, *others
    return weights, *(rows[kept] for rows in (points, *others))


def _whole(model: Any, X: Any) -> bool:
    """Whether rows that could be read in parts are taken at once: for the dense engine."""
    if left_open(model.inducing):
        return len(getattr(X, "shape", ())) == 2 and X.shape[0] <= DENSE
    return model.inducing is None
