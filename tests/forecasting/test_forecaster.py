"""Forecasts: what is found and predicted, of odd series and zero counts too; what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from qpruntime.forecasting import GPForecaster, GPPanelForecaster, find_seasons
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.structure import Structure
from tests.tools.cases import every_case, refuses

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


def test_refused(model):
    refuses("is no count", GPForecaster(family="poisson").fit, [1.0, 2.5, 3.0] * 10)
    twice = [0, 1, 2, 2, *range(4, 20)]
    refuses("times number 2 and 3 are both 2: add up", GPForecaster().fit, Y[:20], index=twice)
    refuses("at least 8 observations, got 3", GPForecaster().fit, [1.0, np.nan, 2.0, 3.0])
    refuses("longer than the series", GPForecaster(seasons=[500]).fit, Y[:100])
    refuses("either how many steps", model.predict)
    refuses("fitted without any", model.predict, 2, X=np.zeros((2, 1)))
    days = [f"2020-01-{i:02d}" for i in range(1, 11)]
    refuses("of text make dates", GPForecaster().fit, Y[:10], index=days)
    refuses("one of poisson, negative-binomial", GPForecaster(family="weibul").fit, np.ones(20))
    refuses("is of numbers above 0", GPForecaster(family="log-normal").fit, np.zeros(20))
    ones, normal = np.ones(20), GPForecaster(family="gaussian")
    refuses("exposure is for counts", normal.fit, ones, exposure=ones)


ODD = np.random.default_rng(8)
DAYS = np.datetime64("2024-01-01") + np.arange(100)


def test_no_count_at_all_and_ten_counts():
    found = GPForecaster().fit(np.zeros(50))
    # Of no count in 50 steps: 95 % of rates below 3/50.
    assert 0.0 < found.predict(3)[2] < 3.0 / 50.0
    assert found.predict_quantiles(3, q=[0.95]).max() == 0.0
    assert (found.seasons_, found.trend_, found.noise_) == ((), "none", False)
    found = GPForecaster().fit(np.random.default_rng(0).poisson(5, 10))
    assert (found.predict(6) < 15.0).all()
    assert found.predict_interval(6)[5, 1] > found.predict_interval(6)[0, 1] - 1.0


@every_case(
    "name, y, low, high, family",
    [
        ("constant", np.full(40, 7.0), 6.0, 8.0, "rounded-gaussian"),
        ("constant, real", np.full(40, 2.5), 2.49, 2.51, None),
        ("below 0", ODD.normal(-5.0, 1.0, 60), -5.6, -4.4, "gaussian"),
        ("counts beyond all", ODD.poisson(3e6, 60), 2.99e6, 3.01e6, None),
        ("whole numbers below 0", ODD.integers(-9, 10, 60), -5.0, 5.0, "gaussian"),
        ("yes or no", ODD.uniform(size=60) < 0.5, 0.2, 0.8, "poisson"),
    ],
)
def test_raw_numbers_are_forecast(name, y, low, high, family):
    found = GPForecaster(integrate="mode", trend="level", noise=False).fit(y)
    assert family is None or found.family_ == family
    assert (found.predict(5) > low).all(), found.predict(5)
    assert (found.predict(5) < high).all(), found.predict(5)


def test_logarithms_are_taken_where_the_evidence_says_so():
    t = np.arange(120)
    rng = np.random.default_rng(2)
    log_y = 4.0 + 0.015 * t + 0.3 * np.sin(2.0 * np.pi * t / 12.0) + 0.05 * rng.normal(size=120)
    short = {"seasons": [12], "noise": False, "drift": False, "integrate": "mode"}
    found = GPForecaster(**short).fit(np.exp(log_y[:108]))
    assert found.family_ == "log-normal"
    np.testing.assert_allclose(np.log(found.predict(12)), log_y[108:], atol=0.25)
    plain = GPForecaster(**short).fit(log_y[:108] - 4.5)
    assert plain.family_ == "gaussian"
    np.testing.assert_allclose(plain.predict(12), log_y[108:] - 4.5, atol=0.25)
    # The same observations in other units have the same forecasts in these.
    bare = short | {"trend": "line"}
    other = GPForecaster(**bare).fit(100.0 * log_y[:108])
    mine = GPForecaster(family=other.family_, **bare).fit(log_y[:108])
    np.testing.assert_allclose(other.predict(3), 100.0 * mine.predict(3), rtol=1e-6)
    density = mine.predict_log_density(log_y[108:111], 3) - np.log(100.0)
    shifted = other.predict_log_density(100.0 * log_y[108:111], 3)
    np.testing.assert_allclose(shifted, density, rtol=1e-4)


def test_what_lasts_is_no_trend_that_runs_away():
    """Knots of a trend take up what lasts a few steps, and residuals do not show it."""
    rng = np.random.default_rng(4)
    noise = np.zeros(160)
    for i in range(1, 160):
        noise[i] = 0.6 * noise[i - 1] + 0.2 * rng.normal()
    y = rng.poisson(np.exp(7.0 + noise))
    found = GPForecaster(seasons=(), family="poisson", integrate="mode").fit(y[:150])
    assert (found.noise_, found.trend_) == (True, "level")
    # Far ahead a step is N(7, .25^2), and some more for what is not known of the level.
    low, high = np.log(found.predict_interval(10)[-1])
    assert 0.8 < high - low < 1.3
    assert low < 7.0 < high


def test_working_days_and_an_unsorted_series():
    pandas = pytest.importorskip("pandas")
    days = pandas.bdate_range("2024-01-01", periods=100)
    y = ODD.poisson(np.exp(1.5 + 0.8 * (np.asarray(days.day_of_week) == 4)))
    model = GPForecaster(integrate="mode", trend="level", noise=False).fit(y, index=days)
    assert model.seasons_ == (5.0,)
    assert list(model.index_ahead(2)) == list(pandas.bdate_range("2024-05-20", periods=2))
    assert np.argmax(model.predict(5)) == 4
    mixed = ODD.permutation(100)
    again = GPForecaster(integrate="mode", trend="level", noise=False)
    again.fit(y[mixed], index=days[mixed])
    np.testing.assert_allclose(again.predict(5), model.predict(5), rtol=1e-9)


def test_regressors_that_say_nothing_or_the_same():
    y = ODD.poisson(5.0, 100)
    x = ODD.normal(size=100)
    bare = GPForecaster(integrate="mode", trend="level", noise=False, seasons=())
    with pytest.warns(UserWarning, match="'h' has one value at all times of the fit"):
        model = bare.fit(y, {"h": np.zeros(100), "x": x}, index=DAYS)
    assert model.predict(2, {"h": [1.0, 0.0], "x": [0.0, 0.0]}).shape == (2,)
    ahead = {"a": [1.0], "b": [1.0], "c": [0.0]}
    twice = bare.fit(y, {"a": x, "b": x, "c": 1.0 - x}, index=DAYS).predict(1, ahead)
    once = bare.fit(y, {"a": x}, index=DAYS).predict(1, {"a": [1.0]})
    # Equal columns share one effect; its prior is then of a sum, which is hardly felt.
    np.testing.assert_allclose(twice, once, rtol=1e-3)
    refuses("needed at every step, also those to come", bare.predict, 1, {"a": [np.nan]})


def test_masked_observations_are_missing():
    y = np.random.default_rng(9).poisson(6.0, 40).astype(float)
    mask = np.arange(40) % 9 == 4
    spoilt = np.where(mask, 9999.0, y)
    bare = {"trend": "level", "noise": False, "family": "poisson", "integrate": "mode"}
    wanted = GPForecaster((), **bare).fit(np.where(mask, np.nan, y)).predict(3)
    for given in (
        np.ma.array(spoilt, mask=mask),
        np.ma.array(spoilt.astype(int), mask=mask),
        [np.ma.masked if m else v for m, v in zip(mask, y, strict=True)],
    ):
        got = GPForecaster((), **bare).fit(given).predict(3)
        np.testing.assert_array_equal(got, wanted)
    panel = GPPanelForecaster(GPForecaster((), **bare), hyperparameters="own")
    by = np.repeat(["a", "b"], 20)
    got = panel.fit(np.ma.array(spoilt, mask=mask), by=by).predict(3)
    wanted = panel.fit(np.where(mask, np.nan, y), by=by).predict(3)
    np.testing.assert_array_equal(got, wanted)
    model = GPForecaster((), **bare).fit(y)
    scored = model.predict_log_density(np.ma.array([5.0, 9999.0], mask=[0, 1]), 2)
    assert np.isnan(scored).tolist() == [False, True]
    gappy = np.ma.array(spoilt + 1.0, mask=mask)
    for given in ({"exposure": gappy}, {"X": {"x": gappy}}):
        refuses("masked", GPForecaster((), **bare).fit, y, **given)


N = 120
HOLIDAY = np.isin(np.arange(N), [20, 50, 80, 110]).astype(float)
NONE_ON_HOLIDAYS = np.where(HOLIDAY == 1.0, 0.0, np.random.default_rng(0).poisson(10.0, N))
CONSTANT = {"trend": "none", "noise": False, "cycle": False, "outliers": False}


def by_grid(y, column):
    """E rate on a day of the column and on another, of a level and an effect of sd 2."""
    # The prior is that of the effect where the column is farthest from its mean.
    share = column.mean()
    base, effect = np.linspace(-12.0, 6.0, 1201)[:, None], np.linspace(-16.0, 12.0, 1201)
    log_p = stats.norm.logpdf(effect * (1.0 - share), 0.0, 2.0) + 0.0 * base
    for value in (0.0, 1.0):
        rows = column == value
        eta = base + effect * value
        log_p = log_p + y[rows].sum() * eta - rows.sum() * np.exp(eta)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return (p * np.exp(base + effect)).sum(), (p * np.exp(base)).sum()


@every_case("kind", [float, bool, str])
def test_a_holiday_without_counts(kind):
    model = GPForecaster((), family="poisson", **CONSTANT)
    column = np.where(HOLIDAY == 1.0, "yes", "no") if kind is str else HOLIDAY.astype(kind)
    model.fit(NONE_ON_HOLIDAYS, X={"holiday": column})
    ahead = np.array(["yes", "no"]) if kind is str else np.array([1, 0]).astype(kind)
    found = model.predict(2, X={"holiday": ahead})
    wanted = by_grid(NONE_ON_HOLIDAYS, HOLIDAY)
    # A normal in place of a density with one long tail.
    assert found[0] == pytest.approx(wanted[0], rel=0.35)
    assert found[0] < 0.5
    assert found[1] == pytest.approx(wanted[1], rel=0.01)
    high = model.predict_quantiles(2, X={"holiday": ahead}, q=[0.99])[:, 0]
    assert (found < high).all()


def test_a_holiday_with_counts_is_as_it_was():
    # What the data know well no prior changes.
    y = np.where(HOLIDAY == 1.0, 900.0, NONE_ON_HOLIDAYS)
    model = GPForecaster((), family="poisson", **CONSTANT).fit(y, X={"holiday": HOLIDAY})
    found = model.predict(2, X={"holiday": [1.0, 0.0]})
    np.testing.assert_allclose(found, [900.0, NONE_ON_HOLIDAYS[HOLIDAY == 0.0].mean()], rtol=0.01)


@pytest.mark.slow
@every_case("at", [15, 59])
def test_one_event_among_zeros(at):
    y = np.zeros(60)
    y[at] = 1.0
    model = GPForecaster(()).fit(y)
    found = model.predict(6)
    # The rate is about 1/60, and no more than 2/60 if the event was long ago.
    assert (found > 0.2 / 60.0).all()
    assert (found < (4.0 if at == 59 else 2.0) / 60.0).all()
    assert model.predict_quantiles(6, q=[0.99]).max() <= 2.0


@every_case("how", ["shared", "prior", "own"])
def test_a_panel_of_series_without_counts(how):
    count = 3 if how == "own" else 12
    panel = GPPanelForecaster(GPForecaster(), hyperparameters=how)
    found = panel.fit(np.zeros(30 * count), by=np.repeat(np.arange(count), 30)).predict(2)
    assert found.shape == (count, 2)
    # As of a series alone, whose rate is below 3/30 with 95 %.
    np.testing.assert_allclose(found, GPForecaster().fit(np.zeros(30)).predict(2)[0], rtol=1e-9)
    assert (found > 0.0).all()
    assert (found < 3.0 / 30.0).all()


def test_means_beyond_the_quantiles_are_told():
    y = np.random.default_rng(1).poisson(5.0, 60)
    model = GPForecaster((), family="poisson", **{**CONSTANT, "trend": "slope"}).fit(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(2)
    with pytest.warns(UserWarning, match="99 % of its distribution is below") as told:
        mean = model.predict(600)
    high = model.predict_quantiles(600, q=[0.99])[:, 0]
    first = int(np.argmax(mean > high))
    assert mean[first] > high[first]
    assert f" in row {first}," in str(told[0].message)


@every_case(
    "column, farthest",
    [
        (HOLIDAY, 2.0),
        (7.0 - 3.0 * HOLIDAY, 2.0),
        (np.where(HOLIDAY == 1.0, np.arange(N), 0.0), 5.0),
        (1e6 * np.random.default_rng(2).normal(size=N), 5.0),
    ],
)
def test_priors_of_effects_are_those_where_columns_are_farthest_from_their_mean(column, farthest):
    structure = Structure((), ("x",), "none", False, "poisson", Scale())
    (term,) = structure._effects({"x": column})
    # In units of the column: by how much it changes the log rate where it is farthest.
    each = term.std / column.std()
    assert each * np.abs(column - column.mean()).max() == pytest.approx(farthest, rel=1e-12)
    # Real numbers are known by their noise, and keep the prior in units of the spread.
    structure = replace(structure, family="gaussian", scale=Scale(whole=False))
    (term,) = structure._effects({"x": column})
    assert (term.std, term.standardise) == (10.0, True)
