"""Prior means of other estimators: targets, cross-fitted predictions and their lines."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logit, ndtri
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.estimators.boosted_trees import CodedColumns, as_arrays
from qpruntime.learning.inducing_points import sample
from qpruntime.learning.inputs import Data, RowGroups
from qpruntime.learning.objective import learnt
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.counts import LINKS
from qpruntime.projection.projector import Projector, project_arrays

__all__ = [
    "CrossFitted",
    "OfClasses",
    "OfNumbers",
    "OfRates",
    "Target",
    "cross_fitted",
    "given_estimator",
    "line_densities",
    "rarest_groups",
]

# --- Predictions of other estimators on the latent scale -----------------------------------------

# Probabilities are taken to be so far from 0 and 1 at least: leaves of trees say 0.
_SURE = 1e-5


@restorable("scores-of-classes/1")
@dataclass(frozen=True)
class OfClasses:
    """Scores on the scale of the latent function.

    Probabilities become the quantiles that the link makes them of; decision functions stay.
    Two classes have one process, more one each. Labels are 0 to K - 1.
    """

    count: int
    logistic: bool

    def __call__(self, model: BaseEstimator, X: Array) -> Array:
        """Return the scores (T, K) that a model gives points."""
        columns = range(self.count) if self.count > 2 else (1,)
        if hasattr(model, "predict_proba"):
            outputs, fill = np.asarray(model.predict_proba(X), float), 0.0
        elif hasattr(model, "decision_function"):
            outputs, fill = np.asarray(model.decision_function(X), float), -1.0
            if outputs.ndim == 1:
                outputs = np.column_stack([-outputs, outputs])
        else:
            raise InputError(
                f"prior_mean={type(model).__name__} must have predict_proba or decision_function"
            )
        every = np.full((len(X), self.count), fill)
        every[:, np.asarray(model.classes_, dtype=np.intp)] = outputs
        scores = every[:, list(columns)]
        if not hasattr(model, "predict_proba"):
            return scores
        shares: Array = np.clip(scores, _SURE, 1.0 - _SURE)
        return logit(shares) if self.logistic else ndtri(shares)


@restorable("scores-of-rates/1")
@dataclass(frozen=True)
class OfRates:
    """Latent values of predicted rates, which are `least` at the least."""

    link: str
    least: float

    def __call__(self, model: BaseEstimator, X: Array) -> Array:
        """Return the scores (T, K) that a model gives points."""
        rates = np.maximum(_predicted(model, X), self.least)
        latent = LINKS[self.link].latent
        values: Array = np.array([latent(float(rate)) for rate in rates])
        return values[:, None]


@restorable("scores-of-numbers/1")
@dataclass(frozen=True)
class OfNumbers:
    """Predicted numbers, in the units of the latent function."""

    centre: float
    unit: float

    def __call__(self, model: BaseEstimator, X: Array) -> Array:
        """Return the scores (T, K) that a model gives points."""
        return ((_predicted(model, X) - self.centre) / self.unit)[:, None]


def _predicted(model: BaseEstimator, X: Array) -> Array:
    predictions = np.asarray(model.predict(X), float)
    if predictions.shape != (len(X),):
        raise InputError(
            f"prior_mean={type(model).__name__} predicts an array of shape {predictions.shape} for "
            f"{len(X)} rows, not one number a row"
        )
    return predictions


# --- Cross-fitting -------------------------------------------------------------------------------

#: Fewer rows are not divided.
_FEWEST = 20
# Numbers of folds, up to `_MANY` rows and beyond: two thirds of many rows are nearly all of them,
# and an estimator that is fitted twice to all rows takes half the time of one fitted four times.
_FOLDS, _FOLDS_OF_MANY = 5, 3
# One part of so many judges where boosting ends, as in scikit-learn.
_JUDGED = 10
# Number of rows from which an estimator may have all threads, and trees more leaves.
_MANY = 50_000
# Leaves of a tree up to so many rows, and at the most. With 31 leaves the trees of 322 000 flights
# had not ended after 100 steps, at a log loss of 0.475; with 255 it was 0.441 in twice the time.
_LEAVES, _MOST_LEAVES = 31, 255
# Steps of boosting after which the folds judge trees, and the most of trees that go on. The
# losses of nine of 37 tables of up to 10 000 rows fall by 2 to 37 % after the first 100 steps.
_STEPS, _MOST_STEPS = 100, 600
# The process that has loaded this; a forked one has another number.
_PROCESS = os.getpid()
# Rows that slopes are learnt from, between these; f is known there as well as this deviation says.
_ROWS, _SLOPES, _DEVIATION = 5000, (0.0, 5.0), 1e-3


@dataclass(frozen=True)
class Target:
    """Targets of the estimator, and the map from its predictions to latent values.

    Attributes
    ----------
    y : ndarray, shape (N,)
        Labels, rates or numbers, as the estimator is to see them.
    weights : ndarray, shape (N,), or None
        Of the rows, as the estimator is to see them: exposures times those of the likelihoods.
    latent : function
        ``latent(model, X)`` are scores (T, K), of each of K processes; it pickles.
    classes : bool
        Whether folds hold every class in its share.
    groups : RowGroups or None
        Rows that are in one fold; None stands for those with equal features.
    default : function
        ``default(seed)`` is the estimator for "auto", up to `_MANY` rows.
    """

    y: NDArray[Any]
    weights: Array | None
    latent: Callable[[Any, Array], Array]
    classes: bool
    default: Callable[[int], Any]
    groups: RowGroups | None = None

    def boosting(self, seed: int) -> BaseEstimator:
        """Return the estimator for "auto", whose trees have leaves in proportion to many rows."""
        leaves = min(max(_LEAVES, _LEAVES * len(self.y) // _MANY), _MOST_LEAVES)
        return self.default(seed).set_params(max_leaf_nodes=leaves, max_iter=_STEPS)


@restorable("cross-fitted/1")
@dataclass(frozen=True)
class CrossFitted:
    """A prior mean: ``shift + slope score``, scores being means over the estimators of the folds.

    Attributes
    ----------
    estimators : tuple
        Fitted to all rows but those of a fold.
    slope, shift : ndarray, shape (K,)
        Of each process.
    columns : CodedColumns
        Map of inputs to those of the estimators.

    See Also
    --------
    qpruntime.GPClassifier

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from qpruntime import GPClassifier
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 1))
    >>> trees = DecisionTreeClassifier(max_depth=2, min_samples_leaf=5)
    >>> model = GPClassifier(prior_mean=trees, random_state=0).fit(X, X[:, 0] > 0.0)
    >>> len(model.prior_mean_.estimators), model.prior_mean_.slope.shape
    (5, (1,))
    """

    estimators: tuple[Any, ...]
    slope: Array
    shift: Array
    latent: Callable[[Any, Array], Array]
    columns: CodedColumns = field(default_factory=CodedColumns)

    def without_code(self) -> CrossFitted:
        """Return the same prior mean with boosting as arrays, which files can hold."""
        return replace(self, estimators=tuple(map(as_arrays, self.estimators)))

    def at(self, X: Array) -> Array:
        """Return the prior means at points (T, d), shape (T, K)."""
        if not len(X):
            return np.empty((0, self.slope.size))
        return self.of(self._scores(X).mean(axis=0))

    def _scores(self, X: Array) -> Array:
        """Return scores by each of the estimators, shape (J, T, K)."""
        X = self.columns(X)
        with _quiet_cores(len(X)):
            return np.stack([self.latent(estimator, X) for estimator in self.estimators])

    def spread(self, X: Array) -> Array:
        """Return jackknife variances over folds of the prior means at points (T, d), shape (T, K).

        It is (J - 1)/J times the sum of squares of the J folds about their mean.
        """
        if not len(X):
            return np.empty((0, self.slope.size))
        scores = self._scores(X)
        return np.asarray(self.slope**2 * (len(scores) - 1) * scores.var(axis=0))

    def of(self, scores: Array) -> Array:
        """Return the prior means of these scores, both (T, K)."""
        return self.shift + self.slope * scores


def _quiet_cores(rows: int) -> AbstractContextManager[Any]:
    """Limit OpenMP to one thread for few rows, because waiting threads spin if cores are busy.

    Boosting with two threads takes many times as long on a busy machine and gains little on an idle
    one. Threads of a forked process would wait forever for threads of its parent.
    """
    alone = rows < _MANY or os.getpid() != _PROCESS
    return threadpool_limits(1, "openmp") if alone else nullcontext()


def given_estimator(option: object) -> BaseEstimator | None:
    """Return the estimator that was given as ``prior_mean=``, None for "auto" and None.

    Raises
    ------
    InputError
        If it is none of these.
    """
    if option is None or (isinstance(option, str) and option == "auto"):
        return None
    if isinstance(option, type) or not (
        callable(getattr(option, "fit", None)) and hasattr(option, "get_params")
    ):
        raise InputError(
            'prior_mean must be "auto", None or an estimator of scikit-learn\'s manner, such as '
            f"HistGradientBoostingClassifier(), got {shown(option)}"
        )
    return option


def cross_fitted(
    estimator: BaseEstimator,
    X: Array,
    target: Target,
    observed: Sequence[tuple[Likelihood, Array]],
    weights: Array | None,
    scale: Array | None,
    offset: Array | float,
    seed: int,
    after_each: Callable[[NDArray[np.intp], Array], None] | None = None,
) -> tuple[CrossFitted, Array]:
    """Return a prior mean, and the scores (N, K) of the rows, each by the fold without it.

    Its slopes are those without a Gaussian process besides.

    Parameters
    ----------
    estimator : estimator
        Cloned for every fold.
    X : ndarray, shape (N, d)
    target : Target
    observed : sequence of (Likelihood, ndarray, shape (N,))
        Of each process.
    weights : ndarray, shape (N,), or None
        Powers of the single likelihoods.
    scale : ndarray, shape (N,), or None
    offset : float or ndarray, shape (N,)
        What is observed is `scale` times the sum of f and `offset`.
    seed : int
        Of the folds.
    after_each : function, optional
        Called with the rows of all folds so far, ascending, and their scores (n, K); what it raises
        ends the fits. The estimator is then boosting of `_STEPS` steps, which goes on to
        `_MOST_STEPS` where other rows say when to stop.

    Raises
    ------
    InputError
        If there are too few rows, or the estimator takes no weights and there are some.
    """
    n = len(target.y)
    groups = RowGroups(X) if target.groups is None else target.groups
    if n < _FEWEST:
        raise InputError(f"prior_mean needs {_FEWEST} rows or more to be cross-fitted, got {n}")
    if rarest_groups(target, groups) < 2:
        kind = "of each class: there is a class with one" if target.classes else "and got one"
        raise InputError(
            f"prior_mean is cross-fitted, which takes two rows {kind}; rows with equal features "
            "count as one, unless groups=numpy.arange(len(y)) makes each a group"
        )
    scores, is_scored = np.empty((n, len(observed))), np.zeros(n, dtype=bool)
    models: list[BaseEstimator] = []
    folds = _FOLDS if n <= _MANY else _FOLDS_OF_MANY
    for train, held_out in _folds(target, groups, seed, folds):
        fold = X, target, groups, train, held_out, seed
        fold_estimator = clone(estimator)
        scores[held_out] = _fit(fold_estimator, *fold)
        if after_each is not None:
            is_scored[held_out] = True
            after_each(np.flatnonzero(is_scored), scores[is_scored])
            if fold_estimator.early_stopping and fold_estimator.n_iter_ == _STEPS:
                fold_estimator.set_params(max_iter=_MOST_STEPS, warm_start=True)
                scores[held_out] = _fit(fold_estimator, *fold)
        models.append(fold_estimator)
    if not np.isfinite(scores).all():
        raise InputError("prior_mean predicts values that are not finite")
    lines = [
        _line(likelihood, y, scores[:, k], weights, scale, offset, seed)
        for k, (likelihood, y) in enumerate(observed)
    ]
    slope, shift = (np.array([line[i] for line in lines]) for i in (0, 1))
    return CrossFitted(tuple(models), slope, shift, target.latent), scores


def line_densities(
    likelihood: Likelihood, data: Data, score: Array, offset: Array | float, seed: int
) -> Array:
    """Return log densities (N,) of the data at the most probable line of a score (N,).

    Parameters that are learnt, such as the noise, are those that make the data most probable, too.
    """
    times = np.ones(len(data.y)) if data.scale is None else data.scale
    offsets = np.broadcast_to(offset, data.y.shape)

    def densities(likelihood: Likelihood, line: tuple[float, float]) -> Array:
        mean = times * (line[1] + line[0] * score + offsets)
        return project_arrays(likelihood, mean, _DEVIATION * times, data.y, "ep").log_z

    def best_line(likelihood: Likelihood) -> tuple[float, float]:
        return _line(likelihood, data.y, score, data.weights, data.scale, offset, seed)

    line = best_line(likelihood)
    for name, bounds in data.learn.items():
        projector = Projector(likelihood, "ep")

        def loss(log_value: float, name: str = name, projector: Projector = projector) -> float:
            changed = learnt(projector, (name,), np.array([log_value])).likelihood
            value = -float(np.average(densities(changed, line), weights=data.weights))
            return value if np.isfinite(value) else 1e300

        optimum: Any = minimize_scalar(
            loss, bounds=tuple(np.log(bounds)), method="bounded", options={"xatol": 1e-2}
        )
        likelihood = learnt(projector, (name,), np.array([optimum.x])).likelihood
    return densities(likelihood, best_line(likelihood) if data.learn else line)


def rarest_groups(target: Target, groups: RowGroups) -> int:
    """Return how many groups of rows there are, of classes in that which has the fewest."""
    if not target.classes:
        return groups.count
    labels = np.unique(target.y)
    return min(np.unique(groups.codes[target.y == label]).size for label in labels)


def _folds(
    target: Target, groups: RowGroups, seed: int, folds: int = _FOLDS
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    folds = min(folds, rarest_groups(target, groups))
    options: dict[str, Any] = {"n_splits": folds, "shuffle": True, "random_state": seed}
    rows = np.empty((len(target.y), 0)), target.y
    if groups.repeat and not target.classes:
        return list(GroupKFold(**options).split(*rows, groups.codes))
    divided = StratifiedKFold(**options) if target.classes else KFold(**options)
    if not groups.repeat:
        return list(divided.split(*rows))
    # The rarest class of each group. StratifiedGroupKFold takes seconds for thousands of groups.
    _, codes, counts = np.unique(target.y, return_inverse=True, return_counts=True)
    kinds = np.full(groups.count, counts.size)
    np.minimum.at(kinds, groups.codes, np.argsort(np.argsort(counts))[codes])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        parts = list(divided.split(np.empty((groups.count, 0)), kinds))
    held_out = [np.isin(groups.codes, part) for _, part in parts]
    return [(np.flatnonzero(~part), np.flatnonzero(part)) for part in held_out]


def _fit(
    model: BaseEstimator,
    X: Array,
    target: Target,
    groups: RowGroups,
    rows: NDArray[np.intp],
    held_out: NDArray[np.intp],
    seed: int,
) -> Array:
    """Fit to some rows, and return the scores of those held out.

    Groups that boosting does not learn from decide where it ends.
    """
    judged: dict[str, Any] = {}
    fold_groups = groups.subset(rows)
    if fold_groups.repeat and getattr(model, "early_stopping", False) is True:
        fold_target = replace(target, y=target.y[rows])
        learn = judges = rows
        if rarest_groups(fold_target, fold_groups) > 1 and has_fit_parameter(model, "X_val"):
            learn, judges = (
                rows[part] for part in _folds(fold_target, fold_groups, seed, _JUDGED)[0]
            )
        if learn.size < rows.size and np.isin(target.y[judges], target.y[learn]).all():
            rows, judged = learn, {"X_val": X[judges], "y_val": target.y[judges]}
            if target.weights is not None:
                judged["sample_weight_val"] = target.weights[judges]
        else:
            model.set_params(early_stopping=False)
    with _quiet_cores(len(X)):
        model.fit(X[rows], target.y[rows], **judged, **_weights(model, target, rows))
        return target.latent(model, X[held_out])


def _weights(model: BaseEstimator, target: Target, rows: NDArray[np.intp]) -> dict[str, Any]:
    """Return the keywords by which `fit` takes the weights of some rows."""
    if target.weights is None:
        return {}
    last, name = model, "sample_weight"
    while isinstance(last, Pipeline):
        step, last = last.steps[-1]
        name = f"{step}__{name}"
    if not has_fit_parameter(last, "sample_weight"):
        raise InputError(
            f"prior_mean={type(last).__name__} takes no sample_weight, and rows have weights "
            "or exposures: give an estimator that takes it"
        )
    return {name: target.weights[rows]}


def _line(
    likelihood: Likelihood,
    y: Array,
    score: Array,
    weights: Array | None,
    scale: Array | None,
    offset: Array | float,
    seed: int,
) -> tuple[float, float]:
    """Return the slope and the shift of the score that make the observations most probable.

    They are those of a generalised linear model, without a Gaussian process.
    """
    sampled = sample(len(y), _ROWS, np.random.default_rng(seed))
    sampled_y, at = y[sampled], score[sampled]
    centre = float(at.mean())
    share = np.ones(len(sampled)) if weights is None else weights[sampled] / weights[sampled].mean()
    times = np.ones(len(sampled)) if scale is None else scale[sampled]
    offsets = np.broadcast_to(offset, y.shape)[sampled]
    deviation = _DEVIATION * times

    def loss(line: Array) -> tuple[float, Array]:
        """Return minus the mean log likelihood of a slope and a shift, and its gradient."""
        mean = times * (centre + line[1] + line[0] * (at - centre) + offsets)
        projected = project_arrays(likelihood, mean, deviation, sampled_y, "ep")
        # The slope of log Z in the cavity mean is the step of the mean by the cavity variance.
        steps = share * times * (projected.mean - mean) / deviation**2
        value = -float(np.mean(share * projected.log_z))
        slopes = -np.array([np.mean(steps * (at - centre)), np.mean(steps)])
        if not (np.isfinite(value) and np.isfinite(slopes).all()):
            return 1e300, np.zeros(2)
        return value, slopes

    optimum = minimize(
        loss,
        np.array([1.0, 0.0]),
        jac=True,
        method="L-BFGS-B",
        bounds=[_SLOPES, (None, None)],
        options={"maxiter": 100, "ftol": 1e-12, "gtol": 1e-7},
    )
    slope, shift = optimum.x
    # The line through the middle of the scores.
    return float(slope), float(centre + shift - slope * centre)
