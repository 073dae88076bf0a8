"""Tables with one column changed: permuted, or the same in every row; the user's own stays."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.columns.frames import is_frame

__all__ = ["column_numbers", "held", "names_of", "permuted", "rows_of"]


def names_of(X: Any) -> list[str]:
    """Names of the columns of a table; those of an array are their numbers."""
    if hasattr(X, "column_names"):
        return [str(name) for name in X.column_names]
    return [str(name) for name in (X.columns if is_frame(X) else range(np.shape(X)[1]))]


def column_numbers(X: Any, wanted: Any) -> list[int]:
    """Numbers of columns that are given by name or number, -1 for those that there are not."""
    names = names_of(X)
    found = []
    for one in wanted:
        if isinstance(one, str):
            found.append(names.index(one) if one in names else -1)
        else:
            whole = isinstance(one, (int, np.integer)) and not isinstance(one, bool)
            found.append(int(one) if whole and 0 <= one < len(names) else -1)
    return found


def rows_of(X: Any, some: NDArray[np.intp]) -> Any:
    """Return some rows, in this order."""
    if hasattr(X, "iloc"):
        return X.iloc[some]
    if hasattr(X, "column_names"):
        return X.take(some)
    return X[some] if is_frame(X) else np.asarray(X)[some]


def permuted(X: Any, k: int, order: NDArray[np.intp]) -> Any:
    """Return a table whose k-th column is in another order."""
    if hasattr(X, "iloc"):
        found = X.copy()
        found.isetitem(k, X.iloc[:, k].iloc[order].array)
        return found
    if hasattr(X, "column_names"):
        return X.set_column(k, X.column_names[k], X.column(k).take(order))
    if is_frame(X):
        return X.with_columns(X[:, k][order].alias(X.columns[k]))
    found = np.array(X, copy=True)
    found[:, k] = found[order, k]
    return found


def held(X: Any, k: int, value: Any) -> Any:
    """Return a table whose k-th column has this value in every row; None is missing."""
    if hasattr(X, "iloc"):
        found = X.copy()
        found.isetitem(k, [value] * len(X))
        return found
    if hasattr(X, "column_names"):
        return X.set_column(k, X.column_names[k], [[value] * len(X)])
    if is_frame(X):
        own = copy.copy(X[:, k])
        return X.with_columns(type(own)(X.columns[k], [value] * len(X)))
    plain = np.asarray(X)
    found = plain.astype(object if plain.dtype.kind == "O" else float)
    found[:, k] = np.nan if value is None and found.dtype.kind == "f" else value
    return found
