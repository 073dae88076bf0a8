"""Selection of a prior mean, and its coefficient."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.estimators.prior_mean import (
    CrossFitted,
    Target,
    cross_fitted,
    given_mean,
    rarest_groups,
)
from qpruntime.learning.dense_solver import Dense
from qpruntime.learning.inducing_points import sample
from qpruntime.learning.inputs import RowGroups
from qpruntime.learning.model_selection.budget import gains_significantly
from qpruntime.learning.model_selection.candidates import subset_data
from qpruntime.learning.model_selection.select import Choice
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.train import Fit
from qpruntime.likelihoods import Likelihood, get
from qpruntime.projection.projector import Projector

__all__ = [
    "Train",
    "beside_a_process",
    "boosted_classes",
    "boosted_numbers",
    "boosted_rates",
    "with_mean",
]

# --- Selection on held-out rows ------------------------------------------------------------------

_LOG = logging.getLogger("qpruntime")

# Rows from which boosting is tried, and that judge it at the most.
_FEWEST, _JUDGES = 200, 8000


def boosted_classes(seed: int) -> BaseEstimator:
    """Return boosting of classes with early stopping."""
    return HistGradientBoostingClassifier(early_stopping=True, random_state=seed)


def boosted_rates(seed: int) -> BaseEstimator:
    """Return boosting of rates under Poisson's deviance."""
    return HistGradientBoostingRegressor(loss="poisson", early_stopping=True, random_state=seed)


def boosted_numbers(seed: int) -> BaseEstimator:
    """Return boosting of medians, which outliers do not move."""
    return HistGradientBoostingRegressor(
        loss="absolute_error", early_stopping=True, random_state=seed
    )


def with_mean(
    option: BaseEstimator | str | None,
    processes: Sequence[Data],
    target_of: Callable[[], Target],
    offset: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
) -> tuple[list[Fit], Choice | None, CrossFitted | None]:
    """Train processes with the prior mean that `option` names.

    Parameters
    ----------
    option : estimator, "auto" or None
        "auto" trains with boosting and without. It takes boosting if the log densities of at most
        8000 rows, each left out with its group, gain by more than their standard error.
    processes : sequence of Data
        Their prior mean is the one without an estimator.
    target_of : function
        Returns what an estimator learns; called only if there is an estimator.
    offset : float or ndarray, shape (N,)
        Known part of `Data.prior`, such as log exposures.
    settings : Settings
    rng : Generator
    train : function
        Fits processes, given settings and a generator.

    Returns
    -------
    fits, choice, mean
        The mean is None if no estimator is used.
    """
    estimator = given_mean(option)
    automatic = isinstance(estimator, str)
    n, groups = len(processes[0].y), processes[0].groups
    if estimator is None or (automatic and _different(n, groups) < _FEWEST):
        return *train(processes, settings, rng), None
    target = target_of()
    assert groups is not None
    if automatic and rarest_groups(target, groups) < 2:
        return *train(processes, settings, rng), None
    rng_copy = copy.deepcopy(rng)
    seed = int(rng_copy.integers(2**31))
    X = processes[0].inputs.in_memory().X
    mean, scores = cross_fitted(
        target.default(seed) if automatic else estimator,
        X,
        replace(target, groups=groups),
        [(_graded(data.projector.likelihood), data.y) for data in processes],
        processes[0].weights,
        processes[0].scale,
        offset,
        seed,
    )
    with _all_may_be_in_the_mean():
        mean = beside_a_process(mean, scores, X, processes, offset, settings, rng_copy, train)
        values = mean.of(scores)
        moved = [replace(data, prior=values[:, k] + offset) for k, data in enumerate(processes)]
        if not automatic:
            return *train(moved, settings, rng_copy), mean
    plain = train(processes, settings, rng)
    with _all_may_be_in_the_mean(), warnings.catch_warnings(record=True) as warned:
        with_prior_mean = train(moved, settings, rng_copy)
    judges = sample(n, _JUDGES, rng_copy)
    weights = processes[0].weights
    gain = _left_out(with_prior_mean[0], judges, groups) - _left_out(plain[0], judges, groups)
    if weights is not None:
        gain = gain * (weights[judges] / weights[judges].mean())
    gain = groups.pooled(gain, judges)
    accepted = gains_significantly(gain)
    _LOG.info(
        "qpruntime: prior mean by boosting%s: %+.4f log density a row left out, of %d",
        "" if accepted else " not taken",
        float(np.mean(gain)),
        gain.size,
    )
    if not accepted:
        return *plain, None
    for warning in warned:
        warn(str(warning.message), warning.category)
    return *with_prior_mean, mean


