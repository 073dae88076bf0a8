"""Inputs, targets, weights and labels of an estimator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_X_y,
    column_or_1d,
    validate_data,
)

from qpruntime._typing import Array
from qpruntime._validation import no_text, shown, unmasked
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.lazy_rows import FeatureRows, LazyInputs, as_array, read_rows
from qpruntime.dataframes.levels import (
    is_missing,
    kinds_of,
    level_keys,
    level_values,
    numbers_of,
    sorted_levels,
)
from qpruntime.dataframes.readers import (
    ColumnLike,
    Frame,
    array_of,
    is_frame,
)
from qpruntime.errors import InputError
from qpruntime.kernels.mixed_inputs import Categories, On, Same
from qpruntime.kernels.registry import Added, Multiplied, Node, Seen, read
from qpruntime.learning.inputs import Inputs, RowGroups
from qpruntime.learning.model_selection.budget import DENSE_ROW_LIMIT
from qpruntime.learning.options import Settings, left_open
from qpruntime.likelihoods import Likelihood

__all__ = [
    "check_announced",
    "check_labels",
    "check_signs",
    "checked",
    "classes_of",
    "fit_data",
    "group_codes",
    "kernel_of_columns",
    "on_columns",
    "refuse_levels",
    "rows_of_model",
    "signs_of",
    "weighed",
]

# --- Class labels --------------------------------------------------------------------------------


def check_labels(labels: NDArray[Any]) -> None:
    """Raise `ValueError` unless labels are of classes, and of one type, which can be sorted."""
    if labels.dtype.kind == "O" and not all(isinstance(label, str) for label in labels):
        types = sorted({type(label).__name__ for label in labels})
        if len(types) > 1:
            raise InputError(
                f"labels must be of one type, got {' and '.join(types)}: leave out rows without a "
                "label, or make all labels strings"
            )
    checked(check_classification_targets, labels)


def check_announced(classes: ArrayLike, labels: ArrayLike) -> None:
    """Raise `InputError` unless the first part has rows of every class announced, and no others."""
    if (missing := np.setdiff1d(classes, labels)).size:
        raise InputError(
            f"the first part has no rows of {missing.tolist()}, and kernels are learnt from "
            "it: start with rows of every class"
        )
    if (more := np.setdiff1d(labels, classes)).size:
        raise InputError(
            f"y has labels {more.tolist()} that are not in classes={np.ravel(classes).tolist()}: "
            "name all, or leave classes out"
        )


def classes_of(labels: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the classes, sorted; `name` is that of the estimator that needs two or more."""
    classes = np.unique(labels)
    if classes.size < 2:
        raise InputError(f"{name} needs two classes or more, got one class: {classes.tolist()}")
    return classes


def signs_of(
    labels: NDArray[Any], classes: NDArray[Any], kind: type[np.number[Any]] = np.float64
) -> list[Array]:
    """Return +1 and -1 for the second of two classes, or for each of several against the rest."""
    positive = classes[1:] if classes.size == 2 else classes
    return [np.where(labels == label, kind(1), kind(-1)) for label in positive]


def check_signs(likelihood: Likelihood) -> None:
    """Raise `InputError` unless the likelihood takes the labels -1 and +1, and not any number."""
    try:
        likelihood.validate((-1.0, 1.0))
    except InputError as error:
        raise _no_classes(likelihood) from error
    try:
        likelihood.validate((0.5,))
    except InputError:
        return
    raise _no_classes(likelihood)


def _no_classes(likelihood: Likelihood) -> InputError:
    return InputError(
        f"the likelihood {likelihood.name!r} is not one of two classes: it takes "
        f"{likelihood.outcomes}; GPClassifier needs the labels -1 and +1, as 'probit', 'logistic' "
        "and 'heaviside' take them"
    )


# --- Rows, targets and weights -------------------------------------------------------------------

# Sums of squares of larger numbers overflow.
_LARGEST = 1e150


