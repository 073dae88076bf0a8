"""The forecaster of counts: a predictor of trend, seasons, regressors and noise, fitted by EP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.effects import EffectsModel, Fixed, Series, Table, Walk
from qpruntime.effects.frame import Frame
from qpruntime.errors import InputError
from qpruntime.estimators.atomic import commit, draft_of
from qpruntime.forecasting.seasons import find_seasons
from qpruntime.forecasting.times import Clock, index_of
from qpruntime.saving.savable import Savable
from qpruntime.validation import choice, levels, number, real, shown, whole

__all__ = ["GPForecaster", "counts_of"]

#: Steps between knots of the trend at least, and knots at most.
_SPACING, _KNOTS = 4, 100
#: Knots of a season at most: of a longer one a knot has several steps.
_PHASES = 200
#: Noise lasts if residuals of neighbours correlate by so many standard errors.
_LASTS = 3.0
_TREND, _NOISE = "trend", "step"


@dataclass(eq=False, repr=False, match_args=False)
class GPForecaster(Savable, BaseEstimator):
    """Forecasts of counts with their uncertainty, in seconds for 20 000 steps.

    log rate = level + trend + seasons + regressors + noise that lasts. The trend is a random walk,
    seasons are cyclic ones, the noise is autoregressive; linear effects are integrated with all
    else. Counts are Poisson, or negative binomial where they vary more.

    Parameters
    ----------
    seasons : "auto" or sequence of float
        Periods in steps. By default of dates those of the calendar, hour, day, week and year, that
        occur twice; of numbers those that the counts show, see `find_seasons`. () for none.
    trend : {"auto", "level", "slope", "none"}
        Whether levels drift, or slopes; by default what the evidence prefers.
    noise : "auto" or bool
        Whether what is left lasts from one step to the next; by default if residuals do.
    family : {"auto", "poisson", "negative-binomial"}
        By default Poisson, unless its residuals vary more than they may.
    integrate : {"auto", "grid", "ccd", "mode"}
        Hyper-parameters, as of `qpruntime.effects.EffectsModel`. "auto" takes the mode from 2000
        steps on, where they are well known.

    Attributes
    ----------
    seasons_ : tuple of float
    trend_ : str
    noise_ : bool
    family_ : str
    model_ : EffectsModel
        Of columns "step", "trend", "season P" and the regressors; ``summary()`` has deviations.
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
    trend: Literal["auto", "level", "slope", "none"] = "auto"
    noise: Literal["auto"] | bool = "auto"
    family: Literal["auto", "poisson", "negative-binomial"] = "auto"
    integrate: Literal["auto", "grid", "ccd", "mode"] = "auto"

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
            Counts; missing ones are NaN, and steps that are left out of the index are missing too.
        X : data frame, mapping of columns or array-like, shape (N, d), optional
            Regressors, as holidays and prices: linear effects on the log rate.
        index : array-like, shape (N,), optional
            Times, numbers or dates, rising; by default those of a pandas series, or 0, 1, 2, ...
        exposure : array-like, shape (N,), optional
            What rates are of, as days open.

        Raises
        ------
        InputError
            If a value is no count, or times, regressors or parameters are not usable.

        Warns
        -----
        ConvergenceWarning
            If the fit has not settled.
        """
        draft = draft_of(self)
        choice(self.trend, "trend", ("auto", "level", "slope", "none"))
        choice(self.family, "family", ("auto", "poisson", "negative-binomial"))
        given = index_of(y, index)
        draft.clock_ = Clock.of(given)
        steps = draft.clock_.steps(given)
        counts = counts_of(y, len(steps))
        known = np.isfinite(counts)
        if known.sum() < 8:
            raise InputError(f"a forecast needs at least 8 counts, got {int(known.sum())}")
        draft.regressors_ = None if X is None else tuple(Frame(X).names)
        draft.last_ = float(steps[-1])
        draft.seasons_ = _seasons(self.seasons, steps[known], counts[known], draft.clock_)
        data = draft._columns(steps, X, exposure)
        own = {name: column[known] for name, column in data.items()}
        seen = counts[known]
        integrate = self.integrate
        if integrate == "auto":
            integrate = "mode" if known.sum() >= 2000 else "auto"
        draft.family_ = "poisson" if self.family == "auto" else self.family
        trends = ("level", "slope") if self.trend == "auto" else (self.trend,)
        tried = [(one, draft._model(own, one, False, "mode").fit(own, seen)) for one in trends]
        draft.trend_, model = max(tried, key=lambda pair: pair[1].log_evidence_)
        draft.noise_ = bool(self.noise)
        if isinstance(self.noise, str):
            choice(self.noise, "noise", ("auto",))
            draft.noise_ = _lasts(_residuals(model, own, seen), steps[known])
        if draft.noise_:
            model = draft._model(own, draft.trend_, True, "mode").fit(own, seen)
        varied = self.family == "auto" and _varies(_residuals(model, own, seen))
        if varied:
            draft.family_ = "negative-binomial"
        if varied or integrate != "mode":
            model = draft._model(own, draft.trend_, draft.noise_, integrate).fit(own, seen)
        draft.model_ = model
        return commit(self, draft)

    def _columns(self, steps: Array, X: Any, exposure: ArrayLike | None) -> dict[str, Any]:
        """Columns of the model for these steps."""
        data: dict[str, Any] = {_NOISE: steps, _TREND: steps}
        for period in self.seasons_:
            knots = _phases(period)
            phase = np.floor(np.mod(steps, period) * (knots / period) + 1e-9)
            data[f"season {period:g}"] = np.minimum(phase, knots - 1.0)
        size = np.ones(len(steps)) if exposure is None else real(exposure, "exposure")
        if size.shape not in ((), steps.shape):
            raise InputError(f"exposure must have shape {steps.shape}, got {size.shape}")
        data["exposure"] = np.broadcast_to(size, steps.shape)
        if (self.regressors_ is None) != (X is None):
            said = "none" if X is None else "some"
            raise InputError(f"X has {said}, and the model was fitted with {self.regressors_}")
        if X is not None:
            frame = Frame(X)
            if frame.rows != len(steps):
                raise InputError(f"X must have {len(steps)} rows, one a step, got {frame.rows}")
            for name in self.regressors_ or ():
                if str(name) in data:
                    raise InputError(f"a regressor must not be called {name!r}: rename it")
                data[str(name)] = frame.numbers(name)
        return data

    def _model(self, data: Any, trend: str, noise: bool, integrate: Any) -> EffectsModel:
        """The model of effects, not fitted."""
        steps = data[_TREND]
        terms: list[Any] = []
        if self.regressors_:
            terms.append(Fixed(*map(str, self.regressors_)))
        if trend != "none":
            span = steps[-1] - steps[0]
            knots = int(np.clip(min(len(steps), span) // _SPACING, 5, _KNOTS))
            terms.append(Walk(_TREND, 1 if trend == "level" else 2, knots=knots))
        for period in self.seasons_:
            terms.append(Walk(f"season {period:g}", 2, cyclic=_phases(period)))
        if noise:
            terms.append(Series(_NOISE, step=1.0))
        return EffectsModel(terms, self.family_, exposure="exposure", integrate=integrate)

    def _ahead(self, horizon: Any, X: Any, exposure: Any, index: Any) -> dict[str, Any]:
        """Columns of steps to come, or of the times asked for."""
        check_is_fitted(self, "model_")
        if (horizon is None) == (index is None):
            raise InputError("say either how many steps, horizon, or at which times, index=")
        if index is None:
            steps = self.last_ + np.arange(1.0, whole(horizon, "horizon", 1) + 1.0)
        else:
            steps = self.clock_.steps(index)
        return self._columns(steps, X, exposure)

    def index_ahead(self, horizon: int) -> Any:
        """Times of the `horizon` steps after the fit, shape (horizon,)."""
        check_is_fitted(self, "model_")
        return self.clock_.after(self.last_, whole(horizon, "horizon", 1))

    def predict(
        self, horizon: int | None = None, X: Any = None, *, exposure: Any = None, index: Any = None
    ) -> Array:
        """Expected counts of steps to come, or at any times, shape (T,).

        Parameters
        ----------
        horizon : int, optional
            Steps after the last of the fit.
        X : data frame, mapping of columns or array-like, shape (T, d)
            Regressors, if there were any.
        exposure : array-like, shape (T,), optional
        index : array-like, shape (T,), optional
            Times instead of a horizon, also those of the fit.
        """
        return self.model_at().predict(self._ahead(horizon, X, exposure, index))

    def predict_quantiles(
        self,
        horizon: int | None = None,
        X: Any = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Quantiles of counts, shape (T, Q); arguments as of `predict`, and levels `q`."""
        data = self._ahead(horizon, X, exposure, index)
        return self.model_at().predict_quantiles(data, levels(q, "q"), kind="observation")

    def predict_interval(
        self,
        horizon: int | None = None,
        X: Any = None,
        level: float = 0.9,
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Central intervals of counts, shape (T, 2)."""
        inside = number(level, "level", above=0.0, most=0.999999)
        ends = (0.5 - 0.5 * inside, 0.5 + 0.5 * inside)
        return self.predict_quantiles(horizon, X, ends, exposure=exposure, index=index)

    def predict_log_pmf(
        self,
        y: ArrayLike,
        horizon: int | None = None,
        X: Any = None,
        *,
        exposure: Any = None,
        index: Any = None,
    ) -> Array:
        """Log probabilities of counts that came, shape (T,); NaN where they are NaN."""
        data = self._ahead(horizon, X, exposure, index)
        counts = counts_of(y, len(data[_NOISE]))
        known = np.isfinite(counts)
        found = np.full(counts.shape, np.nan)
        own = {name: column[known] for name, column in data.items()}
        if known.any():
            found[known] = self.model_at().predict_log_density(own, counts[known])
        return found

    def effects(self, name: str) -> Table:
        """One part of the log rate: "trend", "season P", or "step", the noise that lasts."""
        return self.model_at().effects(name)

    def model_at(self) -> EffectsModel:
        """The fitted model of effects."""
        check_is_fitted(self, "model_")
        found: EffectsModel = self.model_
        return found


def _phases(period: float) -> int:
    """Knots of a season."""
    return int(min(_PHASES, max(3, round(period))))


def counts_of(y: Any, n: int) -> Array:
    """Counts with NaN for those that are missing, shape (N,)."""
    try:
        if hasattr(y, "isna"):  # of pandas, whose missing values are no floats
            found = np.array(y.to_numpy(dtype=float, na_value=np.nan))
        else:
            found = np.array(y, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"y must be counts, got {shown(y)}") from error
    if found.shape != (n,):
        raise InputError(f"y must have shape ({n},), one count a time, got {found.shape}")
    wrong = ~np.isnan(found) & ((found < 0.0) | (found != np.round(found)) | np.isinf(found))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(
            f"y is {found[i]:g} at number {i}, which is no count: of other numbers fit "
            "GPRobustRegressor, or GPRegressor with a likelihood of theirs, to the times"
        )
    return found


def _seasons(asked: Any, steps: Array, counts: Array, clock: Clock) -> tuple[float, ...]:
    """Periods in steps."""
    if isinstance(asked, str):
        choice(asked, "seasons", ("auto",))
        return find_seasons(steps, counts, clock.calendar())
    found = tuple(sorted(number(p, "seasons", above=2.0) for p in asked))
    span = float(steps[-1] - steps[0])
    for p in found:
        if p > span:
            raise InputError(
                f"season {p:g} is longer than the series, {span:g} steps: leave it out"
            )
    return found


def _residuals(model: EffectsModel, data: Any, y: Array) -> Array:
    """Observed less expected counts, in standard deviations of a count."""
    mean = model.predict(data)
    dispersion = model.state_.likelihood(0).parameters.get("dispersion", np.inf)
    return np.asarray((y - mean) / np.sqrt(mean * (1.0 + mean / dispersion)))


def _lasts(residual: Array, steps: Array) -> bool:
    """Whether residuals of neighbouring steps are correlated."""
    follows = np.flatnonzero(np.diff(steps) == 1.0) + 1
    if follows.size < 20:
        return False
    share = float(np.mean(residual[follows] * residual[follows - 1])) / float(np.mean(residual**2))
    return share > _LASTS / np.sqrt(follows.size)


def _varies(residual: Array) -> bool:
    """Whether squares of residuals are above 1, by their own standard error."""
    square = residual**2
    return float(square.mean()) - 1.0 > _LASTS * float(square.std()) / np.sqrt(square.size)
