"""Forecasts of thousands of series in one call, which learn from each other."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from qpruntime.errors import InputError, warn
from qpruntime.estimators.atomic import commit, draft_of
from qpruntime.execution.calls import threads_of
from qpruntime.execution.executors import executor_of
from qpruntime.forecasting.clock import Clock
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.long_table import LongTable
from qpruntime.forecasting.many import Task, fit_some, pieces
from qpruntime.forecasting.pool import common
from qpruntime.forecasting.progress import counted
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.together import Panels
from qpruntime.memory import require
from qpruntime.notice import announce
from qpruntime.saving.savable import Savable
from qpruntime.validation import choice, shown, whole

__all__ = ["GPPanelForecaster"]

#: Hyper-parameters are common from so many series on.
_FEW = 10
#: Bytes of a fitted series: some, and so many for each observation and node.
_BASE, _EACH = 40_000.0, 350.0


@dataclass(eq=False, repr=False, match_args=False)
class GPPanelForecaster(Panels, Savable, BaseEstimator):
    """Forecasts of many series, each by a `GPForecaster`, from a long table or labels of rows.

    What most of a sample of the series ask for, seasons, a trend, noise that lasts and a family,
    all are given; hyper-parameters are learnt from the sum of the evidences of the sample.

    Parameters
    ----------
    forecaster : GPForecaster, optional
        Its options are those of every series.
    hyperparameters : {"auto", "shared", "prior", "own"}
        "shared" ones are those of the sample; "prior" learns them for each series, with a prior
        whose centre and spread the sample has taught; "own" fits each series as if it were alone,
        its parts too. "auto" shares from 10 series on.
    sample : int
        Series that common parts and hyper-parameters are learnt from, at most; they are spread
        evenly over those of at least median length.
    together : "auto" or bool
        Whether forecasts begin after the last time of all series, or each after its own; by
        default together if most of them end there.
    errors : {"warn", "raise"}
        What a series that cannot be fitted does: a warning that names it, and forecasts that are
        NaN, or an error.
    n_jobs : int, optional
        Threads of this machine, by default one; fits of short series are mostly Python's work,
        which threads do not share: a cluster of processes does.
    scheduler : str, optional
        Address of a dask scheduler whose workers fit instead, as tcp://host:8786.
    verbose : int
        1 says how many series are done.

    Attributes
    ----------
    series_ : tuple
        Labels of the series, S of them.
    models_ : dict
        Fitted forecasters by label.
    failed_ : dict
        What was wrong with series that have none, by label.
    structure_ : Structure or None
        What all series have in common.

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
        y: Any,
        X: Any = None,
        *,
        by: Any = None,
        index: Any = None,
        exposure: ArrayLike | str | None = None,
        data: Any = None,
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
        draft.series_, clock = table.labels, _clock(table)
        draft.regressors_ = None if table.X is None else tuple(table.X.names)
        count = len(table.labels)
        if how == "auto":
            how = "shared" if count >= _FEW else "own"
        nodes = 1 if how == "shared" else 20
        require(
            sum(_BASE + _EACH * nodes * len(rows) for rows in table.rows),
            f"forecasters of {count} series",
            "fit them in parts",
        )
        tasks = [Task(k, table.series(k)) for k in range(count)]
        structure = None
        if how != "own":
            structure = _common(single, table, clock, most, how == "prior")
        draft.structure_ = structure
        # A few series say how long all will take: the fastest has nothing compiled.
        first, seconds = [], math.inf
        for one in tasks[: max(1, min(5, count // 20))]:
            begun = time.process_time()
            first += fit_some((single, structure, clock, [one]))
            seconds = min(seconds, time.process_time() - begun)
        ahead = len(first)
        with executor_of(threads_of(self.n_jobs) or _alone(self.scheduler), self.scheduler) as run:
            hands = getattr(run, "workers", 1)
            announce(
                f"fitting {count} series",
                seconds * (count - ahead) / hands,
                "scheduler= has them fitted by the processes of a dask cluster",
            )
            calls = pieces((single, structure, clock), tasks[ahead:], bool(self.scheduler))
            with counted(self.verbose, "series", count - ahead) as report, _quiet():
                rest = run.run(fit_some, calls, report)
        found = [*first, *(one for part in rest for one in part)]
        draft._take(found, clock, self.together, self.errors)
        if draft.failed_:
            warn(_sentence(draft.failed_, count), UserWarning)
        return commit(self, draft)

    def _take(self, found: list[Any], clock: Clock | None, together: Any, errors: str) -> None:
        """Keep what was fitted, and name what was not."""
        self.models_ = {self.series_[k]: one for k, one, _ in found if one is not None}
        self.failed_ = {self.series_[k]: said for k, one, said in found if one is None}
        if self.failed_ and (errors == "raise" or not self.models_):
            raise InputError(_sentence(self.failed_, len(self.series_)))
        if clock is None:
            if together is True:
                raise InputError(
                    "together=True is for series whose times are steps of one clock, and these "
                    "are not: round their times"
                )
            return
        ends = np.array([one.last_ for one in self.models_.values()])
        last = float(ends.max())
        same = float(np.mean(ends == last)) > 0.5 if isinstance(together, str) else bool(together)
        if same:
            for one in self.models_.values():
                one.last_ = last

    def model(self, label: Hashable) -> GPForecaster:
        """The forecaster of one series.

        Raises
        ------
        InputError
            If there is none; what was wrong with it is said.
        """
        check_is_fitted(self, "models_")
        if label in self.failed_:
            raise InputError(f"series {label!r} was not fitted: {self.failed_[label]}")
        if label not in self.models_:
            raise InputError(f"there is no series {shown(label)}; series_ has all {self.count}")
        found: GPForecaster = self.models_[label]
        return found

    @property
    def count(self) -> int:
        """Number of series."""
        return len(self.series_)


def _alone(scheduler: str | None) -> int | None:
    return None if scheduler else 1


def _clock(table: LongTable) -> Clock | None:
    """One clock for all series, if their times are whole steps of it."""
    if table.index is None:
        longest = max(len(rows) for rows in table.rows)
        return Clock.of(np.arange(max(longest, 3)))
    own = table.index
    # Dates with a time zone are of pandas.
    values = own.drop_duplicates() if hasattr(own, "drop_duplicates") else np.unique(own)
    try:
        found = Clock.of(values)
        steps = found.steps(values)
    except InputError:
        return None
    return found if bool((steps == np.round(steps)).all()) else None


def _common(
    single: GPForecaster, table: LongTable, clock: Clock | None, most: int, spread: bool
) -> Structure:
    """Parts and hyper-parameters of a sample of the longer series."""
    length = np.array([len(rows) for rows in table.rows])
    long = np.flatnonzero(length >= np.median(length))
    chosen = long[np.unique(np.linspace(0, long.size - 1, most).round().astype(int))]
    some = []
    said = ""
    for k in chosen:
        try:
            some.append(clone(single)._read(**table.series(int(k)), clock=clock))
        except InputError as error:
            said = f"series {table.labels[k]!r}: {error}"
    if not some:
        raise InputError(f"none of {len(chosen)} series can be read; {said}")
    with _quiet():
        return common(clone(single).set_params(integrate="mode"), some, spread)


def _quiet() -> Any:
    """Warnings of single series: how they ended stands in their forecasters."""
    held = warnings.catch_warnings()

    class Quiet:
        def __enter__(self) -> None:
            held.__enter__()
            warnings.simplefilter("ignore")

        def __exit__(self, *error: Any) -> None:
            held.__exit__(*error)

    return Quiet()


def _sentence(failed: dict[Hashable, str], count: int) -> str:
    """Name the first of the series that failed."""
    label, said = next(iter(failed.items()))
    return (
        f"{len(failed)} of {count} series cannot be fitted, the first is {label!r}: {said}; "
        "failed_ has them all"
    )
