"""Forecasts of thousands of series in one call, which learn from each other."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from qpruntime._duration import announce
from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, levels, shown, whole
from qpruntime.dataframes.levels import check_kinds, level_key
from qpruntime.dataframes.readers import ColumnLike, DataLike
from qpruntime.errors import InputError, warn
from qpruntime.estimators.process import commit, draft_of
from qpruntime.execution.resolve import executor_of
from qpruntime.execution.threads import threads_of
from qpruntime.forecasting.calendar import StepClock
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.long_table import LongTable
from qpruntime.forecasting.pooling import Result, Task, common, fit_some, pieces
from qpruntime.forecasting.structure import Structure
from qpruntime.persistence.file import Savable

__all__ = ["GPPanelForecaster"]


#: Seconds between two lines of progress.
_EVERY = 2.0
#: Number of series whose models predict once to check a loaded file.
_TRIED = 20


@contextmanager
def _counting(verbose: int, what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (done, total) that prints progress, or None if `verbose` is 0."""
    if not whole(int(verbose), "verbose", 0):
        yield None
        return
    begun = said = time.monotonic()

    def report(done: int, of: int) -> None:
        """Print how many are done and the seconds that remain, at most every two seconds."""
        nonlocal said
        now = time.monotonic()
        if now - said < _EVERY and done < of:
            return
        said = now
        remaining = (now - begun) * (of - done) / max(done, 1)
        print(
            f"{what}: {done * total // max(of, 1)} of {total}, {remaining:.0f} s left",
            file=sys.stderr,
        )

    yield report


#: Hyper-parameters are common from so many series on.
_FEW = 10
#: Bytes of a fitted series: some, and so many for each observation and node.
_BASE, _EACH = 40_000.0, 350.0


