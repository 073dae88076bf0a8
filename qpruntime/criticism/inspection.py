"""Permutation importance and partial dependence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, generator, shown, whole
from qpruntime.dataframes.encoding import column_numbers, held, names_of, permuted, rows_of
from qpruntime.dataframes.levels import object_array
from qpruntime.dataframes.readers import columns_of, is_frame, of_array
from qpruntime.errors import InputError
from qpruntime.estimators.base import GPEstimator
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.predictive.density import log_density

if TYPE_CHECKING:
    from pandas import DataFrame

    #: Numbers or levels of a column.
    Values: TypeAlias = Sequence[Any] | NDArray[Any]
    #: A table as a user has it.
    Rows: TypeAlias = Values | DataFrame

__all__ = [
    "Importance",
    "PartialDependence",
    "log_densities",
    "partial_dependence",
    "permutation_importance",
]

# --- Partial dependence --------------------------------------------------------------------------

# Values of a column of numbers lie between these quantiles of it.
_TAILS = 0.05, 0.95
# Columns of no more values have all of them as places.
_FEW = 12


@dataclass(frozen=True, eq=False, repr=False)
class PartialDependence:
    """An average over rows for each value of one column, with a band.

    Attributes
    ----------
    name : str
        Of the column.
    values : ndarray, shape (G,)
        Of it: numbers, or levels, among which None stands for what is missing.
    categorical : bool
        Whether they are levels.
    middle, low, high : ndarray, shape (G,)
        The average, and the ends of its central interval: by what is not known of the function,
        not by how rows differ.
    kind : {"latent", "mean"}
    level : float
        Probability of the band.

    See Also
    --------
    qpruntime.criticism.partial_dependence, qpruntime.plotting.PartialDependenceDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> model = GPRegressor().fit(X[:40], np.sin(X[:40, 0]))
    >>> from qpruntime.criticism import partial_dependence
    >>> curve = partial_dependence(model, X[:40], 0, n_values=5)
    >>> curve.values.shape, bool(np.all(curve.low <= curve.high))
    ((5,), True)
    """

    name: str
    values: np.ndarray
    categorical: bool
    middle: Array
    low: Array
    high: Array
    kind: str
    level: float

    def __repr__(self) -> str:
        return (
            f"<PartialDependence of the {self.kind} on {self.name}: {len(self.values)} values, "
            f"{self.middle.min():.4g} to {self.middle.max():.4g}>"
        )


def partial_dependence(
    model: GPEstimator,
    X: Rows,
    column: int | str,
    *,
    kind: str = "mean",
    values: Values | None = None,
    n_values: int = 20,
    n_rows: int = 200,
    level: float = 0.9,
    n_draws: int = 500,
    random_state: int | np.random.Generator | None = 0,
) -> PartialDependence:
    """Average of the latent function, or of the predicted mean, over rows, by one column's value.

    The curve of `sklearn.inspection.partial_dependence`, which takes these models as well, with a
    band of the posterior. The average of the latent function is normal: its variance is the mean of
    the covariances of all pairs of rows, so that what rows have in common does not average out. The
    average of E[y|f] has quantiles of draws of f at all rows jointly. Both bands use the
    normal posterior, also if the model has a correction.

    Parameters
    ----------
    model : fitted estimator of one latent function
    X : data frame or array-like, shape (N, d)
        Rows to average over, such as those of the fit.
    column : int or str
        By number or name.
    kind : {"mean", "latent"}
        Mean of an observation, for two classes the probability of the second, of counts at exposure
        1; or the latent function.
    values : array-like, optional
        Of the column; by default its levels, or numbers between its 5 % and 95 % quantiles.
    n_values : int
        How many numbers.
    n_rows : int
        Of more rows so many are drawn.
    level : float
        Probability of the band, between 0 and 1.
    n_draws : int
        For "mean".
    random_state : int, Generator or None
        Of draws.

    Returns
    -------
    PartialDependence

    Raises
    ------
    InputError
        If the model is of several classes or has no mean of y given f, or there is no such column.

    See Also
    --------
    qpruntime.plotting.PartialDependenceDisplay, qpruntime.criticism.permutation_importance

    References
    ----------
    Friedman, 2001, Greedy Function Approximation, Section 8.2.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> model = GPRegressor().fit(X[:40], np.sin(X[:40, 0]))
    >>> from qpruntime.criticism import partial_dependence
    >>> curve = partial_dependence(model, X[:40], 0, values=[-1.0, 0.0, 1.0])
    >>> curve.middle.round(1).tolist()
    [-0.8, 0.0, 0.8]
    """
    check_is_fitted(model)
    choice(kind, "kind", ("mean", "latent"))
    rng, tails = generator(random_state), central_levels(level)
    if isinstance(model, GPClassifier) and len(model.classes_) > 2:
        raise InputError("partial dependence is of one latent function, not of several classes")
    (k,) = _chosen(X, [column])
    places, categorical = _places(X, k, values, whole(n_values, "n_values", 2))
    count, wanted = len(X), whole(n_rows, "n_rows", 1)
    if count > wanted:
        X = rows_of(X, np.sort(rng.choice(count, wanted, replace=False)))
    by_value = (held(X, k, value) for value in places)
    curves = [
        _latent_average(model, rows, tails)
        if kind == "latent"
        else _mean_average(model, rows, tails, n_draws, rng)
        for rows in by_value
    ]
    middle, low, high = np.array(curves).T
    name = names_of(X)[k]
    return PartialDependence(name, places, categorical, middle, low, high, kind, float(level))


def _latent_average(model: GPEstimator, rows: Rows, tails: Array) -> tuple[float, float, float]:
    """Average of the latent function over rows, and the ends of its interval."""
    latent: Callable[..., tuple[Array, Array]] = model.latent
    mean, covariance = latent(rows, full_covariance=True)
    reach = ndtri(tails[1]) * np.sqrt(covariance.mean())
    return mean.mean(), mean.mean() - reach, mean.mean() + reach


def _mean_average(
    model: GPEstimator, rows: Rows, tails: Array, n_draws: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Average of E[y|f] over rows, and the ends of its interval, from joint draws of f."""
    draws = _given(model, model.sample_latent(rows, n_draws, rng)).mean(axis=1)
    low, high = np.quantile(draws, tails)
    return _means(model, rows).mean(), low, high


