"""What nobody thinks of beforehand: series without counts, of one value, with holes, of reals."""

from __future__ import annotations

import numpy as np
import pytest

from qpruntime import InputError
from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(8)
RNG_MASK = np.random.default_rng(9)
DAYS = np.datetime64("2024-01-01") + np.arange(100)


def test_no_count_at_all():
    found = GPForecaster().fit(np.zeros(50))
    # Of no count in 50 steps: 95 % of rates below 3/50.
    assert 0.0 < found.predict(3)[2] < 3.0 / 50.0
    assert found.predict_quantiles(3, q=[0.95]).max() == 0.0
    assert (found.seasons_, found.trend_, found.noise_) == ((), "none", False)


def test_ten_counts_have_finite_means():
    found = GPForecaster().fit(np.random.default_rng(0).poisson(5, 10))
    assert (found.predict(6) < 15.0).all()
    assert found.predict_interval(6)[5, 1] > found.predict_interval(6)[0, 1] - 1.0


@every_case(
    "name, y, low, high, family",
    [
        ("constant", np.full(40, 7.0), 6.0, 8.0, "rounded-gaussian"),
        ("constant, real", np.full(40, 2.5), 2.49, 2.51, None),
        ("below 0", RNG.normal(-5.0, 1.0, 60), -5.6, -4.4, "gaussian"),
        ("counts beyond all", RNG.poisson(3e6, 60), 2.99e6, 3.01e6, None),
        ("whole numbers below 0", RNG.integers(-9, 10, 60), -5.0, 5.0, "gaussian"),
        ("yes or no", RNG.uniform(size=60) < 0.5, 0.2, 0.8, "poisson"),
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
    shift = other.predict_log_density(100.0 * log_y[108:111], 3)
    np.testing.assert_allclose(
        shift, mine.predict_log_density(log_y[108:111], 3) - np.log(100.0), rtol=1e-4
    )


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
    y = RNG.poisson(np.exp(1.5 + 0.8 * (np.asarray(days.day_of_week) == 4)))
    model = GPForecaster(integrate="mode", trend="level", noise=False).fit(y, index=days)
    assert model.seasons_ == (5.0,)
    assert list(model.index_ahead(2)) == list(pandas.bdate_range("2024-05-20", periods=2))
    assert np.argmax(model.predict(5)) == 4
    mixed = RNG.permutation(100)
    again = GPForecaster(integrate="mode", trend="level", noise=False)
    again.fit(y[mixed], index=days[mixed])
    np.testing.assert_allclose(again.predict(5), model.predict(5), rtol=1e-9)


def test_regressors_that_say_nothing_or_the_same():
    y = RNG.poisson(5.0, 100)
    x = RNG.normal(size=100)
    bare = GPForecaster(integrate="mode", trend="level", noise=False, seasons=())
    with pytest.warns(UserWarning, match="'h' has one value at all times of the fit"):
        model = bare.fit(y, {"h": np.zeros(100), "x": x}, index=DAYS)
    assert model.predict(2, {"h": [1.0, 0.0], "x": [0.0, 0.0]}).shape == (2,)
    twice = bare.fit(y, {"a": x, "b": x, "c": 1.0 - x}, index=DAYS).predict(
        1, {"a": [1.0], "b": [1.0], "c": [0.0]}
    )
    once = bare.fit(y, {"a": x}, index=DAYS).predict(1, {"a": [1.0]})
    # Equal columns share one effect; its prior is then of a sum, which is hardly felt.
    np.testing.assert_allclose(twice, once, rtol=1e-3)
    refuses("needed at every step, also those to come", bare.predict, 1, {"a": [np.nan]})


def test_families_that_are_asked_for_and_are_not_there():
    refuses("one of poisson, negative-binomial", GPForecaster(family="weibul").fit, np.ones(20))
    refuses("is of numbers above 0", GPForecaster(family="log-normal").fit, np.zeros(20))
    with pytest.raises(InputError, match="exposure is for counts"):
        GPForecaster(family="gaussian").fit(np.ones(20), exposure=np.ones(20))


def test_masked_observations_are_missing():
    y = np.array(RNG_MASK.poisson(6.0, 40), dtype=float)
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
    with pytest.raises(InputError, match="masked"):
        GPForecaster((), **bare).fit(y, exposure=np.ma.array(spoilt + 1.0, mask=mask))
    refuses("masked", GPForecaster((), **bare).fit, y, {"x": np.ma.array(spoilt, mask=mask)})
