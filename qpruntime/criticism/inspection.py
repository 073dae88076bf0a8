"""How predictions depend on one column, the others as they are in rows: averages with bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.columns.changed import column_numbers, held, names_of, rows_of
from qpruntime.columns.frames import columns_of, is_frame, of_array
from qpruntime.errors import InputError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.predictive.density import log_density
from qpruntime.validation import choice, generator, number, shown, whole

__all__ = ["PartialDependence", "partial_dependence"]

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
    model: Any,
    X: Any,
    column: int | str,
    *,
    kind: str = "mean",
    values: Any = None,
    n_values: int = 20,
    n_rows: int = 200,
    level: float = 0.9,
    n_draws: int = 500,
    random_state: int | np.random.Generator | None = 0,
) -> PartialDependence:
    """Average of the latent function, or of the predicted mean, over rows, by one column's value.

    The curve of `sklearn.inspection.partial_dependence`, which takes these models as well, with a
    band of the posterior. The average of the latent function is normal: its variance is the mean
    of the covariances of all pairs of rows, so that what rows have in common does not average out.
    The average of E[y|f] has quantiles of draws of f at all rows jointly. Of a model with a
    correction both bands are of the normal posterior.

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

    References
    ----------
    Friedman, 2001, Greedy Function Approximation, Section 8.2.
    """
    check_is_fitted(model)
    choice(kind, "kind", ("mean", "latent"))
    rng, inside = generator(random_state), number(level, "level", above=0.0)
    if inside >= 1.0:
        raise InputError(f"level must be below 1, got {inside:g}")
    if isinstance(model, GPClassifier) and len(model.classes_) > 2:
        raise InputError("partial dependence is of one latent function, not of several classes")
    (k,) = column_numbers(X, [column])
    if k < 0:
        raise InputError(f"X has no column {shown(column)}: it has {shown(names_of(X))}")
    places, categorical = _places(X, k, values, whole(n_values, "n_values", 2))
    count, wanted = len(X), whole(n_rows, "n_rows", 1)
    if count > wanted:
        X = rows_of(X, np.sort(rng.choice(count, wanted, replace=False)))
    tails = [0.5 - 0.5 * inside, 0.5 + 0.5 * inside]
    found = []
    for value in places:
        rows = held(X, k, value)
        if kind == "latent":
            mean, covariance = model.latent(rows, full_covariance=True)
            reach = ndtri(tails[1]) * np.sqrt(covariance.mean())
            found.append((mean.mean(), mean.mean() - reach, mean.mean() + reach))
        else:
            draws = _given(model, model.sample_latent(rows, n_draws, rng)).mean(axis=1)
            found.append((_means(model, rows).mean(), *np.quantile(draws, tails)))
    middle, low, high = np.array(found).T
    name = names_of(X)[k]
    return PartialDependence(name, places, categorical, middle, low, high, kind, inside)


def _places(X: Any, k: int, values: Any, count: int) -> tuple[np.ndarray, bool]:
    """Values of a column, and whether they are levels."""
    if is_frame(X):
        own = columns_of(X)[k]
    else:
        plain = np.asarray(X)
        own = of_array(plain[:, [k]], [str(k)])[0]
    if own.levels is not None:
        present = sorted({one for one in own.levels if one is not None}, key=str)
        gaps = [None] if None in own.levels else []
        levels = [*present, *gaps] if values is None else list(values)
        found = np.empty(len(levels), dtype=object)
        found[:] = levels
        return found, True
    if values is not None:
        return np.asarray(values, dtype=float), False
    assert own.numbers is not None
    known = np.unique(own.numbers[~np.isnan(own.numbers)])
    if known.size <= _FEW:
        return known, False
    ends = np.quantile(own.numbers[~np.isnan(own.numbers)], _TAILS)
    return np.linspace(ends[0], ends[1], count), False


def _given(model: Any, f: Array) -> Array:
    """Mean of an observation given latent values, in their shape."""
    if isinstance(model, GPClassifier):
        own, flat = model._likelihood_, f.ravel()
        if own is not None:
            logs = log_density(own, flat, np.zeros(flat.size), np.ones(flat.size))
            found: Array = np.exp(logs).reshape(f.shape)
            return found
    else:
        own = getattr(model, "likelihood_", None)
        if own is not None and own.given is not None and not hasattr(model, "thresholds_"):
            centre, unit = model._units()
            mean = own.given((f - centre) / unit, own.theta).mean()
            return np.asarray(centre + unit * mean)
    raise InputError(
        f"the mean of an observation given f is not known of {type(model).__name__}: use "
        'kind="latent"'
    )


def _means(model: Any, rows: Any) -> Array:
    """Predicted means, shape (T,)."""
    if isinstance(model, GPClassifier):
        probability: Array = model.predict_proba(rows)[:, 1]
        return probability
    return np.asarray(model.predict(rows), dtype=float)
