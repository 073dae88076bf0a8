"""What each column is worth to a fitted model: log predictive density lost without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.columns.changed import column_numbers, names_of, permuted
from qpruntime.errors import InputError
from qpruntime.validation import generator, shown, whole

__all__ = ["Importance", "log_densities", "permutation_importance"]


@dataclass(frozen=True, eq=False, repr=False)
class Importance:
    """What columns are worth to predictions.

    Attributes
    ----------
    names : tuple of str
    loss : ndarray, shape (d,)
        Mean log predictive density of a row less that with the column permuted, in nats.
    se : ndarray, shape (d,)
        Standard errors: of the mean over rows, each by its mean over permutations.
    by_row : ndarray, shape (d, N)
        The losses of the rows.
    """

    names: tuple[str, ...]
    loss: Array
    se: Array
    by_row: Array

    def __repr__(self) -> str:
        order = np.argsort(-self.loss)[:8]
        parts = (f"{self.names[k]} {self.loss[k]:.4f} ({self.se[k]:.4f})" for k in order)
        more = f", and {len(self.names) - 8} more" if len(self.names) > 8 else ""
        return f"<Importance in nats a row: {', '.join(parts)}{more}>"


def permutation_importance(
    model: Any,
    X: Any,
    y: ArrayLike,
    *,
    columns: Sequence[int | str] | None = None,
    n_repeats: int = 10,
    random_state: int | np.random.Generator | None = None,
    **observed: ArrayLike,
) -> Importance:
    """Log predictive density that a model loses where a column is permuted among rows.

    As `sklearn.inspection.permutation_importance`, which takes these models as well, but in log
    predictive density and with standard errors over rows: those of scikit-learn are over
    permutations alone, and say nothing of how few rows there are. Columns that say the same stand
    in for each other: each then looks worth little.

    Parameters
    ----------
    model : fitted estimator
    X : data frame or array-like, shape (N, d)
        Rows that were not fitted, as the model takes them.
    y : array-like, shape (N,)
    columns : sequence of int or str, optional
        Only of these, by number or name.
    n_repeats : int
        Permutations of each column.
    random_state : int, Generator or None
    **observed
        What belongs to rows beside y: ``exposure`` of counts, ``event`` of times.

    Returns
    -------
    Importance

    Raises
    ------
    InputError
        If there is no such column, or the model has no log density of y.

    References
    ----------
    Breiman, 2001, Random Forests, Section 10; Fisher, Rudin and Dominici, 2019, Section 3.
    """
    check_is_fitted(model)
    repeats, rng = whole(n_repeats, "n_repeats", 1), generator(random_state)
    names = names_of(X)
    chosen = _chosen(X, columns)
    before = log_densities(model, X, y, **observed)
    if before.size < 2:
        raise InputError("rows are permuted: give two at least")
    by_row = np.zeros((len(chosen), before.size))
    for at, k in enumerate(chosen):
        for _ in range(repeats):
            moved = permuted(X, k, rng.permutation(before.size))
            by_row[at] += (before - log_densities(model, moved, y, **observed)) / repeats
    se = by_row.std(axis=1, ddof=1) / np.sqrt(before.size)
    return Importance(tuple(names[k] for k in chosen), by_row.mean(axis=1), se, by_row)


def log_densities(model: Any, X: Any, y: ArrayLike, **observed: ArrayLike) -> Array:
    """Log predictive density, or probability, of each row, shape (N,).

    Raises
    ------
    InputError
        If the model has none, or y has a label that it does not know.
    """
    for name in ("predict_log_density", "predict_log_pmf"):
        if hasattr(model, name):
            found: Array = np.asarray(getattr(model, name)(X, y, **observed))
            return found
    if not hasattr(model, "predict_proba"):
        raise InputError(f"{type(model).__name__} has no log density of observations")
    labels = np.asarray(y)
    unknown = ~np.isin(labels, model.classes_)
    if unknown.any():
        raise InputError(
            f"y has the label {shown(labels[unknown][0].item())}, and the model knows "
            f"{shown(model.classes_.tolist())}"
        )
    if hasattr(model, "predict_log_proba"):
        logs = np.asarray(model.predict_log_proba(X))
    else:
        logs = np.log(model.predict_proba(X))
    rows: Array = logs[np.arange(len(labels)), np.searchsorted(model.classes_, labels)]
    return rows


def _chosen(X: Any, columns: Sequence[int | str] | None) -> list[int]:
    """Numbers of columns; `InputError` for one that there is not."""
    names = names_of(X)
    if columns is None:
        return list(range(len(names)))
    found = column_numbers(X, columns)
    for one, k in zip(columns, found, strict=True):
        if k < 0:
            raise InputError(f"X has no column {shown(one)}: it has {shown(names)}")
    return found
