"""Backtests against forecasts made by hand, for every family, order and kind of times."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss

from qpruntime.forecasting import GPForecaster, backtest
from qpruntime.forecasting.backtest import _LEVELS
from tests.tools.cases import refuses

RNG = np.random.default_rng(5)
N = 60
BARE = {"trend": "level", "noise": False, "drift": False, "cycle": False, "outliers": False}
COUNTS = RNG.poisson(6.0, N).astype(float)
REALS = np.sin(np.arange(N) / 4.0) + 0.2 * RNG.standard_normal(N)
HOLIDAY = (np.arange(N) % 7 == 3).astype(float)


def bare(**more):
    return GPForecaster((), integrate="mode", **{**BARE, **more})


def by_hand(model, y, **known):
    """Mean negative log density of the last 10 rows given those before."""
    before = {name: value[:50] for name, value in known.items()}
    after = {name: value[50:] for name, value in known.items()}
    if "X" in known:
        before["X"], after["X"] = ({"holiday": part["X"]} for part in (before, after))
    own = model.fit(y[:50], **before)
    if "index" not in after:
        after["horizon"] = 10
    return -own.predict_log_density(y[50:], **after).mean()


def test_real_series_and_large_smooth_counts_have_no_exposure():
    found = backtest(bare(family="gaussian"), REALS, horizon=10, windows=1)
    assert found.nlpd[0] == pytest.approx(by_hand(bare(family="gaussian"), REALS), rel=1e-9)
    # The share of the window within the interval of the same forecast.
    ends = bare(family="gaussian").fit(REALS[:50]).predict_interval(10)
    seen = REALS[50:]
    assert found.coverage[0] == np.mean((seen >= ends[:, 0]) & (seen <= ends[:, 1])) > 0.5
    # Counts that are far smoother than events are real numbers to a forecaster left to choose.
    large = np.round(50_000.0 + 300.0 * REALS)
    found = backtest(bare(), large, horizon=10, windows=1)
    model = bare()
    assert found.nlpd[0] == pytest.approx(by_hand(model, large), rel=1e-9)
    assert model.family_ in ("gaussian", "log-normal")


def test_a_shuffled_index_trains_on_the_past_alone():
    model = bare(family="poisson")
    exposure, index = 0.5 + HOLIDAY, np.arange(N, dtype=float)
    wanted = by_hand(bare(family="poisson"), COUNTS, exposure=exposure, X=HOLIDAY, index=index)
    mixed = RNG.permutation(N)
    given = {"horizon": 10, "windows": 1, "index": index[mixed], "exposure": exposure[mixed]}
    found = backtest(model, COUNTS[mixed], {"holiday": HOLIDAY[mixed]}, **given)
    assert found.starts.tolist() == [50]
    assert found.nlpd[0] == pytest.approx(wanted, rel=1e-9)
    short = model, COUNTS, {"holiday": HOLIDAY[:-1]}
    refuses("X must have 60 rows, one a time, got 59", backtest, *short, horizon=10, windows=1)


def test_periods_and_time_zones_are_kept():
    pandas = pytest.importorskip("pandas")
    zone = pandas.date_range("2024-10-25", periods=N, freq="h", tz="Europe/Berlin")
    months = pandas.period_range("2018-01", periods=N, freq="M")
    for index in (zone, months, pandas.Series(zone), zone.to_pydatetime().tolist()):
        found = backtest(bare(family="poisson"), COUNTS, index=index, horizon=10, windows=1)
        wanted = by_hand(bare(family="poisson"), COUNTS, index=index)
        assert found.nlpd[0] == pytest.approx(wanted, rel=1e-9)
    # Twelve months are a year, and the hours of a summer night two apart.
    seen = []

    class Watching(GPForecaster):
        def _taken(self, found):
            seen.append(self.clock_)
            return super()._taken(found)

    watching = Watching((), integrate="mode", family="poisson", **BARE)
    backtest(watching, COUNTS, index=months, horizon=10, windows=1)
    backtest(watching, COUNTS, index=zone, horizon=10, windows=1)
    assert (seen[0].kind, seen[0].zone) == ("months", None)
    assert (seen[1].kind, seen[1].zone) == ("even", "Europe/Berlin")


def test_scores_of_quantiles_and_intervals():
    """The CRPS is twice the mean pinball loss; ends of an interval of counts belong to it."""
    model = bare(family="poisson").fit(COUNTS[:50])
    quantiles = model.predict_quantiles(10, q=_LEVELS)
    pairs = zip(quantiles.T, _LEVELS, strict=True)
    losses = [mean_pinball_loss(COUNTS[50:], column, alpha=level) for column, level in pairs]
    found = backtest(bare(family="poisson"), COUNTS, horizon=10, windows=2)
    assert found.starts.tolist() == [40, 50]
    found = backtest(bare(family="poisson"), COUNTS, horizon=10, windows=1)
    assert found.crps[0] == pytest.approx(2.0 * np.mean(losses), rel=1e-9)
    for end in model.predict_interval(10).T:
        y = np.concatenate([COUNTS[:50], end])
        found = backtest(bare(family="poisson"), y, horizon=10, windows=1)
        assert found.coverage.tolist() == [1.0]
    words = "4 windows of 10 rows take 80 rows, got 60"
    refuses(words, backtest, bare(), COUNTS, horizon=10, windows=4)
    refuses("ask for fewer", backtest, GPForecaster(), COUNTS[:40], horizon=12)
