"""Forecasts of counts and events: trend, seasons, regressors and noise that lasts, by EP."""

from qpruntime.forecasting.backtest import backtest
from qpruntime.forecasting.forecaster import GPForecaster
from qpruntime.forecasting.seasons import find_seasons

__all__ = ["GPForecaster", "backtest", "find_seasons"]
