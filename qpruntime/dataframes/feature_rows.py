"""Rows of features as users pass them, read once: a table of any library, or rows read in parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._typing import Array
from qpruntime._validation import floats, no_text, unmasked
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.lazy_rows import LazyInputs, as_array, inputs_of, is_lazy, known_chunks
from qpruntime.dataframes.readers import Column, Frame, columns_of, is_frame, of_array
from qpruntime.errors import InputError

__all__ = ["FeatureRows", "read_rows"]

# The median of a column is taken over at most this many evenly spaced rows.
_MEDIAN_ROWS = 20_000


@dataclass(frozen=True)
class FeatureRows:
    """Rows of features as they were read.

    Attributes
    ----------
    source : Frame
        The rows as scikit-learn can validate them: masked entries are missing values.
    table : EncodedTable or None
        Levels and medians of columns; None for rows that are read in parts.
    columns : list of Column or None
        Columns that `points` encodes; None if scikit-learn reads `source` just as well.
    stored : LazyInputs or None
        The rows, if they are read in parts.
    learnt : bool
        True if the table is that of these rows.
    """

    source: Frame
    table: EncodedTable | None = None
    columns: list[Column] | None = None
    stored: LazyInputs | None = None
    learnt: bool = False

    def points(self) -> Array | None:
        """Return the rows as numbers, shape (N, d + gaps); None if there are no columns."""
        if self.columns is None or self.table is None:
            return None
        return self.table.matrix(self.columns, silent=self.learnt)


def read_rows(
    X: Frame,
    known: EncodedTable | None = None,
    *,
    learn: bool = False,
    sample_weight: ArrayLike | None = None,
    most: float = math.inf,
) -> FeatureRows:
    """Read rows of features.

    Parameters
    ----------
    X : Frame, shape (N, d)
        An array, a data frame, or rows that can be read in parts: zarr, memory maps, dask.
    known : EncodedTable, optional
        Encoding of the rows of a fit.
    learn : bool
        Learn the encoding from these rows, instead of reading them by `known`.
    sample_weight : array-like, shape (N,), optional
        The encoding is learnt from rows of a weight above 0.
    most : float
        Rows that can be read in parts are read in parts if there are more than so many.

    Raises
    ------
    InputError
        If a column cannot be read.
    """
    if hasattr(X, "toarray"):  # a sparse matrix, which scikit-learn refuses
        return FeatureRows(X)
    if is_lazy(X):
        if most < math.inf:
            rows = known_chunks(X, "X")
            if len(rows.shape) != 2 or rows.shape[0] > most:
                return FeatureRows(X, stored=inputs_of(rows, "X"))
        X = _in_memory(X)
    X = unmasked(X, "X", missing=True)
    counted = _counted(sample_weight, X) if learn else None
    columns = _columns(X, known)
    if columns is None:
        no_text(X, "X")
        return FeatureRows(X, _medians(X, counted) if learn else known)
    weighted = columns if counted is None else [column.take(counted) for column in columns]
    table = EncodedTable.of(weighted) if learn else known
    if table is None:
        raise InputError(
            "the fit was to rows that were read in parts: give numbers without missing values"
        )
    first = weighted[0]
    if len(weighted) == 1 and first.numbers is not None and np.isnan(first.numbers).any():
        raise InputError(
            f"column {first.name} is the only one, so it has the times of a series, and it has "
            "missing values (NaN): leave these rows out"
        )
    return FeatureRows(X, table, columns, learnt=learn)


def _in_memory(X: Any) -> NDArray[Any]:
    """Return rows that could be read in parts as an array."""
    try:
        return np.asarray(as_array(X, "X"))
    except (TypeError, ValueError):
        raise
    except Exception as error:  # whatever storage and clusters raise
        raise InputError(f"the data cannot be read: {error}") from error


def _columns(X: Frame, known: EncodedTable | None) -> list[Column] | None:
    """Return the columns of a table; None if scikit-learn reads it just as well."""
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


def _numeric(X: Frame) -> bool:
    """Decide whether a data frame has numbers of numpy alone, all of them finite."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [d.kind if isinstance(d, np.dtype) else "" for d in getattr(dtypes, "values", [""])]
    numbers = all(kind and kind in "biuf" for kind in kinds)
    return numbers and bool(np.isfinite(X.to_numpy(dtype=float)).all())


def _has_gaps(array: NDArray[Any]) -> bool:
    """Decide whether a matrix of objects has missing entries, and no text."""
    if any(isinstance(entry, (str, bytes)) for entry in array.flat):
        return False
    return any(
        entry is None
        or type(entry).__name__ == "NAType"
        or (isinstance(entry, float) and entry != entry)
        for entry in array.flat
    )


def _counted(sample_weight: ArrayLike | None, X: Frame) -> NDArray[np.intp] | None:
    """Return the rows of a weight above 0; None for all, and for what are no weights of rows."""
    if sample_weight is None:
        return None
    try:
        weights = floats(sample_weight)
    except TypeError:  # of which `weighed` complains
        return None
    rows = len(X) if hasattr(X, "__len__") else len(np.asarray(X))
    if weights.shape != (rows,) or not (weights > 0.0).any() or (weights > 0.0).all():
        return None
    return np.flatnonzero(weights > 0.0)


def _medians(X: Frame, counted: NDArray[np.intp] | None) -> EncodedTable | None:
    """Return the medians that replace missing numbers in later rows."""
    try:
        numbers = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
        if counted is not None:
            numbers = numbers[counted]
        numbers = np.asarray(numbers[:: len(numbers) // _MEDIAN_ROWS + 1], dtype=float)
        return EncodedTable.of(of_array(numbers, [str(k) for k in range(numbers.shape[1])]))
    except Exception:  # no matrix of numbers, of which validators complain
        return None