@contextlib.contextmanager
def _all_may_be_in_the_mean() -> Iterator[None]:
    """Silence the warning that a Gaussian process has found nothing, which is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was found in the features", ConvergenceWarning)
        yield


def _graded(likelihood: Likelihood) -> Likelihood:
    """Return a likelihood that grades scores: signs without noise do not."""
    return get("probit") if likelihood.name == "heaviside" else likelihood


def _different(n: int, groups: RowGroups | None) -> int:
    """Return how many of n rows are no copies."""
    return n if groups is None or not groups.coincide else groups.count


def _left_out(fits: Sequence[Fit], rows: NDArray[np.intp], groups: RowGroups) -> Array:
    """Return leave-group-out log densities of these rows, summed over processes."""
    log_densities = np.zeros(len(rows))
    for fit in fits:
        post = fit.posterior
        try:
            log_densities += groups.left_out(post, rows)
        except (NumericalError, InputError):
            return np.full(len(rows), -np.inf)
    return log_densities


# --- Coefficient of the prior mean, by the evidence ----------------------------------------------

Train = Callable[[Sequence[Data], Settings, np.random.Generator], tuple[list[Fit], Choice | None]]

# Number of rows and of rounds, and the largest slope relative to that of the score alone.
_ROWS, _ROUNDS, _WIDEST = 500, 2, 2.0


def beside_a_process(
    mean: CrossFitted,
    scores: Array,
    X: Array,
    processes: Sequence[Data],
    offset: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
) -> CrossFitted:
    """Return the prior mean with slopes that are learnt together with the processes.

    Parameters
    ----------
    mean : CrossFitted
        Its slopes are those of the scores alone.
    scores : ndarray, shape (N, K)
    X : ndarray, shape (N, d)
    processes, offset, settings, rng, train
        As in `with_mean`.
    """
    n = len(X)
    rows = np.sort(rng.permutation(n)[:_ROWS])
    search = settings.search.but(restarts=0, callback=None)
    few = replace(settings, inducing=None, search=search, verbose=0)
    known = np.broadcast_to(offset, n)[rows]
    slope, shift = mean.slope.copy(), mean.shift.copy()
    for k, process in enumerate(processes):
        data, score = subset_data(process, X[rows], rows), scores[rows, k]
        centre, most = float(score.mean()), _WIDEST * mean.slope[k]
        level = shift[k] + slope[k] * centre
        if not most > 0.0:
            continue
        for _ in range(_ROUNDS):

            def prior(b: float, level: float = level, at: Array = score - centre) -> Array:
                return level + b * at + known

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shifted = replace(data, prior=prior(slope[k]))
                try:
                    (fit,), _ = train([shifted], few, rng)
                    slope[k] = _highest(fit, data, prior, most, few)
                except NumericalError as error:
                    if error.__cause__ is not None:  # a user's own exception
                        raise
                    break
        shift[k] = level - slope[k] * centre
    return replace(mean, slope=slope, shift=shift)


def _highest(
    fit: Fit, data: Data, prior: Callable[[float], Array], most: float, settings: Settings
) -> float:
    """Return the slope that maximises the evidence under the kernel of a fit."""
    projector = Projector(fit.likelihood, "ep") if data.learn else data.projector.for_evidence()
    dense = Dense(settings)

    def loss(b: float) -> float:
        try:
            shifted = replace(data, projector=projector, prior=prior(b))
            return -dense.infer(fit.kernel, shifted, None).log_evidence
        except NumericalError:
            return 1e300

    optimum: Any = minimize_scalar(
        loss, bounds=(0.0, most), method="bounded", options={"xatol": 1e-2 * most}
    )
    return float(optimum.x)
