"""Tables that users hand to estimators: their columns by name, as numbers and levels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import _check_feature_names, _check_n_features

from qpruntime.arrays import Array
from qpruntime.columns.frames import Column, columns_of, is_frame, of_array
from qpruntime.columns.table import Table
from qpruntime.errors import InputError
from qpruntime.inference.sparse.lazy import is_lazy
from qpruntime.kernels.categorical import Categories
from qpruntime.kernels.columns import On
from qpruntime.kernels.same import Same
from qpruntime.kernels.tree import Added, Multiplied, Node, Seen, read
from qpruntime.learning.data import Data
from qpruntime.learning.settings import Settings
from qpruntime.validation import shown

__all__ = ["kernel_of_table", "levels_of", "matrix_of", "on_columns", "with_table"]

# Of more rows so many, evenly spaced, say what the middle of a column is.
_ROWS = 20_000


def matrix_of(model: Any, X: Any, reset: bool) -> Array | None:
    """Return a table as a matrix of numbers; None for one that scikit-learn reads as it is.

    With `reset` the table is looked at, and what is seen is stored in ``model.columns_``; without
    it the table is read as the one before was. That one may be missing: models of before have none.

    Raises
    ------
    InputError
        If a column cannot be read; names that differ are reported as scikit-learn does.
    """
    if is_lazy(X):
        return None
    if hasattr(X, "toarray") or np.ma.isMaskedArray(X):
        return None
    known: Table | None = None if reset else getattr(model, "columns_", None)
    columns = _columns(X, known)
    if columns is None:
        if reset:
            model.columns_ = _middle(X)
        return None
    if reset:
        table = Table.of(columns)
        if not (table.plain or getattr(model, "takes_levels", False)):
            raise _numbers_only(model, table)
        model.columns_ = table
    elif known is None:
        raise InputError(
            f"{type(model).__name__} was fitted to rows that were read in parts, or by a version "
            "before: give numbers, none of them missing"
        )
    else:
        table = known
    if len(columns) == 1 and columns[0].numbers is not None and np.isnan(columns[0].numbers).any():
        raise InputError(
            f"column {columns[0].name} is the only one, as the times of a series are, and has "
            "missing values, NaN: leave these rows out"
        )
    names = _names_first(X)
    try:
        _check_feature_names(model, names, reset=reset)
        _check_n_features(model, names, reset=reset)
    except ValueError as error:
        raise InputError(str(error)) from error
    return table.matrix(columns)


def levels_of(model: Any) -> tuple[int, ...]:
    """Columns of the matrix of a fitted table that are codes of levels."""
    table: Table | None = getattr(model, "columns_", None)
    return () if table is None else table.categorical


def on_columns(model: Any, estimator: Any) -> Any:
    """Let a pipeline have the columns of a data frame in place of codes of its levels.

    Other estimators, and pipelines of arrays, are returned as they are; so are all where pandas is
    missing.
    """
    table: Table | None = getattr(model, "columns_", None)
    named = getattr(model, "feature_names_in_", None)
    if not isinstance(estimator, Pipeline) or named is None or find_spec("pandas") is None:
        return estimator
    if table is None or len(table.names) != len(named):
        return estimator
    own = FunctionTransformer(partial(table.frame, tuple(named)))
    return Pipeline([("columns", own), ("estimator", estimator)])


def with_table(model: Any, processes: Any, settings: Settings) -> tuple[list[Data], Settings]:
    """Return processes that know which columns are levels, and the kernel that is given for them.

    Names of columns in it become numbers. Where numbers are missing the kernel is multiplied by one
    of what is missing.

    Raises
    ------
    InputError
        If the kernel takes codes of levels for numbers, or a series is asked for.
    """
    levels, settings = levels_of(model), kernel_of_table(model, settings)
    if not levels:
        return list(processes), settings
    if settings.solver == "markov":
        raise InputError(
            'solver="markov" takes one column of numbers, none of them missing, and '
            f"{_which(model.columns_)}: leave it out"
        )
    if getattr(model, "monotone", None):
        raise InputError(
            f"monotone takes columns of numbers, none of them missing, and "
            f"{_which(model.columns_)}: encode it, or leave monotone out"
        )
    return [replace(data, levels=levels) for data in processes], settings


def kernel_of_table(model: Any, settings: Settings) -> Settings:
    """Return settings whose kernel, if one is given, is of the matrix of the model's table."""
    if not isinstance(settings.kernel, Kernel):
        return settings
    return replace(settings, kernel=_of_matrix(model, settings.kernel))


