"""Forecasts of counts and of other series: trend, seasons, regressors and noise that lasts."""

from qpruntime.forecasting.backtest import backtest
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.panel import GPPanelForecaster
from qpruntime.forecasting.seasonality import find_seasons

__all__ = ["GPForecaster", "GPPanelForecaster", "backtest", "find_seasons"]
