"""Whether a prior mean by another estimator is taken: as asked for, or as rows left out say."""

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
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.estimators.cross_fitted import CrossFitted, Target, cross_fitted, given_mean
from qpruntime.estimators.slopes import Train, beside_a_process
from qpruntime.estimators.units import whole
from qpruntime.learning.data import Data
from qpruntime.learning.inducing import sample
from qpruntime.learning.policy.choice import Choice
from qpruntime.learning.policy.judged import better
from qpruntime.learning.settings import Settings
from qpruntime.learning.training import Fit
from qpruntime.likelihoods import Likelihood, get

__all__ = ["boosted_classes", "boosted_numbers", "boosted_rates", "with_mean"]

_LOG = logging.getLogger("qpruntime")

# Rows from which boosting is tried, and that judge it at the most.
_FEWEST, _JUDGES = 200, 8000


def boosted_classes(seed: int) -> Any:
    """Boosting of classes that ends where rows held out say."""
    return HistGradientBoostingClassifier(early_stopping=True, random_state=seed)


def boosted_rates(seed: int) -> Any:
    """Boosting of rates under Poisson's deviance."""
    return HistGradientBoostingRegressor(loss="poisson", early_stopping=True, random_state=seed)


def boosted_numbers(seed: int) -> Any:
    """Boosting of medians, which outliers leave alone."""
    return HistGradientBoostingRegressor(
        loss="absolute_error", early_stopping=True, random_state=seed
    )


def with_mean(
    asked: Any,
    processes: Sequence[Data],
    target_of: Callable[[], Target],
    besides: Array | float,
    settings: Settings,
    drawn: np.random.Generator,
    train: Train,
) -> tuple[list[Fit], Choice | None, CrossFitted | None]:
    """Train processes with the prior mean that is asked for.

    Parameters
    ----------
    asked : estimator, "auto" or None
        "auto" trains with boosting and without, and takes it where the leave-one-out densities of
        at most 8000 rows gain by it, by more than their standard error.
    processes : sequence of Data
        With the prior mean that they have without.
    target_of : function
        Returns what an estimator learns; not called without one.
    besides : float or ndarray, shape (N,)
        That part of `Data.prior` which is known, as log exposures are.
    settings : Settings
    drawn : Generator
    train : function
        Of processes, settings and a generator.

    Returns
    -------
    fits, choice, mean
        Of these the last is None where there is none.
    """
    estimator = given_mean(asked)
    automatic = isinstance(estimator, str)
    n = len(processes[0].y)
    if estimator is None or (automatic and n < _FEWEST):
        return *train(processes, settings, drawn), None
    target = target_of()
    if automatic and _rare(target):
        return *train(processes, settings, drawn), None
    own = copy.deepcopy(drawn)
    seed = int(own.integers(2**31))
    X = whole(processes[0].X)
    mean, scores = cross_fitted(
        target.default(seed) if automatic else estimator,
        X,
        target,
        [(_graded(data.projector.likelihood), data.y) for data in processes],
        processes[0].weights,
        processes[0].scale,
        besides,
        seed,
    )
    with _all_may_be_in_the_mean():
        mean = beside_a_process(mean, scores, X, processes, besides, settings, own, train)
        values = mean.of(scores)
        moved = [replace(data, prior=values[:, k] + besides) for k, data in enumerate(processes)]
        if not automatic:
            return *train(moved, settings, own), mean
    plain = train(processes, settings, drawn)
    with _all_may_be_in_the_mean(), warnings.catch_warnings(record=True) as warned:
        other = train(moved, settings, own)
    judges = sample(n, _JUDGES, own)
    weights = processes[0].weights
    gain = _left_out(other[0], judges) - _left_out(plain[0], judges)
    if weights is not None:
        gain = gain * (weights[judges] / weights[judges].mean())
    taken = better(gain)
    _LOG.info(
        "qpruntime: prior mean by boosting%s: %+.4f log density a row left out, of %d",
        "" if taken else " not taken",
        float(np.mean(gain)),
        len(judges),
    )
    if not taken:
        return *plain, None
    for one in warned:
        warn(str(one.message), one.category)
    return *other, mean


@contextlib.contextmanager
def _all_may_be_in_the_mean() -> Iterator[None]:
    """Without the warning that a Gaussian process has found nothing: that is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was found in the features", ConvergenceWarning)
        yield


def _graded(likelihood: Likelihood) -> Likelihood:
    """The likelihood that says what a score is worth alone: signs without noise do not."""
    return get("probit") if likelihood.name == "heaviside" else likelihood


def _rare(target: Target) -> bool:
    """Whether a class is too rare to be cross-fitted."""
    return target.classes and int(np.unique(target.y, return_counts=True)[1].min()) < 2


def _left_out(fits: Sequence[Fit], rows: NDArray[np.intp]) -> Array:
    """Log predictive densities of some rows, left out, summed over processes."""
    found = np.zeros(len(rows))
    for fit in fits:
        post = fit.posterior
        try:
            found += post.loo_of(rows) if hasattr(post, "loo_of") else post.loo()[rows]
        except (NumericalError, InputError):
            return np.full(len(rows), -np.inf)
    return found
