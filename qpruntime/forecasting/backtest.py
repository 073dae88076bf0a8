"""How well forecasts would have done: the end of a series is left out, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from qpruntime._typing import Array
from qpruntime._validation import whole
from qpruntime.dataframes.readers import Frame
from qpruntime.errors import InputError
from qpruntime.forecasting.calendar import index_of
from qpruntime.forecasting.families import values_of
from qpruntime.forecasting.forecaster import GPForecaster

__all__ = ["Backtest", "backtest"]

#: Levels of quantiles: the continuous ranked probability score is twice their mean pinball loss.
_LEVELS = (np.arange(100) + 0.5) / 100.0


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Scores of forecasts of W windows, each of `horizon` steps.

    Attributes
    ----------
    starts : ndarray of int, shape (W,)
        Number of the first row that was left out.
    nlpd : ndarray, shape (W,)
        Mean of -log p(y) of the window.
    crps : ndarray, shape (W,)
        Mean continuous ranked probability score, in units of y: of a sure forecast the absolute
        error.
    coverage : ndarray, shape (W,)
        Share of observations within central intervals of 90 %.
    """

    starts: Any
    nlpd: Array
    crps: Array
    coverage: Array

    def __repr__(self) -> str:
        each = {"nlpd": self.nlpd, "crps": self.crps, "90 % hold": self.coverage}
        said = ", ".join(f"{name} {values.mean():.3f}" for name, values in each.items())
        return f"<Backtest of {len(self.starts)} windows: {said}>"


def backtest(
    model: GPForecaster,
    y: ArrayLike,
    X: Any = None,
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
        As for `GPForecaster.fit`. Missing ones are not scored.
    horizon : int
        Rows of a window.
    windows : int
        Windows at the end of the series, which do not overlap.

    Raises
    ------
    InputError
        If the series is shorter than twice all windows.
    """
    ahead, count = whole(horizon, "horizon", 1), whole(windows, "windows", 1)
    given = index_of(y, index)
    times = given.to_numpy() if hasattr(given, "to_numpy") else np.asarray(given)
    n = len(times)
    values = values_of(y, n)
    if n < 2 * ahead * count:
        raise InputError(
            f"{count} windows of {ahead} rows take {2 * ahead * count} rows, got {n}: ask for fewer"
        )
    frame = None if X is None else Frame(X)
    size = np.ones(n) if exposure is None else np.broadcast_to(exposure, (n,))

    def part(some: slice) -> Any:
        if frame is None:
            return None
        return {name: frame.column(name)[some] for name in frame.names}

    scores = []
    starts = n - ahead * np.arange(count, 0, -1)
    for start in starts:
        before, after = slice(0, start), slice(start, start + ahead)
        own = clone(model).fit(
            values[before], part(before), index=times[before], exposure=size[before]
        )
        where = {"index": times[after], "exposure": size[after]}
        known = np.isfinite(values[after])
        if not known.any():
            raise InputError(f"rows {start} to {start + ahead - 1} have no observations to score")
        seen = values[after][known]
        log_p = own.predict_log_density(values[after], X=part(after), **where)[known]
        at = own.predict_quantiles(X=part(after), q=_LEVELS, **where)[known]
        gap = seen[:, None] - at
        pinball = np.where(gap > 0.0, _LEVELS * gap, (_LEVELS - 1.0) * gap)
        ends = own.predict_interval(X=part(after), **where)[known]
        inside = (seen >= ends[:, 0]) & (seen <= ends[:, 1])
        scores.append((-log_p.mean(), 2.0 * pinball.mean(), inside.mean()))
    return Backtest(starts, *np.array(scores, dtype=float).T)