def checked(validate: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Call a validator of scikit-learn on data that may be anything.

    Its own exceptions are `ValueError`, and `TypeError` for sparse matrices; what foreign objects
    raise on the way becomes an `InputError`, as do masked entries, which it would take for data.
    """
    arrays = tuple(unmasked(array, "the data") for array in arrays)
    try:
        with np.errstate(all="ignore"):
            validated = validate(*arrays, **options)
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise InputError(f"the data cannot be converted to numbers: {error}") from error
    for array in validated if isinstance(validated, tuple) else (validated,):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size:
            reach = float(np.abs(array).max())
            if reach > _LARGEST:
                raise InputError(
                    f"the data reach {reach:.3g}, and squared distances overflow beyond "
                    f"{_LARGEST:g}: use other units, or a StandardScaler"
                )
    return validated


def fit_data(
    model: BaseEstimator,
    X: Frame,
    y: ColumnLike,
    sample_weight: ArrayLike | None = None,
    reset: bool = True,
    **options: Any,
) -> tuple[Inputs, NDArray[Any]]:
    """Validate training data; with inducing points, rows that are read in parts stay in place.

    Zarr arrays, memory maps, dask arrays and data frames are read in parts, as by
    `qpruntime.infer_sparse`.
    Levels and medians of columns are learnt from rows whose `sample_weight` is not 0; `weighed`
    validates weights and drops the other rows.
    """
    y = _targets(y)
    if options.get("y_numeric"):
        no_text(y, "y")
    rows = rows_of_model(model, X, reset, sample_weight, _most(model))
    if rows.stored is not None:
        return _stored(model, rows.stored, y, reset)
    if (matrix := rows.points()) is not None:
        checks = {"dtype": np.float64, "estimator": model, **options}
        points, targets = checked(check_X_y, matrix, y, **checks)
    else:
        checks = {"dtype": np.float64, "reset": reset, **options}
        points, targets = checked(validate_data, model, rows.source, y, **checks)
    names = tuple(str(name) for name in getattr(model, "feature_names_in_", ()))
    return Inputs(points, names, model.columns_), targets


def _stored(
    model: BaseEstimator, X: LazyInputs, y: ColumnLike, reset: bool
) -> tuple[Inputs, NDArray[Any]]:
    """Return rows that are read in parts, and targets that belong to them."""
    inputs = Inputs(X)
    targets = checked(column_or_1d, y)
    if len(targets) != len(inputs):
        raise InputError(f"y must have {len(inputs)} rows like X, got {len(targets)}")
    if reset:
        model.n_features_in_ = inputs.width
    elif inputs.width != model.n_features_in_:
        raise InputError(
            f"X must have {model.n_features_in_} columns as before, got {inputs.width}"
        )
    return inputs, targets


def _targets(y: ColumnLike) -> ColumnLike:
    """Return targets of any library as NumPy has them: nullable booleans stay booleans.

    Raises
    ------
    InputError
        If entries are masked or missing.
    """
    y = as_array(y, "y")
    if hasattr(y, "to_pylist") or (hasattr(y, "to_numpy") and hasattr(y, "dtype")):
        y = array_of(y, "y")
    y = unmasked(y, "y")
    if isinstance(y, np.ndarray) and y.dtype.kind in "fO" and y.ndim == 1:
        missing = (
            np.isnan(y) if y.dtype.kind == "f" else np.array([is_missing(target) for target in y])
        )
        if missing.any():
            kind = "label" if any(isinstance(target, (str, bool)) for target in y) else "value"
            raise InputError(
                f"y has no {kind} in row {np.argmax(missing)}, NaN: leave the {missing.sum()} rows "
                "without one out"
            )
    return y


def weighed(
    sample_weight: ArrayLike | None, inputs: Inputs, *columns: Any, groups: ArrayLike | None = None
) -> tuple[Any, ...]:
    """Check sample weights and labels of groups, and drop the rows of weight 0.

    Parameters
    ----------
    sample_weight : array-like, shape (N,), or None
        Powers of the single likelihoods.
    inputs : Inputs
        N rows.
    columns : ndarray, shape (N,), or None
        What else has a row per point.
    groups : array-like, shape (N,), optional
        Rows with equal labels are left out together; by default those with equal features.

    Returns
    -------
    weights : ndarray, shape (M,), or None
        Those above 0; None if all of these are 1.
    inputs, *columns : Inputs, ndarray
        Their M rows.

    Raises
    ------
    ValueError
        If the weights are no finite numbers of 0 or more for each row; `InputError` if none is
        above 0.
    """
    codes, weights, others = group_codes(groups, len(inputs)), None, list(columns)
    if sample_weight is not None:
        sample_weight = unmasked(sample_weight, "sample_weight")
        no_text(sample_weight, "sample_weight")
        weights = checked(
            _check_sample_weight, sample_weight, inputs.rows, ensure_non_negative=True
        )
        kept = weights > 0.0
        if not kept.any():
            raise InputError("every sample weight is zero: nothing is left to fit")
        if not kept.all():
            if inputs.stored:
                raise InputError(
                    "rows of weight 0 are not possible in data that are read in parts: remove them"
                )
            inputs = replace(inputs, rows=inputs.X[kept])
            codes, *others = (None if a is None else a[kept] for a in (codes, *others))
        weights = None if (weights[kept] == 1.0).all() else weights[kept]
    return weights, replace(inputs, groups=RowGroups(inputs.rows, codes)), *others


def group_codes(groups: ArrayLike | None, n: int) -> NDArray[np.intp] | None:
    """Return the number of the group of each of n rows; None where there are no groups.

    Raises
    ------
    InputError
        If there is not one label for each row, or labels are missing or have no order.
    """
    if groups is None:
        return None
    labels = np.asarray(unmasked(groups, "groups"))
    if labels.shape != (n,):
        raise InputError(
            f"groups must have shape ({n},), a label for each row of X; got {labels.shape}"
        )
    if any(map(is_missing, labels)):
        raise InputError("groups has missing labels: give each row a group of its own, or drop it")
    levels = level_values(labels, "groups")
    known = sorted_levels(levels)
    if len(kinds_of(level_keys(known))) > 1:
        raise InputError("groups must be labels of one type: all numbers, or all text")
    return numbers_of(levels, known).astype(np.intp)


def _most(model: BaseEstimator) -> float:
    """Return how many rows that could be read in parts are read at once, for the dense engine."""
    if left_open(model.inducing):
        return DENSE_ROW_LIMIT
    return math.inf if model.inducing is None else 0.0


# --- Data frames ---------------------------------------------------------------------------------


def rows_of_model(
    model: BaseEstimator,
    X: Frame,
    reset: bool,
    sample_weight: ArrayLike | None = None,
    most: float = math.inf,
) -> FeatureRows:
    """Read rows for a model, and check the names of their columns.

    If `reset` is True, the encoding of columns is learnt and stored as ``model.columns_``.
    Otherwise the rows are read by the stored encoding. A fit to rows that are read in parts, of
    which there are more than `most`, stores none.

    Raises
    ------
    InputError
        If a column cannot be read; names that differ are reported as scikit-learn does.
    """
    known = None if reset else getattr(model, "columns_", None)
    rows = read_rows(X, known, learn=reset, sample_weight=sample_weight, most=most)
    table = rows.table
    if reset:
        takes_levels = getattr(model, "takes_levels", False)
        if table is not None and not (table.plain or takes_levels):
            raise InputError(
                f"{type(model).__name__} takes numbers, none of them missing, and "
                f"{_which(table)}: encode levels, and leave rows out or fill values in"
            )
        model.columns_ = table
    if rows.columns is None:
        return rows
    # Rows of as many columns stand for X if columns have no names.
    names = rows.source if is_frame(rows.source) else np.empty(np.shape(rows.source))
    try:
        _check_feature_names(model, names, reset=reset)
        _check_n_features(model, names, reset=reset)
    except ValueError as error:
        raise InputError(str(error)) from error
    return rows


def on_columns(inputs: Inputs, estimator: BaseEstimator) -> BaseEstimator:
    """Let a pipeline have the columns of a data frame in place of codes of its levels.

    Other estimators, and pipelines of arrays, are returned as they are; so are all where pandas is
    missing.
    """
    names, table = inputs.names, inputs.table
    if not isinstance(estimator, Pipeline) or not names or find_spec("pandas") is None:
        return estimator
    if table is None or len(table.names) != len(names):
        return estimator
    frames = FunctionTransformer(partial(table.frame, names))
    return Pipeline([("columns", frames), ("estimator", estimator)])


def refuse_levels(model: BaseEstimator, table: EncodedTable | None, settings: Settings) -> None:
    """Raise `InputError` for options that take columns of numbers, if there are others."""
    if table is None or table.plain:
        return
    if settings.solver == "markov":
        raise InputError(
            'solver="markov" takes one column of numbers, none of them missing, and '
            f"{_which(table)}: leave it out"
        )
    if getattr(model, "monotone", None):
        raise InputError(
            f"monotone takes columns of numbers, none of them missing, and "
            f"{_which(table)}: encode it, or leave monotone out"
        )


def kernel_of_columns(inputs: Inputs, settings: Settings) -> Settings:
    """Return settings whose kernel, if one is given, is of the matrix of the inputs.

    Names of columns in it become numbers. If numbers are missing, the kernel is multiplied by a
    kernel of the indicators of missing values.

    Raises
    ------
    InputError
        If the kernel takes codes of levels for numbers.
    """
    if not isinstance(settings.kernel, Kernel):
        return settings
    table, kernel = inputs.table, _numbered(settings.kernel, list(inputs.names))
    if table is None or table.plain:
        return replace(settings, kernel=kernel)
    count = len(table.names)
    categorical = frozenset(k for k in table.categorical if k < count)
    for k in sorted(categorical & _measured(read(kernel), frozenset(range(count)))):
        name = table.names[k]
        raise InputError(
            f"the kernel measures distances in column {name}, whose values are levels: use "
            f"On(Matern(), [columns of numbers]) * Categories([{name}]) of qpruntime.kernels, "
            "or leave kernel=None"
        )
    if table.gaps:
        gaps = Categories([count + k for k in range(len(table.gaps))])
        kernel = On(kernel, list(range(count))) * gaps
    return replace(settings, kernel=kernel)


def _which(table: EncodedTable) -> str:
    for name, levels in zip(table.names, table.levels, strict=True):
        if levels is not None:
            return f"column {name} has levels"
    return f"column {table.names[table.gaps[0]]} has missing values, NaN"


def _numbered(kernel: Kernel, names: list[str]) -> Kernel:
    """Return a kernel with numbers of columns in place of their names."""
    parameters = kernel.get_params(deep=False)
    changed = {k: _numbered(v, names) for k, v in parameters.items() if isinstance(v, Kernel)}
    if isinstance(kernel, (On, Categories)) and any(isinstance(k, str) for k in kernel.columns):
        changed["columns"] = [
            _number(k, names) if isinstance(k, str) else k for k in kernel.columns
        ]
    if all(changed[name] is parameters[name] for name in changed):
        return kernel
    return type(kernel)(**(parameters | changed))


def _number(name: str, names: list[str]) -> int:
    if name not in names:
        have = f"it has {shown(names)}" if names else "X has no names: give numbers from 0"
        raise InputError(f"the kernel names the column {name!r}, which X does not have: {have}")
    return names.index(name)


def _measured(node: Node, columns: frozenset[int]) -> frozenset[int]:
    """Return those of the given columns in which a kernel measures distances or slopes."""
    if isinstance(node, (Added, Multiplied)):
        return _measured(node.first, columns) | _measured(node.second, columns)
    if isinstance(node, Seen):
        of_inner = [int(k) for k in node.kernel.columns]
        inner = _measured(node.inner, frozenset(range(len(of_inner))))
        return frozenset(of_inner[k] for k in inner) & columns
    parts = node.parts
    apart = parts.levels or parts.constant or parts.noise or isinstance(node.kernel, Same)
    known = parts.shape is not None or parts.state_space is not None
    return frozenset() if apart or not known else columns
