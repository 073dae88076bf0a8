"""Forecasts of counts: what is found, what is predicted, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qpruntime import InputError
from qpruntime.forecasting import GPForecaster, backtest, find_seasons
from tests.tools.cases import refuses

T = np.arange(324.0)
RATE = np.exp(1.2 + 0.8 * np.sin(2.0 * np.pi * T / 12.0))
RNG = np.random.default_rng(3)
Y = RNG.poisson(RATE)


@pytest.fixture(scope="module")
def model():
    return GPForecaster().fit(Y[:300])


def test_periods_are_found_and_no_others():
    hours = np.arange(2000.0)
    day, week = 2.0 * np.pi * hours / 24.0, 2.0 * np.pi * hours / 168.0
    rate = np.exp(1.0 + 0.6 * np.sin(day) + 0.3 * np.cos(week))
    y = np.random.default_rng(0).poisson(rate).astype(float)
    assert find_seasons(hours, y) == (24.0, 168.0)
    some = RNG.uniform(size=2000) < 0.8
    assert find_seasons(hours[some], y[some]) == (24.0, 168.0)
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drift = 0.05 * np.cumsum(rng.normal(size=400)) * (seed % 2)
        y = rng.poisson(np.exp(1.0 + np.clip(drift, -2.0, 2.0))).astype(float)
        found += bool(find_seasons(np.arange(400.0), y))
    assert found <= 1
    assert find_seasons(np.arange(30.0), y[:30], (7.0, 365.2)) == (7.0,)


def test_forecasts_are_near_the_truth(model):
    assert model.seasons_ == (12.0,)
    assert (model.family_, model.noise_) == ("poisson", False)
    ahead = Y[300:]
    log_p = model.predict_log_density(ahead, 24)
    truth = stats.poisson.logpmf(ahead, RATE[300:])
    assert np.mean(truth - log_p) < 0.06
    np.testing.assert_allclose(np.log(model.predict(24)), np.log(RATE[300:]), atol=0.3)
    ends = model.predict_interval(24)
    assert np.mean((ahead >= ends[:, 0]) & (ahead <= ends[:, 1])) >= 0.8
    # Probabilities of counts sum to one, and quantiles are theirs.
    counts = np.arange(60.0)
    pmf = np.exp(model.predict_log_density(counts, index=np.full(60, 305.0)))
    assert pmf.sum() == pytest.approx(1.0, abs=1e-6)
    q = model.predict_quantiles(q=(0.1, 0.9), index=[305.0])[0]
    mass = np.cumsum(pmf)
    for k, level in zip(q.astype(int), (0.1, 0.9), strict=True):
        assert mass[k - 1] < level <= mass[k]
    assert model.predict(index=[305.0])[0] == pytest.approx(counts @ pmf, rel=1e-5)
    np.testing.assert_allclose(model.predict(24)[5], model.predict(index=[305.0])[0], rtol=1e-12)


def test_dates_missing_stretches_exposures_and_regressors():
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=420, freq="D")
    holiday = np.arange(420) % 50 == 7
    open_hours = np.where(np.arange(420) % 3 == 0, 2.0, 1.0)
    weekday = np.arange(420) % 7  # the first is a Monday
    rate = np.exp(1.0 + np.where(weekday > 4, -0.8, 0.0) + 1.0 * holiday) * open_hours
    y = pandas.Series(RNG.poisson(rate).astype(float), index=days)
    y.iloc[100:130] = np.nan
    X = pandas.DataFrame({"holiday": holiday.astype(float)})
    fit = slice(0, 392)
    model = GPForecaster(trend="level", integrate="mode").fit(
        y.iloc[fit], X.iloc[fit], exposure=open_hours[fit]
    )
    assert [round(p, 6) for p in model.seasons_] == [7.0]
    assert model.index_ahead(2)[0] == np.datetime64("2025-01-27")
    found = model.model_.summary()["holiday"]
    assert abs(found["mean"] - 1.0) < 3.0 * found["sd"] < 1.0
    ahead = model.predict(28, X.iloc[392:], exposure=open_hours[392:])
    np.testing.assert_allclose(np.log(ahead), np.log(rate[392:]), atol=0.45)
    between = model.predict(X=X.iloc[100:130], index=days[100:130], exposure=open_hours[100:130])
    np.testing.assert_allclose(np.log(between), np.log(rate[100:130]), atol=0.45)
    refuses("X is missing: the model was fitted with holiday", model.predict, 3)
    refuses("dates", model.predict, index=[3.0], X={"holiday": [0.0]})


@pytest.mark.slow
def test_counts_that_vary_more_and_noise_that_lasts():
    rng = np.random.default_rng(1)
    varied = rng.poisson(5.0 * rng.gamma(2.0, 0.5, 300))
    model = GPForecaster(seasons=(), trend="level", integrate="mode").fit(varied)
    assert model.family_ == "negative-binomial"
    assert 1.0 < model.model_.summary()["dispersion"]["mean"] < 4.0
    noise = np.zeros(300)
    for i in range(1, 300):
        noise[i] = 0.7 * noise[i - 1] + 0.5 * rng.normal()
    bare = GPForecaster(seasons=(), trend="none", integrate="mode")
    lasting = bare.fit(rng.poisson(np.exp(1.5 + noise)))
    assert lasting.noise_
    assert 0.4 < lasting.model_.summary()["ar1(step): rho"]["mean"] < 0.9
    # What lasts is forecast, and forgotten.
    spread = np.diff(lasting.predict_interval(30), axis=1)[:, 0]
    assert spread[0] <= spread[-1]


def test_scores_of_a_backtest():
    bare = {"trend": "level", "noise": False, "drift": False, "integrate": "mode"}
    found = backtest(GPForecaster(**bare), Y[:120], horizon=12, windows=2)
    assert found.starts.tolist() == [96, 108]
    own = GPForecaster(**bare).fit(Y[:108])
    assert found.nlpd[1] == pytest.approx(
        -own.predict_log_density(Y[108:120], 12).mean(), rel=1e-12
    )
    drawn = own.predict_quantiles(12, q=(np.arange(150) + 0.5) / 150.0)
    # E|Y - y| - E|Y - Y'|/2 is the same score.
    crps = np.mean([
        np.abs(row - y).mean() - 0.5 * np.abs(row[:, None] - row).mean()
        for row, y in zip(drawn, Y[108:120], strict=True)
    ])  # fmt: skip
    assert found.crps[1] == pytest.approx(crps, rel=0.03)
    refuses("ask for fewer", backtest, GPForecaster(), Y[:40], horizon=12)


def test_refused(model):
    refuses("is no count", GPForecaster(family="poisson").fit, [1.0, 2.5, 3.0] * 10)
    with pytest.raises(InputError, match="times number 2 and 3 are both 2: add up"):
        GPForecaster().fit(Y[:20], index=[0, 1, 2, 2, *range(4, 20)])
    refuses("at least 8 observations, got 3", GPForecaster().fit, [1.0, np.nan, 2.0, 3.0])
    refuses("longer than the series", GPForecaster(seasons=[500]).fit, Y[:100])
    refuses("either how many steps", model.predict)
    refuses("fitted without any", model.predict, 2, X=np.zeros((2, 1)))
    with pytest.raises(InputError, match="of text make dates"):
        GPForecaster().fit(Y[:10], index=[f"2020-01-{i:02d}" for i in range(1, 11)])
