"""Forecasts of all series of a panel: arrays with a row a series, or one long table."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.long_table import LongTable
from qpruntime.validation import levels, number, shown, whole

__all__ = ["Panels"]


class Panels:
    """Methods of a fitted `GPPanelForecaster`."""

    series_: tuple[Hashable, ...]
    models_: dict[Hashable, GPForecaster]
    failed_: dict[Hashable, str]
    regressors_: tuple[Any, ...] | None

    def predict(
        self, horizon: int, X: Any = None, *, by: Any = None, exposure: Any = None
    ) -> Array:
        """Expected observations, shape (S, horizon); NaN for series that could not be fitted.

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
        found = np.full((len(self._labels()), ahead), np.nan)
        for k, model, own in self._each(ahead, X, by, exposure):
            found[k] = model.predict(ahead, **own)
        return found

    def predict_quantiles(
        self,
        horizon: int,
        X: Any = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        by: Any = None,
        exposure: Any = None,
    ) -> Array:
        """Quantiles of observations, shape (S, horizon, Q); arguments as of `predict`."""
        ahead = whole(horizon, "horizon", 1)
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        found = np.full((len(self._labels()), ahead, at.size), np.nan)
        for k, model, own in self._each(ahead, X, by, exposure):
            found[k] = model.predict_quantiles(ahead, q=at, **own)
        return found

    def predict_interval(
        self,
        horizon: int,
        X: Any = None,
        level: float = 0.9,
        *,
        by: Any = None,
        exposure: Any = None,
    ) -> Array:
        """Central intervals of observations, shape (S, horizon, 2)."""
        inside = number(level, "level", above=0.0, most=0.999999)
        ends = (0.5 - 0.5 * inside, 0.5 + 0.5 * inside)
        return self.predict_quantiles(horizon, X, ends, by=by, exposure=exposure)

    def index_ahead(self, horizon: int) -> NDArray[Any]:
        """Times of the forecasts, shape (S, horizon); of a series without a model those of another.

        Dates with a time zone are those of UTC.
        """
        ahead = whole(horizon, "horizon", 1)
        labels = self._labels()
        each = {name: one.index_ahead(ahead) for name, one in self.models_.items()}
        plain = {
            name: (one.tz_convert(None) if hasattr(one, "tz_convert") else one)
            for name, one in each.items()
        }
        other = next(iter(plain.values()))
        return np.array([np.asarray(plain.get(name, other)) for name in labels])

    def table(
        self,
        horizon: int,
        X: Any = None,
        q: ArrayLike = (0.05, 0.5, 0.95),
        *,
        by: Any = None,
        exposure: Any = None,
    ) -> dict[str, NDArray[Any]]:
        """Forecasts as columns of a long table, which data frames are made of.

        Returns
        -------
        dict of ndarray, shape (S * horizon,)
            "series", "time", "mean", and a column for each level, as "5%".
        """
        at = levels(np.atleast_1d(np.asarray(q, dtype=float)), "q")
        labels = self._labels()
        names = np.empty(len(labels), dtype=object)
        names[:] = labels
        if all(isinstance(one, str | int | float) for one in labels):
            names = np.array(labels)
        times = self.index_ahead(horizon)
        columns = {
            "series": np.repeat(names, horizon),
            "time": times.ravel(),
            "mean": self.predict(horizon, X, by=by, exposure=exposure).ravel(),
        }
        each = self.predict_quantiles(horizon, X, at, by=by, exposure=exposure)
        for k, level in enumerate(at):
            columns[f"{100.0 * level:g}%"] = each[:, :, k].ravel()
        return columns

    def _labels(self) -> tuple[Hashable, ...]:
        check_is_fitted(self, "models_")
        return self.series_

    def _each(
        self, horizon: int, X: Any, by: Any, exposure: Any
    ) -> Iterator[tuple[int, GPForecaster, dict[str, Any]]]:
        """Number and model of each series, with its own rows of regressors and exposures."""
        parts: dict[Hashable, dict[str, Any]] = {}
        if X is not None or np.ndim(exposure):
            if by is None:
                raise InputError("by= says which series rows of X and of exposure are of")
            table = LongTable.of(np.empty(len(by)), X, by, None, exposure, None)
            parts = {name: table.series(k) for k, name in enumerate(table.labels)}
        elif self.regressors_ is not None:
            raise InputError(
                f"X is missing: the series were fitted with "
                f"{', '.join(map(str, self.regressors_))}, and forecasts need their values"
            )
        for k, name in enumerate(self.series_):
            if name not in self.models_:
                continue
            own: dict[str, Any] = {"X": None, "exposure": exposure}
            if parts:
                if name not in parts or len(parts[name]["y"]) != horizon:
                    rows = len(parts[name]["y"]) if name in parts else 0
                    raise InputError(
                        f"series {shown(name)} has {rows} rows of X or exposure, and the "
                        f"horizon is {horizon}: give one row a step"
                    )
                own = {"X": parts[name]["X"], "exposure": parts[name]["exposure"]}
            yield k, self.models_[name], own
