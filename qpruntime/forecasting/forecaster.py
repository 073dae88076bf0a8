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
from qpruntime._validation import central_levels, levels, whole
from qpruntime.dataframes.readers import DataColumns, DataLike
from qpruntime.effects import SummaryTable
from qpruntime.effects.integration import Integration
from qpruntime.errors import InputError
from qpruntime.estimators.process import commit, draft_of
from qpruntime.execution.threads import alone
from qpruntime.forecasting.averaging import WeightedStructures, averaged
from qpruntime.forecasting.calendar import StepClock, Times, index_of
from qpruntime.forecasting.families import exposures_of, values_of
from qpruntime.forecasting.predictive import Ahead
from qpruntime.forecasting.structure import ahead_of
from qpruntime.forecasting.structure_search import choose
from qpruntime.forecasting.trial import ObservedSeries
from qpruntime.forecasting.volatility import CONSTANT, volatility_of
from qpruntime.likelihoods import Likelihood
from qpruntime.persistence.file import Savable
from qpruntime.predictive.mixtures import warn_of_far_tails

__all__ = ["GPForecaster"]

#: Minimum number of observations of a series.
_LEAST = 8


@restorable("gp-forecaster/1", root=True)
@dataclass(eq=False, repr=False, match_args=False)
class GPForecaster(Savable, BaseEstimator):
    """Forecasts of counts and of other numbers with their uncertainty.

    The predictor is the sum of level, trend, seasons, regressors and autoregressive noise. The
    trend is a random walk, and seasons are cyclic random walks. Linear effects are integrated with
    all other parts. The predictor is the log rate of counts, or the mean of other numbers or their
    logs.
    The variance of normal and log-normal numbers may change over time, if there are fewer than 2000
    of them; forecasts follow the last errors.
    `GPPanelForecaster` fits many series.

    Parameters
    ----------
    seasons : "auto" or sequence of float
        Periods in steps; () for none. By default dates have those periods of the calendar, hour,
        day, week and year, that occur twice. Numbered times have the periods that `find_seasons`
        finds in the values.
    trend : {"auto", "average", "level", "line", "slope", "damped", "none"}
        "level" drifts, "line" drifts around a straight line, "slope" has a drifting slope, and
        "damped" has a drifting level and a slope that reverts to zero. By default the evidence
        decides; below 40 observations without seasons it averages. "average" mixes trends, with and
        without noise, whose log weights are within 4 of the best. Weights are evidences, and their
        square roots below 40 observations.
    noise : "auto" or bool
        Autoregressive noise; by default if residuals are autocorrelated.
    family : str or Likelihood
        "poisson", "negative-binomial", "zero-inflated", "hurdle" or "rounded-gaussian" for counts;
        "gaussian", "student-t" or "log-normal" for real numbers; or a likelihood. By default counts
        are Poisson, or negative binomial if residuals are overdispersed, with excess zeros if that
        is not enough. Counts that vary less than Poisson's, as in a timetable, are normal numbers
        rounded to whole ones, if the evidence prefers these. For other numbers the evidence
        decides.
    integrate : {"auto", "grid", "ccd", "mode"}
        Integration over hyper-parameters, as in `qpruntime.effects.EffectsModel`. "auto" takes the
        mode from 2000 steps on, where it is well determined.
    cycle : "auto", bool or float
        A cycle whose period wanders, or its approximate period in steps. By default the evidence
        decides; the cycle replaces seasons that were found in the values.
    drift : "auto" or bool
        Seasons whose pattern changes from one to the next. By default the evidence decides, for
        seasons of at most 60 whole steps that occur four times.
    outliers : "auto" or bool
        Outlier effects for single observations far from their neighbours, at most one in a hundred,
        if the evidence prefers them. Forecasts have no such effects.

    Attributes
    ----------
    seasons_ : tuple of float
    trend_ : str
        The trend of the largest weight.
    trends_ : dict of str to float
        Trends and their weights; more than one if trends are averaged.
    noise_ : bool
    cycle_ : bool
    drift_ : tuple of float
        Seasons whose pattern changes.
    family_ : str or Likelihood
    outliers_ : list
        Times of observations with an outlier effect.
    model_ : EffectsModel
        Model with columns "step", "trend", "season P" and the regressors; ``summary()`` has the
        deviations. Real numbers are in units of ``structure_.scale``. Its trend is `trend_`.
    structure_ : Structure
    members_ : tuple of ChosenStructure
        Structures and models that forecasts mix, largest weight first.
    weights_ : ndarray
        Their weights, which sum to 1.
    volatilities_ : tuple of Volatility
        Factors of the variance of each member's observations after the fit, with weights.
    timetable_ : Timetable or None
        Counts that have repeated exactly, which forecasts mix with those of the model.
    regressors_ : tuple or None
        Columns of X.
    clock_ : StepClock
        Origin and length of a step.
    last_ : float
        Step that forecasts begin after.

    See Also
    --------
    qpruntime.forecasting.GPPanelForecaster, qpruntime.forecasting.backtest,
    qpruntime.forecasting.find_seasons, qpruntime.effects.EffectsModel,
    qpruntime.plotting.ForecastDisplay

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
    integrate: Integration = "auto"
    cycle: Literal["auto"] | bool | float = "auto"
    drift: Literal["auto"] | bool = "auto"
    outliers: Literal["auto"] | bool = "auto"

    @alone
    def fit(
        self,
        y: ArrayLike,
        X: DataLike | None = None,
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
        self,
        y: ArrayLike,
        X: DataLike | None,
        index: ArrayLike | None,
        exposure: ArrayLike | None,
        clock: StepClock | None = None,
    ) -> ObservedSeries:
        """Return the observed rows in the order of time; store the clock and the last time."""
        times = index_of(y, index)
        if clock is None:
            clock = StepClock.of(times)
        steps = clock.steps(times)
        if np.unique(steps).size < len(steps):
            StepClock.of(times)  # says which are the same
        n = len(steps)
        values, sizes = values_of(y, n), exposures_of(exposure, n)
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
            clock, steps[rows], values[rows], columns, None if sizes is None else sizes[rows]
        )

    def _taken(self, chosen: WeightedStructures, constant: bool = False) -> Self:
        """Store the chosen structures and their fitted models, with a constant variance or not."""
        self.members_, self.weights_, self.timetable_ = chosen
        self.volatilities_ = tuple(
            CONSTANT if constant else volatility_of(member.structure, member.model.state_)
            for member in self.members_
        )
        best = self.members_[0]
        self.structure_, self.model_ = best.structure, best.model
        self.seasons_, self.trend_ = best.structure.seasons, best.structure.trend
        self.noise_, self.family_ = best.structure.noise, best.structure.family
        self.cycle_, self.drift_ = best.structure.cycle > 0.0, best.structure.drifting
        return self

    @property
    def trends_(self) -> dict[str, float]:
        """Trends and their weights, with and without noise; that of `trend_` first."""
        check_is_fitted(self, "members_")
        weights: dict[str, float] = {}
        for member, weight in zip(self.members_, self.weights_.tolist(), strict=True):
            trend = member.structure.trend
            weights[trend] = weights.get(trend, 0.0) + weight
        return weights

    @property
    def outliers_(self) -> list[Any]:
        """Times of observations that have an outlier effect."""
        check_is_fitted(self, "structure_")
        times = list(self.clock_.at(np.array(self.structure_.outliers, dtype=float)))
        return [float(time) if isinstance(time, np.floating) else time for time in times]

    def _ahead(
        self,
        horizon: int | None,
        X: DataLike | None,
        exposure: ArrayLike | None,
        index: ArrayLike | None,
    ) -> Ahead:
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
        for member, volatility in zip(self.members_, self.volatilities_, strict=True):
            data = member.structure.columns(steps, X, exposure)
            part = ahead_of(member.model, data, member.structure.scale)
            if not volatility.is_constant:
                rows = steps > self.last_
                part = part.scaled(volatility.factors, volatility.weights, rows)
            parts.append(part)
        ahead = Ahead.mixed(parts, self.weights_)
        if self.timetable_ is None:
            return ahead
        return self.timetable_.mixed(ahead, self.structure_.wall_steps(steps))

    def index_ahead(self, horizon: int) -> Times:
        """Return the times of the `horizon` steps after the fit, shape (horizon,).

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
        self,
        horizon: int | None = None,
        X: DataLike | None = None,
        *,
        exposure: ArrayLike | None = None,
        index: ArrayLike | None = None,
    ) -> Array:
        """Predict expected observations of the next steps, or at any times, shape (T,).

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
        if ahead.discrete or ahead.scale.log:
            warn_of_far_tails(
                mean,
                ahead.mixture,
                lambda rows: ahead.only(rows).quantiles(np.array([0.99]))[:, 0],
                "its distribution",
                "fewer steps",
            )
        return mean

    @alone
    def predict_quantiles(
        self,
        horizon: int | None = None,
        X: DataLike | None = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        exposure: ArrayLike | None = None,
        index: ArrayLike | None = None,
    ) -> Array:
        """Return quantiles of observations, (T, Q); arguments as of `predict`, and levels `q`."""
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        return self._ahead(horizon, X, exposure, index).quantiles(at)

    def predict_interval(
        self,
        horizon: int | None = None,
        X: DataLike | None = None,
        level: float = 0.9,
        *,
        exposure: ArrayLike | None = None,
        index: ArrayLike | None = None,
    ) -> Array:
        """Return the central intervals of observations, shape (T, 2)."""
        ends = central_levels(level)
        return self.predict_quantiles(horizon, X, ends, exposure=exposure, index=index)

    @alone
    def predict_log_density(
        self,
        y: ArrayLike,
        horizon: int | None = None,
        X: DataLike | None = None,
        *,
        exposure: ArrayLike | None = None,
        index: ArrayLike | None = None,
    ) -> Array:
        """Return log densities, or log probabilities of counts, shape (T,); NaN where y is."""
        ahead = self._ahead(horizon, X, exposure, index)
        observed = values_of(y, ahead.mixture.mean.shape[1])
        known = np.isfinite(observed)
        log_densities = np.full(observed.shape, np.nan)
        if known.any():
            log_densities[known] = ahead.only(known).log_density(observed[known])
        return log_densities

    def effects(self, name: str) -> SummaryTable:
        """Return one part of the predictor: "trend", "season P", or "step", the lasting noise."""
        check_is_fitted(self, "model_")
        return self.model_.effects(name)