def _of_matrix(model: Any, kernel: Kernel) -> Kernel:
    table: Table | None = getattr(model, "columns_", None)
    kernel = _numbered(kernel, [str(one) for one in getattr(model, "feature_names_in_", ())])
    if table is None or table.plain:
        return kernel
    count = len(table.names)
    own = frozenset(k for k in table.categorical if k < count)
    for k in sorted(own & _measured(read(kernel), frozenset(range(count)))):
        name = table.names[k]
        raise InputError(
            f"the kernel measures distances in column {name}, whose values are levels: give one "
            f"for it, On(Matern(), [columns of numbers]) * Categories([{name}]), of "
            "qpruntime.kernels, or leave kernel=None"
        )
    if not table.gaps:
        return kernel
    gaps = Categories([count + k for k in range(len(table.gaps))])
    return On(kernel, list(range(count))) * gaps


def _columns(X: Any, known: Table | None) -> list[Column] | None:
    """Columns of X, if it is a table that scikit-learn does not read, or not as this one."""
    mixed = known is not None and not known.plain
    if is_frame(X):
        return None if not mixed and _numeric(X) else columns_of(X)
    array = X
    if not isinstance(X, np.ndarray):
        try:
            array = np.asarray(X)
        except Exception:  # what is no array is for validators to complain of
            return None
    if array.ndim != 2 or array.dtype.kind not in "biufO" or 0 in array.shape:
        return None
    if array.dtype.kind == "O" and not mixed and not _has_gaps(array):
        return None
    if array.dtype.kind == "f" and not mixed and np.isfinite(array).all():
        return None
    if array.dtype.kind in "biu" and not mixed:
        return None
    return of_array(array, [str(k) for k in range(array.shape[1])])


def _numeric(X: Any) -> bool:
    """Whether a data frame has numbers of numpy alone, all of them finite."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [d.kind if isinstance(d, np.dtype) else "" for d in getattr(dtypes, "values", [""])]
    numbers = all(one and one in "biuf" for one in kinds)
    return numbers and bool(np.isfinite(X.to_numpy(dtype=float)).all())


def _has_gaps(array: Any) -> bool:
    """Whether a matrix of objects has missing entries, and no text."""
    if any(isinstance(one, (str, bytes)) for one in array.flat):
        return False
    return any(
        one is None or type(one).__name__ == "NAType" or (isinstance(one, float) and one != one)
        for one in array.flat
    )


def _middle(X: Any) -> Table | None:
    """What stands for numbers that are missing in rows to come."""
    try:
        some = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
        some = np.asarray(some[:: len(some) // _ROWS + 1], dtype=float)
        return Table.of(of_array(some, [str(k) for k in range(some.shape[1])]))
    except Exception:  # no matrix of numbers, of which validators complain
        return None


def _names_first(X: Any) -> Any:
    """X itself where it has names; rows of as many columns where it has none."""
    return X if is_frame(X) else np.empty(np.shape(X))


def _numbers_only(model: Any, table: Table) -> InputError:
    return InputError(
        f"{type(model).__name__} takes numbers, none of them missing, and {_which(table)}: encode "
        "levels, and leave rows out or fill values in"
    )


def _which(table: Table) -> str:
    for name, levels in zip(table.names, table.levels, strict=True):
        if levels is not None:
            return f"column {name} has levels"
    return f"column {table.names[table.gaps[0]]} has missing values, NaN"


def _numbered(kernel: Kernel, names: list[str]) -> Kernel:
    """Return a kernel with numbers of columns in place of their names."""
    own = kernel.get_params(deep=False)
    changed = {k: _numbered(v, names) for k, v in own.items() if isinstance(v, Kernel)}
    if isinstance(kernel, (On, Categories)) and any(isinstance(k, str) for k in kernel.columns):
        changed["columns"] = [
            _number(k, names) if isinstance(k, str) else k for k in kernel.columns
        ]
    if all(changed[name] is own[name] for name in changed):
        return kernel
    return type(kernel)(**(own | changed))


def _number(name: str, names: list[str]) -> int:
    if name not in names:
        have = f"it has {shown(names)}" if names else "X has no names: give numbers from 0"
        raise InputError(f"the kernel has a column {name!r}, which X has not: {have}")
    return names.index(name)


def _measured(node: Node, columns: frozenset[int]) -> frozenset[int]:
    """Columns, of those given, in which a kernel measures distances or slopes."""
    if isinstance(node, (Added, Multiplied)):
        return _measured(node.one, columns) | _measured(node.two, columns)
    if isinstance(node, Seen):
        own = [int(k) for k in node.kernel.columns]
        inner = _measured(node.inner, frozenset(range(len(own))))
        return frozenset(own[k] for k in inner) & columns
    parts = node.parts
    apart = parts.levels or parts.constant or parts.noise or isinstance(node.kernel, Same)
    known = parts.shape is not None or parts.state_space is not None
    return frozenset() if apart or not known else columns
