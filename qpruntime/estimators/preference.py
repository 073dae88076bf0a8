"""Utilities of items from comparisons of two at a time, as a Gaussian process."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import central_levels, no_kernel, shown as show, unmasked, whole
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import (
    averaged,
    deviations,
    is_integrated,
    nodes_of,
    remembered,
    shares,
)
from qpruntime.estimators.pairwise_data import (
    Items,
    Utilities,
    differences,
    distinct,
    items_of,
    observed_choices,
    pairs_of,
    probabilities_of,
    rows_of,
    times_of,
    won,
)
from qpruntime.estimators.process import commit, draft_of
from qpruntime.inference.fixed_point.convergence import DEFAULT_MAX_SWEEPS, DEFAULT_TOL
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.learning.hyperpriors import priors_of
from qpruntime.learning.initialisation import own_start, preference_start
from qpruntime.learning.inputs import Data, Inputs
from qpruntime.learning.options import (
    Integrate,
    Search,
    Settings,
    integrate_of,
    new_generator,
    settings_of,
)
from qpruntime.learning.scaling import Units
from qpruntime.learning.train_operator import train_operator
from qpruntime.likelihoods import Likelihood
from qpruntime.persistence.file import Savable
from qpruntime.predictive.mixtures import Mixture
from qpruntime.projection.projector import Inference, Projector

__all__ = ["GPPreference"]


@restorable("gp-preference/1", root=True)
@dataclass(eq=False, repr=False, match_args=False)
class GPPreference(Savable, BaseEstimator):
    """Utilities from comparisons: item i is preferred to j with probability Phi(f_i - f_j).

    The utility f is a Gaussian process over features of items, or independent between items.
    Comparisons only determine differences of utilities relative to the noise, so the noise of one
    comparison has standard deviation 1 and the variance of f is learnt. Utilities are relative to
    the mean of all items, because adding a constant changes no comparison.

    Parameters
    ----------
    kernel : scikit-learn kernel or None
        Kernel of the rows of X, with times as the last column. By default a variance times a Matérn
        5/2 with ARD, or independent values without features. With times, a share of it drifts as a
        Matérn 3/2. A kernel without a free variance is multiplied by one.
    method : {"qp", "ep"}
        Inference of the final posterior.
    optimize : bool, "evidence", "loo" or Search
        Objective that hyper-parameters maximise, as in `GPClassifier`.
    tol, max_sweeps
        Tolerance and limit of sweeps of every EP or QP run; see `qpruntime.infer`.
    n_jobs : int, optional
        Threads for restarts.
    random_state : int, RandomState, Generator or None
        Seed of restarts.
    verbose : int
        If not 0, print every evaluation of the objective to stderr.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`: "integrate" averages predictions over the kernel's parameters.

    Attributes
    ----------
    items_ : ndarray, shape (n,)
        Sorted names of the items, or row numbers if they have features.
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    noise_ : float
        Standard deviation of the noise of one comparison, in units of the prior standard
        deviation of utilities.
    posterior_ : Posterior
        Posterior of the compared differences and of f; see ``operator`` of `qpruntime.infer`.
    log_marginal_likelihood_value_ : float
        Log evidence of the comparisons.
    optimum_, optima_ : Optimum or None, tuple of Optimum
        The best optimiser run, and all runs.
    integrated_ : Integrated or None
        As in `GPClassifier`; `kernel_`, `noise_` and `posterior_` stay those of the mode.
    X_train_ : ndarray, shape (m, d)
        Points of the latent values: items, with times each item at all times of its comparisons.

    See Also
    --------
    qpruntime.GPClassifier, qpruntime.infer

    Examples
    --------
    >>> from qpruntime import GPPreference
    >>> games = [["ann", "bob"], ["ann", "cid"], ["bob", "cid"], ["ann", "bob"]]
    >>> model = GPPreference().fit(None, games)
    >>> model.predict([["cid", "ann"]]).tolist()
    ['ann']
    """

    kernel: Kernel | None = None
    _: KW_ONLY
    method: Inference = "qp"
    optimize: bool | Literal["evidence", "loo"] | Search = True
    tol: float = DEFAULT_TOL
    max_sweeps: int = DEFAULT_MAX_SWEEPS
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | np.random.Generator | None = None
    verbose: int = 0
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    def fit(
        self,
        X: ArrayLike | None,
        pairs: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        scores: ArrayLike | None = None,
        times: ArrayLike | None = None,
    ) -> GPPreference:
        """Fit hyper-parameters and utilities.

        Parameters
        ----------
        X : array-like, shape (n, d) or (n,), or None
            Features of the items, which pairs name by row numbers; or names of all items. None
            takes the names in pairs. Items with names have utilities of their own.
        pairs : array-like, shape (P, 2), or sequence of rows of several items
            Two items a row; the first is preferred, unless scores say otherwise. Of three or more
            the first was chosen among them all; rows may differ in length, and have no scores.
        sample_weight : array-like, shape (P,), optional
            Powers of the single likelihoods: how many times a comparison came out like this.
        scores : array-like, shape (P,), optional
            1 where the first item won, 0 where the second did, and 1/2 for a tie, which is half a
            win of either.
        times : array-like, shape (P,), optional
            When each comparison was, as numbers or dates, which are taken in days: utilities then
            change in time.

        Raises
        ------
        InputError
            If an argument is not usable; the message says which and what to do.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled.
        """
        settings = self._settings()
        projector = Projector("probit", self.method, None)
        shown = rows_of(pairs)
        if any(len(row) > 2 for row in shown):
            if scores is not None:
                raise InputError(
                    "scores are for pairs; with three items or more the first is the one chosen: "
                    "leave scores out"
                )
            items = items_of(X, np.concatenate(shown))
            when = times_of(times, len(shown))
            points, functionals = observed_choices(items, shown, sample_weight, when)
            return self._fitted(items, points, functionals, None, when, projector, settings)
        compared = pairs_of(pairs)
        items = items_of(X, compared)
        wins = won(len(compared), scores, sample_weight)
        when = times_of(times, len(compared))
        numbers = items.numbers(compared, "pairs")
        if (alike := np.flatnonzero(numbers[:, 0] == numbers[:, 1])).size:
            raise InputError(f"comparison {alike[0]} is of an item with itself: leave it out")
        ordered = np.where(wins.swapped[:, None], numbers[wins.of][:, ::-1], numbers[wins.of])
        # Every item has a latent value, or with times one for each time at which it was compared.
        points, places = _points(items, ordered, None if when is None else when[wins.of])
        same = (points[places[:, 0]] == points[places[:, 1]]).all(axis=1)
        if (alike := np.flatnonzero(same)).size:
            raise InputError(
                f"comparison {wins.of[alike[0]]} is of two items with the same features, which no "
                "kernel can tell apart: leave it out, or add a feature"
            )
        functionals = Functionals(differences(places[:, 0], places[:, 1], len(points)), len(points))
        return self._fitted(items, points, functionals, wins.weights, when, projector, settings)

    def _fitted(
        self,
        items: Items,
        points: Array,
        functionals: Functionals,
        weights: Array | None,
        when: Array | None,
        projector: Projector,
        settings: Settings,
    ) -> GPPreference:
        """Learn the kernel of utilities at points from what functionals of them are positive."""
        if self.kernel is None:
            spread = None if items.names is not None else Units.of(items.rows).spread
            begin = preference_start(spread, None if when is None else float(np.ptp(when)) or 1.0)
        else:
            begin = own_start(settings.kernel)
            prior = priors_of(settings.search.priors, begin.kernel, {})
            begin = replace(begin, log_prior=prior)
        inputs, mean = Inputs(points), np.zeros(len(points))
        data = Data(inputs, np.ones(functionals.n), projector, mean, weights)
        fit = train_operator(data, begin, settings, functionals, new_generator(self.random_state))
        draft = draft_of(self)
        draft._rows_, draft._named_, draft.X_train_ = items.rows, items.names is not None, points
        draft._last_ = None if when is None else float(when.max())
        draft.items_ = np.arange(len(items.rows)) if items.names is None else items.names
        draft.kernel_, draft.posterior_ = fit.kernel, fit.posterior
        draft.integrated_ = remembered([fit])
        draft.optima_, draft.optimum_ = fit.optima, fit.optimum
        draft.n_iter_ = 0 if fit.optimum is None else fit.optimum.n_iterations
        draft.log_marginal_likelihood_value_ = fit.posterior.log_evidence
        variance = draft._utilities().prior_spread()
        draft.noise_ = float(variance**-0.5)
        return commit(self, draft)

    def _predict_once(self) -> tuple[Array, ...]:
        self.predict_proba([self.items_[:2]])
        return self.utility()

    @averaged(shares)
    def predict_proba(
        self, pairs: ArrayLike, X: ArrayLike | None = None, *, times: ArrayLike | None = None
    ) -> Array:
        """Return the probability that each item of a row is preferred, shape (Q, k).

        Parameters
        ----------
        pairs : array-like, shape (Q, k)
            Two items or more a row, of the fit; with X its row numbers.
        X : array-like, shape (T, d), optional
            Features of other items.
        times : float or array-like, shape (Q,), optional
            When; by default at the last comparison of the fit.
        """
        if len(np.shape(pairs)) == 2 and np.shape(pairs)[1] > 2:
            points, which = self._distinct_points(np.asarray(pairs), X, times)
            mean, covariance = self._utilities().joint(points)
            return np.stack([probabilities_of(mean[k], covariance[np.ix_(k, k)]) for k in which])
        mean, variance = self._compared(pairs, X, times)
        score = mean / np.sqrt(1.0 + variance)
        return np.column_stack([ndtr(score), ndtr(-score)])

    def predict(
        self, pairs: ArrayLike, X: ArrayLike | None = None, *, times: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Return the preferred item of each row, shape (Q,); arguments as of `predict_proba`."""
        items = np.asarray(pairs)
        if is_integrated(self) or (items.ndim == 2 and items.shape[1] > 2):
            best = np.argmax(self.predict_proba(pairs, X, times=times), axis=1)
            return np.asarray(items[np.arange(len(items)), best])
        mean = self._compared(pairs, X, times)[0]
        items = pairs_of(pairs)
        return np.where(mean >= 0.0, items[:, 0], items[:, 1])

    def predict_interval(
        self,
        pairs: ArrayLike,
        X: ArrayLike | None = None,
        *,
        times: ArrayLike | None = None,
        level: float = 0.9,
    ) -> Array:
        """Return central intervals of the probability that the first item is preferred, (Q, 2)."""
        tails = central_levels(level)
        if is_integrated(self):
            ((weights, models),) = nodes_of(self)
            moments = [member._compared(pairs, X, times) for member in models]
            means, variances = (np.array(part) for part in zip(*moments, strict=True))
            return np.asarray(ndtr(Mixture(means, variances, weights).quantiles(tails)))
        mean, variance = self._compared(pairs, X, times)
        reach = ndtri(tails[1]) * np.sqrt(variance)
        return np.column_stack([ndtr(mean - reach), ndtr(mean + reach)])

    @averaged(deviations)
    def utility(
        self, X: ArrayLike | None = None, *, times: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return mean and standard deviation of utilities, relative to the mean of all items.

        The unit is the noise of one comparison.

        Parameters
        ----------
        X : array-like, shape (T, d) or (T,), optional
            Features, or names, of items; by default those of the fit, as in ``items_``.
        times : float or array-like, shape (T,), optional
            When; by default at the last comparison of the fit.

        Returns
        -------
        mean, std : ndarray, shape (T,)
        """
        check_is_fitted(self)
        known = items = self._items()
        if X is None:
            numbers = np.arange(len(known.rows))
        elif known.names is not None:
            numbers = known.numbers(np.ravel(np.asarray(unmasked(X, "X"))), "X")
        else:
            items = self._others(X)
            numbers = np.arange(len(items.rows))
        rows = self._placed(items.rows[numbers], self._when(times, len(numbers)))
        mean, variance = self._utilities().relative(rows)
        return mean, np.sqrt(variance)

    @averaged(shares)
    def rank_proba(
        self,
        *,
        times: float | None = None,
        n_samples: int = 10_000,
        random_state: int | np.random.Generator | None = 0,
    ) -> Array:
        """Return the probability of each item for each rank, shape (n, n); rank 0 is the best.

        It averages joint draws of all utilities; the standard error is at most
        0.5 / sqrt(n_samples).

        Parameters
        ----------
        times : float, optional
            When; by default at the last comparison of the fit.
        n_samples : int
        random_state : int, Generator or None
        """
        check_is_fitted(self)
        count = whole(n_samples, "n_samples", 1)
        n = len(self._items().rows)
        rows = self._placed(self._items().rows, self._when(times, n))
        draws = self._utilities().draws(rows, count, random_state)
        best_first = np.argsort(-draws, axis=1, kind="stable")
        probabilities = np.zeros((n, n))
        np.add.at(
            probabilities,
            (best_first, np.broadcast_to(np.arange(n), best_first.shape)),
            1.0 / count,
        )
        return probabilities

    def _settings(self) -> Settings:
        if not (self.kernel is None or isinstance(self.kernel, Kernel)):
            raise no_kernel(self.kernel, "None or ")
        if self.method not in ("qp", "ep"):
            raise InputError(f'method must be "qp" or "ep", got {self.method!r}')
        settings, integrate = settings_of(self), integrate_of(self.hyperparameters)
        evidence = settings.optimize and settings.search.objective == "evidence"
        if integrate is not None and not evidence:
            raise InputError(
                f"hyperparameters={show(self.hyperparameters)} cannot act with "
                f"optimize={show(self.optimize)}, which has no evidence to weigh by: use "
                'optimize=True, or hyperparameters="mode"'
            )
        return replace(settings, integrate=integrate, seeded=self.random_state is not None)

    def _with_likelihood(self, _: Likelihood) -> dict[str, Any]:
        return {}

    def _items(self) -> Items:
        return Items(self.items_ if self._named_ else None, self._rows_)

    def _utilities(self) -> Utilities:
        return Utilities(self.posterior_, self.kernel_, self.X_train_, self._rows_)

    def _when(self, times: ArrayLike | None, count: int) -> Array | None:
        if self._last_ is None:
            if times is not None:
                raise InputError("the model was fitted without times: leave them out, or fit with")
            return None
        return times_of(self._last_ if times is None else times, count)

    def _placed(self, rows: Array, when: Array | None) -> Array:
        return rows if when is None else np.column_stack([rows, when])

    def _others(self, X: ArrayLike) -> Items:
        width, shape = self._items().rows.shape[1], np.shape(X)
        if len(shape) != 2 or shape[1] != width:
            raise InputError(f"X must have {width} columns as in the fit, got shape {shape}")
        features = np.array(X, dtype=float)
        if not np.isfinite(features).all():
            raise InputError("X must be finite")
        return Items(None, features)

    def _compared(
        self, pairs: ArrayLike, X: ArrayLike | None, times: ArrayLike | None
    ) -> tuple[Array, Array]:
        """Return the mean and variance of the differences of utilities, (Q,)."""
        return self._utilities().compared(*self._distinct_points(pairs_of(pairs), X, times))

    def _distinct_points(
        self, chosen_items: NDArray[Any], X: ArrayLike | None, times: ArrayLike | None
    ) -> tuple[Array, Any]:
        """Return the distinct points of items (Q, k), and the number of the point of each item."""
        check_is_fitted(self)
        if X is not None and self._items().names is not None:
            raise InputError("items of this fit have no features: leave X out")
        items = self._items() if X is None else self._others(X)
        numbers = items.numbers(chosen_items, "pairs")
        when = self._when(times, len(chosen_items))
        if when is not None:
            when = np.repeat(when[:, None], chosen_items.shape[1], axis=1)
        return distinct(items.rows, numbers, when)


def _points(items: Items, numbers: NDArray[np.intp], when: Array | None) -> tuple[Array, Any]:
    """Return the points of the latent values, and the numbers of points compared (W, 2)."""
    if when is None:
        return items.rows, numbers
    return distinct(items.rows, numbers, np.repeat(when[:, None], 2, axis=1))
