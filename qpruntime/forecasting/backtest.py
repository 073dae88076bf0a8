"""Backtests of forecasts, which leave out the end of a series repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from qpruntime._typing import Array
from qpruntime._validation import whole
from qpruntime.dataframes.readers import DataColumns, DataLike
from qpruntime.errors import InputError
from qpruntime.forecasting.calendar import StepClock, index_of
from qpruntime.forecasting.families import exposures_of, values_of
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.long_table import LongTable

__all__ = ["Backtest", "backtest"]

#: Levels of quantiles: the continuous ranked probability score is twice their mean pinball loss.
_LEVELS = (np.arange(100) + 0.5) / 100.0


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Scores of forecasts of W windows, each of `horizon` steps.

    Attributes
    ----------
    starts : ndarray of int, shape (W,)
        Number of the first row that was left out, in the order of time.
    nlpd : ndarray, shape (W,)
        Mean of -log p(y) of the window.
    crps : ndarray, shape (W,)
        Mean continuous ranked probability score, in units of y; for a point forecast it is the
        absolute error.
    coverage : ndarray, shape (W,)
        Share of observations within central intervals of 90 %.

    See Also
    --------
    qpruntime.forecasting.backtest, qpruntime.forecasting.GPForecaster

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.forecasting import GPForecaster
    >>> from qpruntime.forecasting.backtest import backtest
    >>> months = np.arange(96)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * months / 12.0)))
    >>> model = GPForecaster(seasons=[12], trend="level", family="poisson", integrate="mode")
    >>> scores = backtest(model, y, horizon=12, windows=2)
    >>> scores.starts.tolist(), scores.coverage.round(2).tolist()
    ([72, 84], [0.92, 0.92])
    """

    starts: NDArray[np.intp]
    nlpd: Array
    crps: Array
    coverage: Array

    def __repr__(self) -> str:
        scores = {"nlpd": self.nlpd, "crps": self.crps, "90 % hold": self.coverage}
        said = ", ".join(f"{name} {values.mean():.3f}" for name, values in scores.items())
        return f"<Backtest of {len(self.starts)} windows: {said}>"


def backtest(
    model: GPForecaster,
    y: ArrayLike,
    X: DataLike | None = None,
    *,
    horizon: int,
    windows: int = 5,
    index: ArrayLike | None = None,
    exposure: ArrayLike | None = None,
) -> Backtest:
    """Fit to the rows before each of the last windows, and score the forecasts of the window.

    Parameters
    ----------
    model : GPForecaster
        Its parameters; it need not be fitted, and stays as it is.
    y, X, index, exposure
        As for `GPForecaster.fit`, also in any order of times. Missing ones are not scored.
    horizon : int
        Rows of a window.
    windows : int
        Windows at the end of the series, which do not overlap.

    Returns
    -------
    Backtest

    Raises
    ------
    InputError
        If the series is shorter than twice all windows, or a window has no observations.

    See Also
    --------
    qpruntime.forecasting.backtest.Backtest, qpruntime.forecasting.GPForecaster

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.forecasting import GPForecaster
    >>> from qpruntime.forecasting.backtest import backtest
    >>> months = np.arange(96)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * months / 12.0)))
    >>> model = GPForecaster(seasons=[12], trend="level", family="poisson", integrate="mode")
    >>> backtest(model, y, horizon=12, windows=2)
    <Backtest of 2 windows: nlpd 2.080, crps 1.225, 90 % hold 0.917>
    """
    ahead, count = whole(horizon, "horizon", 1), whole(windows, "windows", 1)
    times = index_of(y, index)
    n = len(times)
    values = values_of(y, n)
    if n < 2 * ahead * count:
        raise InputError(
            f"{count} windows of {ahead} rows take {2 * ahead * count} rows, got {n}: ask for fewer"
        )
    order = np.argsort(StepClock.of(times).steps(times), kind="stable")
    frame = None if X is None else DataColumns(X)
    if frame is not None and frame.rows != n:
        raise InputError(f"X must have {n} rows, one a time, got {frame.rows}")
    table = LongTable((), [], values, frame, times, exposures_of(exposure, n))
    scores = []
    starts = n - ahead * np.arange(count, 0, -1)
    for start in starts:
        before, after = order[:start], order[start : start + ahead]
        forecaster = clone(model).fit(**table.part(before))
        if not np.isfinite(values[after]).any():
            raise InputError(f"rows {start} to {start + ahead - 1} have no observations to score")
        scores.append(_scores(forecaster, **table.part(after)))
    return Backtest(starts, *np.array(scores, dtype=float).T)


def _scores(forecaster: GPForecaster, y: Array, **where: Any) -> tuple[float, float, float]:
    """Return nlpd, crps and coverage of the observations that are not missing."""
    known = np.isfinite(y)
    observed = y[known]
    log_p = forecaster.predict_log_density(y, **where)[known]
    at = forecaster.predict_quantiles(q=_LEVELS, **where)[known]
    gap = observed[:, None] - at
    pinball = np.where(gap > 0.0, _LEVELS * gap, (_LEVELS - 1.0) * gap)
    ends = forecaster.predict_interval(**where)[known]
    inside = (observed >= ends[:, 0]) & (observed <= ends[:, 1])
    return -log_p.mean(), 2.0 * pinball.mean(), inside.mean()