@restorable("gp-panel-forecaster/1", root=True)
@dataclass(eq=False, repr=False, match_args=False)
class GPPanelForecaster(Savable, BaseEstimator):
    """Forecasts of many series, each by a `GPForecaster`, from a long table or labels of rows.

    The structure (seasons, trend, noise and family) is selected by majority vote on a sample of the
    series and used for all. Hyper-parameters maximise the sample's summed log evidence.

    Parameters
    ----------
    forecaster : GPForecaster, optional
        Forecaster whose options apply to every series.
    hyperparameters : {"auto", "shared", "prior", "own"}
        "shared" uses the hyper-parameters of the sample. "prior" learns them for each series, under
        a prior whose centre and spread come from the sample. "own" fits each series as if it were
        alone, with its own structure, clock and nodes of hyper-parameters. "auto" shares from 10
        series on.
    sample : int
        Maximum number of series from which structure and hyper-parameters are learnt; they are
        spread evenly over the series of at least median length.
    together : "auto" or bool
        True if forecasts begin after the last time of all series, False if each begins after its
        own. By default they begin together if most series end there.
    errors : {"warn", "raise"}
        Treatment of a series that cannot be fitted: "warn" names it and makes its forecasts NaN.
    n_jobs : int, optional
        Number of threads, by default one. Fits of short series are mostly Python code, which gains
        from processes of a cluster but not from threads.
    scheduler : str, optional
        Address of a dask scheduler whose workers fit the series, such as tcp://host:8786.
    verbose : int
        If 1, print how many series are done.

    Attributes
    ----------
    series_ : tuple
        Labels of the S series.
    models_ : dict
        Fitted forecasters by label.
    failed_ : dict
        Error message of each series that could not be fitted, by label.
    structure_ : Structure or None
        Structure that all series share.

    See Also
    --------
    qpruntime.forecasting.GPForecaster, qpruntime.forecasting.backtest

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.forecasting import GPForecaster, GPPanelForecaster
    >>> shop = np.repeat(np.arange(12), 60)
    >>> rate = np.exp(1.0 + 0.1 * shop + 0.5 * (np.tile(np.arange(60), 12) % 7 > 4))
    >>> sold = np.random.default_rng(0).poisson(rate)
    >>> panel = GPPanelForecaster(GPForecaster(seasons=[7])).fit(sold, by=shop)
    >>> panel.predict(7).shape
    (12, 7)
    """

    forecaster: GPForecaster | None = None
    _: KW_ONLY
    hyperparameters: Literal["auto", "shared", "prior", "own"] = "auto"
    sample: int = 30
    together: Literal["auto"] | bool = "auto"
    errors: Literal["warn", "raise"] = "warn"
    n_jobs: int | None = None
    scheduler: str | None = None
    verbose: int = 0

    def fit(
        self,
        y: ColumnLike,
        X: DataLike | None = None,
        *,
        by: ColumnLike | None = None,
        index: ColumnLike | None = None,
        exposure: ArrayLike | None = None,
        data: DataLike | None = None,
    ) -> Self:
        """Fit to all series.

        Parameters
        ----------
        y : array-like, shape (N,), or str
            Observations of all series; NaN is missing.
        X : data frame or mapping of columns, of N rows, or list of str, optional
            Regressors.
        by : array-like, shape (N,), or str, or list of str
            Which series a row is of. A pandas series with two levels of index needs none: the
            first says so, the second has the times.
        index : array-like, shape (N,), or str, optional
            Times, in any order; by default the rows of each series are 0, 1, 2, ...
        exposure : array-like, shape (N,), or str, optional
        data : data frame or mapping of columns, optional
            What names of columns are of.

        Raises
        ------
        InputError
            If columns or parameters are not usable, all series fail or, with ``errors="raise"``,
            one does; the message names it.
        ExecutorError
            If the cluster went away.

        Warns
        -----
        UserWarning
            If series cannot be fitted.
        """
        draft = draft_of(self)
        how = choice(self.hyperparameters, "hyperparameters", ("auto", "shared", "prior", "own"))
        choice(self.errors, "errors", ("warn", "raise"))
        most = whole(self.sample, "sample", 1)
        single = GPForecaster() if self.forecaster is None else self.forecaster
        if not isinstance(single, GPForecaster):
            raise InputError(f"forecaster must be a GPForecaster, got {shown(single)}")
        table = LongTable.of(y, X, by, index, exposure, data)
        clock = _clock(table)
        count = len(table.labels)
        if how == "auto":
            how = "shared" if count >= _FEW else "own"
        nodes = 1 if how == "shared" else 20
        require(
            sum(_BASE + _EACH * nodes * len(rows) for rows in table.rows),
            f"forecasters of {count} series",
            "fit them in parts",
        )
        structure = None
        if how != "own":
            structure = _common(single, table, clock, most, how == "prior")
        draft._take(table, self._fits(table, (single, structure, clock)), clock, structure)
        return commit(self, draft)

    def _fits(
        self, table: LongTable, lasting: tuple[GPForecaster, Structure | None, StepClock | None]
    ) -> list[Result]:
        """Fit all series, and say how long that takes."""
        count = len(table.labels)
        tasks = [Task(k, table.series(k)) for k in range(count)]
        # A few series say how long all will take: the fastest has nothing compiled.
        first, seconds = [], math.inf
        for task in tasks[: max(1, min(5, count // 20))]:
            begun = time.process_time()
            first += fit_some((*lasting, [task]))
            seconds = min(seconds, time.process_time() - begun)
        ahead = len(first)
        threads = threads_of(self.n_jobs) or (None if self.scheduler else 1)
        with executor_of(threads, self.scheduler) as run:
            hands = getattr(run, "workers", 1)
            announce(
                f"fitting {count} series",
                seconds * (count - ahead) / hands,
                "scheduler= has them fitted by the processes of a dask cluster",
            )
            calls = pieces(lasting, tasks[ahead:], bool(self.scheduler))
            # Forecasters of single series say how their fits ended.
            with (
                _counting(self.verbose, "series", count - ahead) as report,
                warnings.catch_warnings(action="ignore"),
            ):
                parts = run.run(fit_some, calls, report)
        return [*first, *(result for part in parts for result in part)]

    def _take(
        self,
        table: LongTable,
        results: list[Result],
        clock: StepClock | None,
        structure: Structure | None,
    ) -> None:
        """Store the fitted models, and warn about series that could not be fitted."""
        self.series_, self.structure_ = table.labels, structure
        self.regressors_ = None if table.X is None else tuple(table.X.names)
        self.models_ = {self.series_[k]: model for k, model, _ in results if model is not None}
        self.failed_ = {self.series_[k]: said for k, model, said in results if model is None}
        if self.failed_:
            label, said = next(iter(self.failed_.items()))
            sentence = (
                f"{len(self.failed_)} of {self.count} series cannot be fitted, the first is "
                f"{shown(label)}: {said}; failed_ has them all"
            )
            if self.errors == "raise" or not self.models_:
                raise InputError(sentence)
            warn(sentence, UserWarning)
        if clock is None:
            if self.together is True:
                raise InputError(
                    "together=True is for series whose times are steps of one clock, and these "
                    "are not: round their times"
                )
            return
        models = list(self.models_.values())
        times = [model.clock_.at(np.array([model.last_])) for model in models]
        ends = np.array([clock.steps(time)[0] for time in times])
        k = int(np.argmax(ends))
        alike = float(np.mean(ends == ends[k])) > 0.5
        if alike if isinstance(self.together, str) else bool(self.together):
            # Series that were fitted as if they were alone have clocks of their own.
            for model in models:
                model.last_ = float(model.clock_.steps(times[k])[0])

    def _predict_once(self) -> tuple[Array, ...]:
        for model in [*self.models_.values()][:_TRIED]:
            model._predict_once()
        return ()

    def predict(
        self,
        horizon: int,
        X: DataLike | None = None,
        *,
        by: ColumnLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Array:
        """Predict expected observations, shape (S, horizon); NaN for series without a fit.

        Parameters
        ----------
        horizon : int
            Steps.
        X : data frame or mapping of columns, of S * horizon rows, optional
            Regressors, if there were any, in the order of time for each series.
        by : array-like, shape (S * horizon,), optional
            Which series rows of X, and exposures, are of.
        exposure : array-like, shape (S * horizon,), optional
        """
        ahead = whole(horizon, "horizon", 1)
        means = np.full((len(self._labels()), ahead), np.nan)
        for k, model, regressors in self._each(ahead, X, by, exposure):
            means[k] = model.predict(ahead, **regressors)
        return means

    def predict_quantiles(
        self,
        horizon: int,
        X: DataLike | None = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        by: ColumnLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Array:
        """Return quantiles of observations, shape (S, horizon, Q); arguments as of `predict`."""
        ahead = whole(horizon, "horizon", 1)
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        quantiles = np.full((len(self._labels()), ahead, at.size), np.nan)
        for k, model, regressors in self._each(ahead, X, by, exposure):
            quantiles[k] = model.predict_quantiles(ahead, q=at, **regressors)
        return quantiles

    def predict_interval(
        self,
        horizon: int,
        X: DataLike | None = None,
        level: float = 0.9,
        *,
        by: ColumnLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Array:
        """Return the central intervals of observations, shape (S, horizon, 2)."""
        ends = central_levels(level)
        return self.predict_quantiles(horizon, X, ends, by=by, exposure=exposure)

    def index_ahead(self, horizon: int) -> NDArray[Any]:
        """Return times of forecasts, shape (S, horizon); a series without a model has another's.

        Dates with a time zone are those of UTC.
        """
        ahead = whole(horizon, "horizon", 1)
        labels = self._labels()
        times = {name: model.index_ahead(ahead) for name, model in self.models_.items()}
        plain = {
            name: (index.tz_convert(None) if hasattr(index, "tz_convert") else index)
            for name, index in times.items()
        }
        default = next(iter(plain.values()))
        return np.array([np.asarray(plain.get(name, default)) for name in labels])

    def table(
        self,
        horizon: int,
        X: DataLike | None = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        by: ColumnLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return forecasts as columns of a long table, from which data frames can be made.

        Returns
        -------
        dict of ndarray, shape (S * horizon,)
            "series", "time", "mean", and a column for each level, as "5%".
        """
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        labels = self._labels()
        names = np.empty(len(labels), dtype=object)
        names[:] = labels
        if all(isinstance(label, str | int | float) for label in labels):
            names = np.array(labels)
        times = self.index_ahead(horizon)
        columns = {
            "series": np.repeat(names, horizon),
            "time": times.ravel(),
            "mean": self.predict(horizon, X, by=by, exposure=exposure).ravel(),
        }
        quantiles = self.predict_quantiles(horizon, X, at, by=by, exposure=exposure)
        for k, level in enumerate(at):
            columns[f"{100.0 * level:g}%"] = quantiles[:, :, k].ravel()
        return columns

    def _labels(self) -> tuple[Hashable, ...]:
        check_is_fitted(self, "models_")
        return self.series_

    def _each(
        self,
        horizon: int,
        X: DataLike | None,
        by: ColumnLike | None,
        exposure: ArrayLike | None,
    ) -> Iterator[tuple[int, GPForecaster, dict[str, Any]]]:
        """Yield number and model of each fitted series, with its regressors and exposures."""
        parts: dict[Hashable, dict[str, Any]] = {}
        if X is not None or (exposure is not None and np.ndim(exposure)):
            if by is None:
                raise InputError("by= says which series rows of X and of exposure are of")
            table = LongTable.of(np.empty(len(by)), X, by, None, exposure, None)
            parts = {level_key(name): table.series(k) for k, name in enumerate(table.labels)}
            check_kinds(parts, map(level_key, self.series_), "by")
        elif self.regressors_ is not None:
            raise InputError(
                f"X is missing: the series were fitted with "
                f"{', '.join(map(str, self.regressors_))}, and forecasts need their values"
            )
        for k, name in enumerate(self.series_):
            if name not in self.models_:
                continue
            regressors: dict[str, Any] = {"X": None, "exposure": exposure}
            if parts:
                key = level_key(name)
                if key not in parts or len(parts[key]["y"]) != horizon:
                    rows = len(parts[key]["y"]) if key in parts else 0
                    raise InputError(
                        f"series {shown(name)} has {rows} rows of X or exposure, and the "
                        f"horizon is {horizon}: give one row a step"
                    )
                regressors = {"X": parts[key]["X"], "exposure": parts[key]["exposure"]}
            yield k, self.models_[name], regressors

    def model(self, label: Hashable) -> GPForecaster:
        """Return the forecaster of one series.

        Raises
        ------
        InputError
            If there is none; what was wrong with it is said.
        """
        check_is_fitted(self, "models_")
        key = level_key(label)
        label = next((name for name in self.series_ if level_key(name) == key), label)
        if label in self.failed_:
            raise InputError(f"series {shown(label)} was not fitted: {self.failed_[label]}")
        if label not in self.models_:
            raise InputError(f"there is no series {shown(label)}; series_ has all {self.count}")
        return self.models_[label]

    @property
    def count(self) -> int:
        """Number of series."""
        return len(self.series_)


def _clock(table: LongTable) -> StepClock | None:
    """Return one clock for all series, if their times are whole steps of it."""
    if table.index is None:
        longest = max(len(rows) for rows in table.rows)
        return StepClock.of(np.arange(max(longest, 3)))
    index = table.index
    # Dates with a time zone are of pandas.
    values = index.drop_duplicates() if hasattr(index, "drop_duplicates") else np.unique(index)
    try:
        clock = StepClock.of(values)
        steps = clock.steps(values)
    except InputError:
        return None
    return clock if bool((steps == np.round(steps)).all()) else None


def _common(
    single: GPForecaster, table: LongTable, clock: StepClock | None, most: int, spread: bool
) -> Structure:
    """Return structure and hyper-parameters learnt from a sample of the longer series."""
    length = np.array([len(rows) for rows in table.rows])
    long = np.flatnonzero(length >= np.median(length))
    chosen = long[np.unique(np.linspace(0, long.size - 1, most).round().astype(int))]
    sample = []
    said = ""
    for k in chosen:
        try:
            sample.append(clone(single)._read(**table.series(int(k)), clock=clock))
        except InputError as error:
            said = f"series {shown(table.labels[k])}: {error}"
    if not sample:
        raise InputError(f"none of {len(chosen)} series can be read; {said}")
    with warnings.catch_warnings(action="ignore"):
        return common(clone(single).set_params(integrate="mode"), sample, spread)