def _places(X: Rows, k: int, values: Values | None, count: int) -> tuple[np.ndarray, bool]:
    """Values of a column, and whether they are levels."""
    if is_frame(X):
        column = columns_of(X)[k]
    else:
        plain: NDArray[Any] = np.asarray(X)
        column = of_array(plain[:, [k]], [str(k)])[0]
    if column.levels is not None:
        present = sorted({level for level in column.levels if level is not None}, key=str)
        gaps = [None] if None in column.levels else []
        levels = [*present, *gaps] if values is None else list(values)
        return object_array(levels), True
    if values is not None:
        return np.asarray(values, dtype=float), False
    assert column.numbers is not None
    known = np.unique(column.numbers[~np.isnan(column.numbers)])
    if known.size <= _FEW:
        return known, False
    ends = np.quantile(column.numbers[~np.isnan(column.numbers)], _TAILS)
    return np.linspace(ends[0], ends[1], count), False


def _given(model: GPEstimator, f: Array) -> Array:
    """Mean of an observation given latent values, in their shape."""
    if isinstance(model, GPClassifier):
        likelihood, flat = model.fitted_likelihood, f.ravel()
        if likelihood is not None:
            logs = log_density(likelihood, flat, np.zeros(flat.size), np.ones(flat.size))
            return np.exp(logs).reshape(f.shape)
    else:
        likelihood = getattr(model, "likelihood_", None)
        if (
            likelihood is not None
            and likelihood.given is not None
            and not hasattr(model, "thresholds_")
        ):
            centre, unit = model.latent_units()
            mean = likelihood.given((f - centre) / unit, likelihood.theta).mean()
            return np.asarray(centre + unit * mean)
    raise InputError(
        f"the mean of an observation given f is not known of {type(model).__name__}: use "
        'kind="latent"'
    )


def _means(model: GPEstimator, rows: Rows) -> Array:
    """Predicted means, shape (T,)."""
    if isinstance(model, GPClassifier):
        return model.predict_proba(rows)[:, 1]
    return np.asarray(model.predict(rows), dtype=float)


# --- Permutation importance ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Importance:
    """Importance of columns to predictions.

    Attributes
    ----------
    names : tuple of str
    loss : ndarray, shape (d,)
        Mean log predictive density of a row less that with the column permuted, in nats.
    se : ndarray, shape (d,)
        Standard errors: of the mean over rows, each by its mean over permutations.
    by_row : ndarray, shape (d, N)
        The losses of the rows.

    See Also
    --------
    qpruntime.criticism.permutation_importance, qpruntime.plotting.ImportanceDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> model = GPRegressor().fit(X[:40], np.sin(X[:40, 0]))
    >>> from qpruntime.criticism import permutation_importance
    >>> result = permutation_importance(model, X[40:], np.sin(X[40:, 0]), random_state=0)
    >>> result.loss.shape, result.by_row.shape
    ((2,), (2, 20))
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
    model: BaseEstimator,
    X: Rows,
    y: ArrayLike,
    *,
    columns: Sequence[int | str] | None = None,
    n_repeats: int = 10,
    random_state: int | np.random.Generator | None = None,
    **observed: ArrayLike,
) -> Importance:
    """Log predictive density that a model loses where a column is permuted among rows.

    This resembles `sklearn.inspection.permutation_importance`, which takes these models as well,
    but measures the log predictive density and has standard errors over rows. The errors of
    scikit-learn are over permutations alone and do not reflect a small number of rows. Columns that
    say the same stand in for each other: each then looks worth little.

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

    See Also
    --------
    qpruntime.plotting.ImportanceDisplay, qpruntime.criticism.partial_dependence

    References
    ----------
    Breiman, 2001, Random Forests, Section 10; Fisher, Rudin and Dominici, 2019, Section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2))
    >>> model = GPRegressor().fit(X[:40], np.sin(X[:40, 0]))
    >>> from qpruntime.criticism import permutation_importance
    >>> result = permutation_importance(model, X[40:], np.sin(X[40:, 0]), random_state=0)
    >>> result.names, (result.loss > 0.1).tolist()
    (('0', '1'), [True, False])
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


def log_densities(model: BaseEstimator, X: Rows, y: ArrayLike, **observed: ArrayLike) -> Array:
    """Log predictive density, or probability, of each row, shape (N,).

    Raises
    ------
    InputError
        If the model has none, or y has a label that it does not know.
    """
    for name in ("predict_log_density", "predict_log_pmf"):
        if hasattr(model, name):
            return np.asarray(getattr(model, name)(X, y, **observed))
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
    return logs[np.arange(len(labels)), np.searchsorted(model.classes_, labels)]


def _chosen(X: Rows, columns: Sequence[int | str] | None) -> list[int]:
    """Numbers of columns; `InputError` for one that there is not."""
    names = names_of(X)
    if columns is None:
        return list(range(len(names)))
    numbers = column_numbers(X, columns)
    for name, k in zip(columns, numbers, strict=True):
        if k < 0:
            raise InputError(f"X has no column {shown(name)}: it has {shown(names)}")
    return numbers
