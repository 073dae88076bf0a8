"""The forecaster as one of sktime's: pipelines, evaluation and search of that package take it.

Needs sktime, the extra ``sktime``. Nothing else of the package imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qpruntime._formatting import install_hint
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.likelihoods import Likelihood

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
except ImportError as error:  # pragma: no cover
    raise ImportError(f"this module is a forecaster of sktime: {install_hint('sktime')}") from error

__all__ = ["GPSktimeForecaster"]


class GPSktimeForecaster(BaseForecaster):
    """`GPForecaster` with sktime's methods, for series and forecasts in pandas.

    Parameters
    ----------
    seasons, trend, noise, family, integrate, cycle, drift, outliers
        As in `GPForecaster`.

    Attributes
    ----------
    forecaster_ : GPForecaster
        Fitted forecaster.

    See Also
    --------
    qpruntime.forecasting.GPForecaster, qpruntime.forecasting.GPPanelForecaster

    Notes
    -----
    sktime fits panels and several variables one by one. `GPPanelForecaster` lets series learn from
    each other.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from qpruntime.forecasting.sktime import GPSktimeForecaster
    >>> months = pd.period_range("2020-01", periods=48, freq="M")
    >>> rate = np.exp(1.0 + np.sin(2.0 * np.pi * np.arange(48) / 12.0))
    >>> y = pd.Series(np.random.default_rng(0).poisson(rate), index=months)
    >>> model = GPSktimeForecaster(integrate="mode").fit(y, fh=[1, 2])
    >>> model.predict().index.tolist()
    [Period('2024-01', 'M'), Period('2024-02', 'M')]
    """

    _tags = {  # noqa: RUF012  sktime looks for a plain dictionary
        "authors": ["qpruntime"],
        "y_inner_mtype": "pd.Series",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": False,
        "capability:exogenous": True,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:missing_values": True,
        "requires-fh-in-fit": False,
        "X-y-must-have-same-index": True,
        "enforce_index_type": None,
    }

    def __init__(
        self,
        seasons: str | Sequence[float] = "auto",
        trend: str = "auto",
        noise: str | bool = "auto",
        family: str | Likelihood = "auto",
        integrate: str = "auto",
        cycle: str | bool | float = "auto",
        drift: str | bool = "auto",
        outliers: str | bool = "auto",
    ) -> None:
        self.seasons, self.trend, self.noise = seasons, trend, noise
        self.family, self.integrate = family, integrate
        self.cycle, self.drift, self.outliers = cycle, drift, outliers
        super().__init__()

    def _fit(
        self, y: pd.Series, X: pd.DataFrame | None, fh: ForecastingHorizon | None
    ) -> GPSktimeForecaster:
        self.forecaster_ = GPForecaster(**self.get_params()).fit(y.to_numpy(), X, index=y.index)
        return self

    def _at(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None
    ) -> tuple[pd.Index, dict[str, Any]]:
        """Return the index of the horizon, and arguments of `GPForecaster.predict`."""
        index = fh.to_absolute_index(self.cutoff)
        rows = X if X is None or len(X) == len(index) else X.loc[index]
        return index, {"X": rows, "index": index}

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.Series:
        index, at = self._at(fh, X)
        return pd.Series(self.forecaster_.predict(**at), index=index, name=self._y.name)

    def _predict_quantiles(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]
    ) -> pd.DataFrame:
        index, at = self._at(fh, X)
        # sktime counts from the outside in: its levels may have any order.
        order, back = np.unique(np.asarray(alpha, dtype=float), return_inverse=True)
        quantiles = self.forecaster_.predict_quantiles(q=order, **at)[:, back]
        name = self._get_varnames()[0]
        columns = pd.MultiIndex.from_product([[name], list(alpha)])
        return pd.DataFrame(quantiles, index=index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters with which sktime tests the class."""
        quick = {"family": "gaussian", "seasons": (), "noise": False, "integrate": "mode"}
        return [{"trend": "level", **quick}, {"trend": "none", **quick}]
