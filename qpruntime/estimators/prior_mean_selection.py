"""Selection of a prior mean, and its coefficient."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from qpruntime._duration import announce
from qpruntime._memory import fits
from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.estimators.boosted_trees import CodedColumns
from qpruntime.estimators.prior_mean import (
    CrossFitted,
    Target,
    cross_fitted,
    given_estimator,
    line_densities,
    rarest_groups,
)
from qpruntime.learning.inducing_points import FIRST_INDUCING, sample
from qpruntime.learning.inputs import Data
from qpruntime.learning.model_selection.budget import (
    Budget,
    class_strata,
    gains_significantly,
    selection_applies,
)
from qpruntime.learning.model_selection.candidates import (
    CONFIDENT_ERRORS,
    pooled_densities,
    subset_data,
)
from qpruntime.learning.model_selection.inducing_growth import (
    LOO_ROWS,
    InducingSearch,
)
from qpruntime.learning.model_selection.select import COMPARISON_ROWS, Choice
from qpruntime.learning.options import Inducing, Settings
from qpruntime.learning.solvers import Dense
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

# Rows from which boosting is tried, and copies of them that it takes, of which most memory is.
_FEWEST, _COPIES = 200, 2.0
# Seconds of boosting in all folds for each number in its columns: 33 s for 667 000 rows of 20, 18 s
# for 322 000 of 8, which go on after they are judged.
_SECONDS = 5e-6


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
    option: BaseEstimator | Literal["auto"] | None,
    processes: Sequence[Data],
    target_of: Callable[[], Target] | None,
    offset: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
) -> tuple[list[Fit], Choice | None, CrossFitted | None]:
    """Train processes with the prior mean that `option` names.

    Parameters
    ----------
    option : estimator, "auto" or None
        "auto" compares boosting and no boosting, where the kernel is selected automatically and
        rows are in memory. Kernels are learnt from 500 rows. It takes boosting if the log densities
        of at most 5000 rows, each left out with its group, gain by more than two standard errors,
        and then trains once.
    processes : sequence of Data
        Their prior mean is the one without an estimator.
    target_of : function or None
        Returns what an estimator learns; None if there can be no estimator.
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
    selected = None
    if target_of is not None and option is not None:
        selected = _selected_mean(option, processes, target_of, offset, settings, rng, train)
    if selected is None:
        return *train(processes, settings, rng), None
    mean, scores, settings, rng = selected
    values = mean.of(scores)
    moved = [replace(data, prior=values[:, k] + offset) for k, data in enumerate(processes)]
    with _all_may_be_in_the_mean():
        return *train(moved, settings, rng), mean


def _selected_mean(
    option: BaseEstimator | Literal["auto"],
    processes: Sequence[Data],
    target_of: Callable[[], Target],
    offset: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
) -> tuple[CrossFitted, Array, Settings, np.random.Generator] | None:
    """Return a mean, its scores, and settings and generator of the fit; None for no estimator."""
    estimator, data = given_estimator(option), processes[0]
    if estimator is None and not _boosting_applies(data, target_of, settings):
        return None
    target = target_of()
    assert data.groups is not None
    # If no estimator is taken, the fit is as if none had been tried.
    rng = copy.deepcopy(rng)
    seed = int(rng.integers(2**31))
    X = data.inputs.in_memory().X
    comparison, columns, X_trees = None, CodedColumns(), X
    if estimator is None:
        comparison = _unless_it_fails(
            lambda: _Comparison(X, processes, offset, settings, seed, train)
        )
        if comparison is None:
            return None
        columns = CodedColumns.of(X)
        X_trees = columns(X)
        seconds = _SECONDS * X_trees.size
        announce(f"boosting of {len(X)} rows", seconds, "prior_mean=None spares it")
    try:
        mean, scores = cross_fitted(
            target.boosting(seed) if estimator is None else estimator,
            X_trees,
            replace(target, groups=data.groups),
            [(_graded(data.projector.likelihood), data.y) for data in processes],
            data.weights,
            data.scale,
            offset,
            seed,
            None if comparison is None else comparison.check,
        )
    except _Unpromising:
        return None
    mean = replace(mean, columns=columns)
    if comparison is not None:
        judged = _unless_it_fails(lambda: comparison.judged(mean, scores))
        if judged is None:
            return None
        mean, compare = judged
        return mean, scores, replace(settings, compare_kernels=compare), rng
    rows = _some_rows(processes, np.arange(len(X)), _ROWS, rng)
    with _all_may_be_in_the_mean():
        mean, _ = beside_a_process(
            mean, scores, X, rows, processes, offset, settings, rng, train, _ROUNDS
        )
    return mean, scores, settings, rng


