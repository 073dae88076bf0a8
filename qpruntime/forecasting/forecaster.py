"""The forecaster of a series: a predictor of trend, seasons, regressors and noise, fitted by EP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import central_levels, levels, real, whole
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects import EffectsModel, Table
from qpruntime.errors import InputError
from qpruntime.estimators.process import commit, draft_of
from qpruntime.execution.blas_threads import alone
from qpruntime.forecasting.averaging import WeightedStructures, averaged
from qpruntime.forecasting.calendar import StepClock, index_of
from qpruntime.forecasting.families import values_of
from qpruntime.forecasting.predictive import Ahead
from qpruntime.forecasting.structure import ahead_of
from qpruntime.forecasting.structure_search import choose
from qpruntime.forecasting.trial import ObservedSeries
from qpruntime.likelihoods import Likelihood
from qpruntime.persistence.file import Savable
from qpruntime.predictive.mixtures import FAR_TAIL_VARIANCE, warn_of_far_tails

__all__ = ["GPForecaster"]

#: Minimum number of observations of a series.
_LEAST = 8


@restorable("gp-forecaster/1", root=True)
@dataclass(eq=False, repr=False, match_args=False)
class GPForecaster(Savable, BaseEstimator):
    """Forecasts of counts and of other numbers with their uncertainty.

    Predictor = level + trend + seasons + regressors + noise that lasts. The trend is a random walk,
    seasons are cyclic ones, the noise is autoregressive; linear effects are integrated with all
    else. The predictor is the log rate of counts, and the mean of other numbers or their logs.
    `GPPanelForecaster` fits many series.

    Parameters
    ----------
    seasons : "auto" or sequence of float
        Periods in steps. By default of dates those of the calendar, hour, day, week and year, that
        occur twice; of numbers those that the values show, see `find_seasons`. () for none.
    trend : {"auto", "average", "level", "line", "slope", "damped", "none"}
        Whether levels drift, do so around a straight line, slopes drift, or levels drift and slopes
        revert to zero; by default what the evidence prefers. With "average" forecasts are mixtures
        over the trends whose log evidences are within 4 of the best, weighted by evidence.
    noise : "auto" or bool
        Whether what is left lasts from one step to the next; by default if residuals do.
    family : str or Likelihood
        "poisson", "negative-binomial", "zero-inflated" and "hurdle" of counts, "gaussian",
        "student-t" and "log-normal" of real numbers, or a likelihood. By default of counts
        Poisson, unless its residuals vary more than they may, with more zeros where that is not
        enough; of other numbers what the evidence prefers.
    integrate : {"auto", "grid", "ccd", "mode"}
        Hyper-parameters, as of `qpruntime.effects.EffectsModel`. "auto" takes the mode from 2000
        steps on, where they are well known.
    cycle : "auto", bool or float
        Whether there is a swing whose period wanders, or about how many steps it has. By default
        what the evidence prefers, in place of seasons that were found in the values.
    drift : "auto" or bool
        Whether patterns of seasons change from one to the next; by default what the evidence
        prefers, of seasons of whole steps, 60 at most, that occur four times.
    outliers : "auto" or bool
        Whether single observations far from all around them, one in a hundred at most, may have an
        effect of their own, which forecasts do not have; if the evidence prefers it.

    Attributes
    ----------
    seasons_ : tuple of float
    trend_ : str
        The trend of the largest weight.
    trends_ : dict of str to float
        Trends and their weights; more than one with ``trend="average"``.
    noise_ : bool
    cycle_ : bool
    drift_ : tuple of float
        Seasons whose pattern changes.
    family_ : str or Likelihood
    outliers_ : list
        Times of observations with an effect of their own.
    model_ : EffectsModel
        Of columns "step", "trend", "season P" and the regressors; ``summary()`` has deviations.
        Real numbers are in units of ``structure_.scale`` there. It is the one of `trend_`.
    structure_ : Structure
    members_ : tuple of ChosenStructure
        Structures and models of which forecasts are the mixture, the heaviest first.
    weights_ : ndarray
        Their weights, which sum to 1.
    regressors_ : tuple or None
        Columns of X.
    clock_ : Clock
        Origin and length of a step.
    last_ : float
        Step that forecasts begin after.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.forecasting import GPForecaster
    >>> t = np.arange(240)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * t / 12.0)))
    >>> model = GPForecaster().fit(y)
    >>> model.seasons_
    (12.0,)
    >>> model.predict(3).round(1).tolist()
    [2.5, 4.2, 6.6]
    """

    seasons: Literal["auto"] | Sequence[float] = "auto"
    _: KW_ONLY
    trend: Literal["auto", "average", "level", "line", "slope", "damped", "none"] = "auto"
    noise: Literal["auto"] | bool = "auto"
    family: str | Likelihood = "auto"
    integrate: Literal["auto", "grid", "ccd", "mode"] = "auto"
    cycle: Literal["auto"] | bool | float = "auto"
    drift: Literal["auto"] | bool = "auto"
    outliers: Literal["auto"] | bool = "auto"

    @alone
    def fit(
        self,
        y: ArrayLike,
        X: Any = None,
        *,
        index: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Self:
        """Fit to a series.

        Parameters
        ----------
        y : array-like, shape (N,)
            Observations; missing ones are NaN, and steps that are left out of the index are
            missing too.
        X : data frame, mapping of columns or array-like, shape (N, d), optional
            Regressors, as holidays and prices: linear effects on the predictor. Columns that are
            constant are left out, with a warning.
        index : array-like, shape (N,), optional
            Times, numbers or dates, in any order; by default those of a pandas series, or
            0, 1, 2, ...
        exposure : array-like, shape (N,), optional
            Of counts: what rates are of, as days open.

        Raises
        ------
        InputError
            If observations, times, regressors or parameters are not usable.

        Warns
        -----
        ConvergenceWarning
            If the fit has not settled.
        """
        draft = draft_of(self)
        known = draft._read(y, X, index, exposure)
        return commit(self, draft._taken(averaged(self, choose(self, known), known)))

    def _read(
        self, y: Any, X: Any, index: Any, exposure: Any, clock: StepClock | None = None
    ) -> ObservedSeries:
        """Return the observed rows in the order of time; store the clock and the last time."""
        times = index_of(y, index)
        if clock is None:
            clock = StepClock.of(times)
        steps = clock.steps(times)
        if np.unique(steps).size < len(steps):
            StepClock.of(times)  # says which are the same
        n = len(steps)
        values = values_of(y, n)
        size = None if exposure is None else real(exposure, "exposure")
        if size is not None:
            if size.shape not in ((), (n,)):
                raise InputError(f"exposure must have shape ({n},), got {size.shape}")
            size = np.broadcast_to(size, (n,))
        rows = np.argsort(steps, kind="stable")
        rows = rows[np.isfinite(values[rows])]
        if rows.size < _LEAST:
            raise InputError(
                f"a forecast needs at least {_LEAST} observations, got {rows.size} that are not "
                "missing"
            )
        columns = None
        self.regressors_ = None
        if X is not None:
            frame = DataColumns(X)
            if frame.rows != n:
                raise InputError(f"X must have {n} rows, one a step, got {frame.rows}")
            self.regressors_ = tuple(frame.names)
            columns = {str(name): frame.column(name)[rows] for name in frame.names}
        self.clock_, self.last_ = clock, float(steps.max())
        return ObservedSeries(
            clock, steps[rows], values[rows], columns, None if size is None else size[rows]
        )

    def _taken(self, chosen: WeightedStructures) -> Self:
        """Store the chosen structures and their fitted models."""
        self.members_, self.weights_ = chosen
        best = self.members_[0]
        self.structure_, self.model_ = best.structure, best.model
        self.seasons_, self.trend_ = best.structure.seasons, best.structure.trend
        self.noise_, self.family_ = best.structure.noise, best.structure.family
        self.cycle_, self.drift_ = best.structure.cycle > 0.0, best.structure.drifting
        return self

    @property
    def trends_(self) -> dict[str, float]:
        """Trends and their weights, largest weight first."""
        check_is_fitted(self, "members_")
        names = [member.structure.trend for member in self.members_]
        return dict(zip(names, self.weights_.tolist(), strict=True))

    @property
    def outliers_(self) -> list[Any]:
        """Times of observations that have an outlier effect."""
        check_is_fitted(self, "structure_")
        times = list(self.clock_.at(np.array(self.structure_.outliers, dtype=float)))
        return [float(time) if isinstance(time, np.floating) else time for time in times]

    def _ahead(self, horizon: Any, X: Any, exposure: Any, index: Any) -> Ahead:
        """Return distributions at the next steps, or at the times of `index`."""
        check_is_fitted(self, "model_")
        if (horizon is None) == (index is None):
            raise InputError("say either how many steps, horizon, or at which times, index=")
        if index is None:
            steps = self.clock_.steps_after(self.last_, whole(horizon, "horizon", 1))
        else:
            steps = self.clock_.steps(index)
        if self.regressors_ is None and X is not None:
            raise InputError("X has some regressors, and the model was fitted without any")
        if self.regressors_ is not None and X is None:
            raise InputError(
                f"X is missing: the model was fitted with {', '.join(map(str, self.regressors_))}, "
                f"and a forecast needs their values at its {len(steps)} times"
            )
        parts = []
        for member in self.members_:
            data = member.structure.columns(steps, X, exposure)
            parts.append(ahead_of(member.model, data, member.structure.scale))
        return Ahead.mixed(parts, self.weights_)

    def index_ahead(self, horizon: int) -> Any:
        """Times of the `horizon` steps after the fit, shape (horizon,).

        Numbers or dates of NumPy; with a time zone an index of pandas.
        """
        check_is_fitted(self, "model_")
        return self.clock_.after(self.last_, whole(horizon, "horizon", 1))

    def _predict_once(self) -> tuple[Array, ...]:
        X = None if self.regressors_ is None else {name: [0.0] for name in self.regressors_}
        ahead = self._ahead(1, X, None, None)
        ahead.mean()
        return ahead.mixture.mean, ahead.mixture.variance

    @alone
    def predict(
        self, horizon: int | None = None, X: Any = None, *, exposure: Any = None, index: Any = None
    ) -> Array:
        """Expected observations of steps to come, or at any times, shape (T,).

        Parameters
        ----------
        horizon : int, optional
            Steps after the last of the fit.
        X : data frame, mapping of columns or array-like, shape (T, d)
            Regressors, if there were any.
        exposure : array-like, shape (T,), optional
        index : array-like, shape (T,), optional
            Times instead of a horizon, also those of the fit.

        Warns
        -----
        UserWarning
            If an expected observation is above the 99 % quantile of the same distribution.
        """
        ahead = self._ahead(horizon, X, exposure, index)
        mean = ahead.mean()
        _warn_of_tails(ahead, mean)
        return mean

    @alone
    def predict_quantiles(
        self,
        horizon: int | None = None,
        X: Any = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Quantiles of observations, shape (T, Q); arguments as of `predict`, and levels `q`."""
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        return self._ahead(horizon, X, exposure, index).quantiles(at)

    def predict_interval(
        self,
        horizon: int | None = None,
        X: Any = None,
        level: float = 0.9,
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Central intervals of observations, shape (T, 2)."""
        ends = central_levels(level)
        return self.predict_quantiles(horizon, X, ends, exposure=exposure, index=index)

    @alone
    def predict_log_density(
        self,
        y: ArrayLike,
        horizon: int | None = None,
        X: Any = None,
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Log densities, of counts probabilities, of what came, shape (T,); NaN where it is NaN."""
        ahead = self._ahead(horizon, X, exposure, index)
        observed = values_of(y, ahead.mixture.mean.shape[1])
        known = np.isfinite(observed)
        log_densities = np.full(observed.shape, np.nan)
        if known.any():
            log_densities[known] = ahead.only(known).log_density(observed[known])
        return log_densities

    def predict_log_pmf(
        self,
        y: ArrayLike,
        horizon: int | None = None,
        X: Any = None,
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Log probabilities of counts that came: `predict_log_density` of counts."""
        return self.predict_log_density(y, horizon, X, exposure=exposure, index=index)

    def effects(self, name: str) -> Table:
        """One part of the predictor: "trend", "season P", or "step", the noise that lasts."""
        return self.model_at().effects(name)

    def model_at(self) -> EffectsModel:
        """The fitted model of effects."""
        check_is_fitted(self, "model_")
        return self.model_


def _warn_of_tails(ahead: Ahead, mean: Array) -> None:
    """Warn where an expectation is made by a tail of less than 1 %."""
    if not (ahead.discrete or ahead.scale.log):
        return
    rows = np.flatnonzero((ahead.mixture.variance > FAR_TAIL_VARIANCE).any(axis=0))
    if not rows.size:
        return
    high = ahead.only(rows).quantiles(np.array([0.99]))[:, 0]
    warn_of_far_tails(mean, rows, high, "its distribution", "fewer steps")