def _boosting_applies(data: Data, target_of: Callable[[], Target], settings: Settings) -> bool:
    """Decide whether "auto" compares boosting with no boosting, for which there must be memory."""
    groups = data.groups
    return (
        groups is not None
        and not data.inputs.stored
        and settings.integrate is None
        and selection_applies(data, settings)
        and (groups.count if groups.coincide else len(data.y)) >= _FEWEST
        and rarest_groups(target_of(), groups) > 1
        and fits(_COPIES * 8.0 * len(data.y) * data.inputs.width)
    )


class _Unpromising(Exception):
    """Trees lose to a process at the rows of the folds so far."""


_Result = TypeVar("_Result")


def _unless_it_fails(compute: Callable[[], _Result]) -> _Result | None:
    """Return what is computed; None if there is no proper posterior, or training fails."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return compute()
        except (NumericalError, InputError) as error:
            if error.__cause__ is not None:  # a user's own exception
                raise
            return None


# Maps rows that are left out with their groups to log densities, summed over processes.
_Densities = Callable[[NDArray[np.intp]], Array]


class _Comparison:
    """Processes alone, trees alone and both together, at rows that are left out.

    Kernels are learnt from `_ROWS` rows, in ranks of the features if the process alone gains by
    them. Few inducing points and nearest rows infer at most `COMPARISON_ROWS` rows.

    Parameters
    ----------
    X : ndarray, shape (N, d)
    processes, offset, settings, train
        As in `with_mean`.
    seed : int
    """

    def __init__(
        self,
        X: Array,
        processes: Sequence[Data],
        offset: Array | float,
        settings: Settings,
        seed: int,
        train: Train,
    ) -> None:
        self._processes, self._offset, self._settings = processes, offset, settings
        self._seed, self._train = seed, train
        self._rng = rng = np.random.default_rng(seed)
        self._rows = rows = _some_rows(processes, np.arange(len(X)), COMPARISON_ROWS, rng)
        self._left_out = sample(rows.size, LOO_ROWS, rng)
        self._learnt_from = _some_rows(processes, rows, _ROWS, rng)
        few, inducing = _few(settings), Inducing()
        sweeps = min(few.max_sweeps, _MAX_SWEEPS)
        self._points = replace(few, inducing=inducing, max_sweeps=sweeps)
        # The default may take ranks of the features for few rows, too.
        search = few if settings.auto is None else replace(few, inducing=inducing)
        few_rows = [
            subset_data(data, X[self._learnt_from], self._learnt_from) for data in processes
        ]
        self._plain, choice = train(few_rows, search, rng)
        self._X = X if choice is None or choice.warp is None else choice.warp(X)
        # Log densities of the processes alone, which are inferred for the first fold.
        self._alone: _Densities | None = None

    @cached_property
    def _process_alone(self) -> Array:
        """Log densities of all judges under the processes alone."""
        assert self._alone is not None
        return self._alone(self._left_out)

    def check(self, scored: NDArray[np.intp], scores: Array) -> None:
        """Raise `_Unpromising` if trees alone lose to the process at rows of some folds.

        Most trees that lose do so in the first fold, before rows of others are left out.
        """
        judges = self._rows[self._left_out]
        so_far = np.isin(judges, scored)
        if not so_far.any():
            return
        scores_so_far = scores[np.searchsorted(scored, judges[so_far])]
        loss = _unless_it_fails(lambda: self._loss(so_far, scores_so_far))
        if loss is None:
            raise _Unpromising
        if float(np.mean(loss)) > 0.0:
            _LOG.info(
                "qpruntime: prior mean by boosting not taken: trees have %.4f log density a row "
                "less than a process, over %d groups of rows",
                float(np.mean(loss)),
                loss.size,
            )
            raise _Unpromising

    def _loss(self, so_far: NDArray[np.bool_], scores: Array) -> Array:
        """Return what trees alone lose to the process in log densities of some judges."""
        processes, judges = self._processes, self._rows[self._left_out]
        rows, groups = judges[so_far], processes[0].groups
        assert groups is not None
        trees_alone = _by_line(processes, self._X, rows, scores, self._offset, self._seed)
        if self._alone is None:
            self._alone = self._inferred(processes, self._plain)
            return self._alone(self._left_out[so_far]) - trees_alone
        pooled = np.isin(groups.pooled_codes(judges), groups.codes[rows])
        return self._process_alone[pooled] - trees_alone

    def judged(self, mean: CrossFitted, scores: Array) -> tuple[CrossFitted, bool] | None:
        """Return the prior mean with slopes beside a process, None if rows do not gain by it.

        The second value says whether the process adds to the mean: where trees explain everything,
        all kernels predict alike, and comparing them took two thirds of the fit.
        """
        processes, offset, X = self._processes, self._offset, self._X
        mean, fits = beside_a_process(
            mean,
            scores,
            X,
            self._learnt_from,
            processes,
            offset,
            self._settings,
            self._rng,
            self._train,
            1,
        )
        values = mean.of(scores)
        moved = [replace(data, prior=values[:, k] + offset) for k, data in enumerate(processes)]
        beside = [fit or plain_fit for fit, plain_fit in zip(fits, self._plain, strict=True)]
        both = self._inferred(moved, beside)(self._left_out)
        gain = both - self._process_alone
        judges = self._rows[self._left_out]
        trees_alone = _by_line(processes, X, judges, scores[judges], offset, self._seed)
        accepted = gains_significantly(gain, CONFIDENT_ERRORS)
        _LOG.info(
            "qpruntime: prior mean by boosting%s: %+.4f log density a row left out, of %d; the "
            "process beside it gains %+.4f",
            "" if accepted else " not taken",
            float(np.mean(gain)),
            gain.size,
            float(np.mean(both - trees_alone)),
        )
        return (mean, gains_significantly(both - trees_alone)) if accepted else None

    def _inferred(self, processes: Sequence[Data], fits: Sequence[Fit]) -> _Densities:
        """Infer all rows under the kernels of fits."""
        rows = self._rows
        budget, m = Budget(None, rows.size), min(FIRST_INDUCING, rows.size // 2)
        inferred = []
        for fit, process in zip(fits, processes, strict=True):
            data = subset_data(process, self._X[rows], rows)
            search = InducingSearch(data, self._points, budget, [], self._seed, self._left_out)
            inferred.append((search, search.infer(fit.kernel, _projector(fit, data), m)))

        def densities(left_out: NDArray[np.intp]) -> Array:
            scored = [search.score(posterior, left_out) for search, posterior in inferred]
            return np.asarray(sum(engine.densities for engine in scored))

        return densities


def _by_line(
    processes: Sequence[Data],
    X: Array,
    rows: NDArray[np.intp],
    scores: Array,
    offset: Array | float,
    seed: int,
) -> Array:
    """Return log densities of rows by lines of their scores, pooled; inputs are X."""
    known, total = np.broadcast_to(offset, len(processes[0].y))[rows], np.zeros(())
    for k, data in enumerate(processes):
        likelihood = _graded(data.projector.likelihood)
        judged = subset_data(data, X[rows], rows)
        densities = line_densities(likelihood, judged, scores[:, k], known, seed)
        total = total + pooled_densities(densities, data, rows)
    return total


# EP takes 3 to 9 sweeps where it settles at once. Without a limit damped sites took three times as
# long, and decided alike.
_MAX_SWEEPS = 20
# Number of rows of each class among some rows, if there are as many.
_OF_EACH_CLASS = 10


def _some_rows(
    processes: Sequence[Data], rows: NDArray[np.intp], most: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return at most so many of the rows at random, in ascending order, with some of each class."""
    order, strata = rng.permutation(rows), class_strata(processes)
    if strata is not None:
        codes = np.unique(strata[order], return_inverse=True)[1]
        per_class = min(_OF_EACH_CLASS, most // (2 * (int(codes.max()) + 1)))
        by_class = np.argsort(codes, kind="stable")
        counts = np.bincount(codes)
        place = np.empty(order.size, dtype=np.intp)
        place[by_class] = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
        order = order[np.argsort(place >= per_class, kind="stable")]
    return np.sort(order[:most])


@contextlib.contextmanager
def _all_may_be_in_the_mean() -> Iterator[None]:
    """Silence the warning that a Gaussian process has found nothing, which is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "nothing was found in the features", ConvergenceWarning)
        yield


def _graded(likelihood: Likelihood) -> Likelihood:
    """Return a likelihood that grades scores: signs without noise do not."""
    return get("probit") if likelihood.name == "heaviside" else likelihood


# --- Coefficient of the prior mean, by the evidence ----------------------------------------------

Train = Callable[[Sequence[Data], Settings, np.random.Generator], tuple[list[Fit], Choice | None]]

# Number of rows and of rounds, and the largest slope relative to that of the score alone.
_ROWS, _ROUNDS, _WIDEST = 500, 2, 2.0
# Relative tolerance and iterations of a search with few rows.
_FTOL, _ITERATIONS = 1e-3, 20


def beside_a_process(
    mean: CrossFitted,
    scores: Array,
    X: Array,
    rows: NDArray[np.intp],
    processes: Sequence[Data],
    offset: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
    rounds: int,
) -> tuple[CrossFitted, list[Fit | None]]:
    """Return the prior mean with slopes that are learnt together with processes, and their fits.

    There is no fit of a process that the scores say nothing about, or whose training fails.

    Parameters
    ----------
    mean : CrossFitted
        Its slopes are those of the scores alone.
    scores : ndarray, shape (N, K)
    X : ndarray, shape (N, d)
    rows : ndarray of int
        Rows that are learnt from.
    processes, offset, settings, rng, train
        As in `with_mean`.
    rounds : int
        Number of times that a process is trained and its slope then changed.
    """
    few = _few(settings)
    known = np.broadcast_to(offset, len(X))[rows]
    slope, shift = mean.slope.copy(), mean.shift.copy()
    fits: list[Fit | None] = [None] * len(processes)
    for k, process in enumerate(processes):
        data, score = subset_data(process, X[rows], rows), scores[rows, k]
        centre, most = float(score.mean()), _WIDEST * mean.slope[k]
        level = shift[k] + slope[k] * centre
        if not most > 0.0:
            continue
        for _ in range(rounds):

            def prior(b: float, level: float = level, at: Array = score - centre) -> Array:
                return np.asarray(level + b * at + known)

            with warnings.catch_warnings(action="ignore"):
                shifted = replace(data, prior=prior(slope[k]))
                try:
                    (fit,), _ = train([shifted], few, rng)
                    slope[k] = _highest(fit, data, prior, most, few)
                    fits[k] = fit
                except NumericalError as error:
                    if error.__cause__ is not None:  # a user's own exception
                        raise
                    break
        shift[k] = level - slope[k] * centre
    return replace(mean, slope=slope, shift=shift), fits


def _few(settings: Settings) -> Settings:
    """Return the settings of a dense fit of few rows."""
    short = settings.shortened(_FTOL, _ITERATIONS, callback=None)
    return replace(short, inducing=None, verbose=0)


def _projector(fit: Fit, data: Data) -> Projector:
    """Return EP's projector with the likelihood of a fit."""
    return Projector(fit.likelihood, "ep") if data.learn else data.projector.for_evidence()


def _highest(
    fit: Fit, data: Data, prior: Callable[[float], Array], most: float, settings: Settings
) -> float:
    """Return the slope that maximises the evidence under the kernel of a fit."""
    projector = _projector(fit, data)
    dense = Dense(settings)

    def loss(b: float) -> float:
        try:
            shifted = replace(data, projector=projector, prior=prior(b))
            return -dense.infer(fit.kernel, shifted, None).log_evidence
        except NumericalError as error:
            if error.__cause__ is not None:  # a user's own exception
                raise
            return 1e300

    optimum: Any = minimize_scalar(
        loss, bounds=(0.0, most), method="bounded", options={"xatol": 1e-2 * most}
    )
    return float(optimum.x)
