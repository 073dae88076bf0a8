"""Counts that repeat exactly: the timetable, its weight, and forecasts that mix it with a model."""

import numpy as np
import pytest
from scipy import integrate, stats

from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.averaging import timetable_of, weight_after
from qpruntime.forecasting.structure import ahead_of
from tests.tools.cases import every_case

PLAN = np.array([0.0, 2.0, 5.0, 9.0, 6.0, 6.0, 1.0])
BARE = {"noise": False, "drift": False, "integrate": "mode"}


@every_case("repetitions", [1, 14, 216, 100_000])
def test_the_weight_of_the_model_is_a_posterior_mean(repetitions):
    missed = 2.0 * stats.norm.sf(0.5, scale=12.0**-0.5)

    def moment(power):
        # Beyond 60 / (p k) the likelihood is below e^-60.
        most = min(1.0, 60.0 / (missed * repetitions))
        return integrate.quad(
            lambda w: w**power * np.exp(repetitions * np.log1p(-missed * w)), 0.0, most
        )[0]

    weight = weight_after(repetitions)
    np.testing.assert_allclose(weight, moment(1) / moment(0), rtol=1e-8)
    if repetitions > 200:
        np.testing.assert_allclose(missed * weight, 1.0 / (repetitions + 2.0), rtol=1e-4)


def test_forecasts_mix_the_timetable_with_the_model(tmp_path):
    model = GPForecaster([7], **BARE).fit(np.tile(PLAN, 4)[:26])
    planned = np.roll(PLAN, -5)
    np.testing.assert_array_equal(model.timetable_.counts, PLAN)
    weight = model.timetable_.weight
    np.testing.assert_allclose(weight, weight_after(19), rtol=1e-12)
    steps = np.arange(26.0, 33.0)
    data = model.structure_.columns(steps, None, None)
    alone = ahead_of(model.model_, data, model.structure_.scale)
    values = np.arange(30.0)
    mass = weight * np.exp([alone.log_density(np.full(7, y)) for y in values])
    mass[planned.astype(int), np.arange(7)] += 1.0 - weight
    found = np.exp([model.predict_log_density(np.full(7, y), 7) for y in values])
    np.testing.assert_allclose(found, mass, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(model.predict(7), values @ mass, rtol=1e-9)
    levels = np.array([1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999])
    exact = [[np.argmax(total >= q) for q in levels] for total in mass.cumsum(axis=0).T]
    np.testing.assert_array_equal(model.predict_quantiles(7, q=levels), exact)
    # A miss has about the probability of Laplace's rule, here with a prior below 0.1.
    assert 0.02 < 1.0 - mass[planned.astype(int), np.arange(7)].max() < 0.06
    model.save(tmp_path / "timetable.qpr")
    again = GPForecaster.load(tmp_path / "timetable.qpr").predict(7)
    np.testing.assert_array_equal(again, model.predict(7))


def test_an_exact_timetable_has_no_error_by_quantiles():
    model = GPForecaster([7], **BARE).fit(np.tile(PLAN, 10))
    quantiles = model.predict_quantiles(7, q=np.arange(1, 100) / 100.0)
    np.testing.assert_array_equal(quantiles, np.repeat(PLAN[:, None], 99, axis=1))


def test_what_does_not_repeat_has_no_timetable():
    y = np.tile(PLAN, 6)
    model = GPForecaster([7], **BARE, family="rounded-gaussian").fit(y)
    known = model._read(y, None, None, None)
    assert timetable_of(model.structure_, known) is not None
    missing = y.copy()
    missing[::7][:-1] = np.nan
    known = model._read(missing, None, None, None)
    assert timetable_of(model.structure_, known).weight == pytest.approx(weight_after(30))
    missing[::7] = np.nan
    once = y.copy()
    once[17] += 1.0
    for other in (missing, once, y[:20]):
        assert timetable_of(model.structure_, model._read(other, None, None, None)) is None
    assert GPForecaster([7], **BARE, family="poisson").fit(y).timetable_ is None


def test_a_constant_series_repeats_each_step():
    day = np.datetime64("2025-03-03") + np.arange(28)
    model = GPForecaster(integrate="mode").fit(np.full(28, 3.0), index=day)
    np.testing.assert_array_equal(model.timetable_.counts, [3.0])
    np.testing.assert_array_equal(model.predict_interval(5, level=0.95), np.full((5, 2), 3.0))


def test_a_timetable_follows_the_clock_on_the_wall():
    pd = pytest.importorskip("pandas")
    # Clocks in Vienna skip an hour on the last Sunday of March.
    hours = pd.date_range("2025-03-24", periods=24 * 7, freq="h", tz="Europe/Vienna")
    planned = np.minimum(np.abs(hours.hour - 12.0), 9.0)
    model = GPForecaster([24], **BARE).fit(planned[:144], index=hours[:144])
    assert model.timetable_.counts.size == 24
    np.testing.assert_array_equal(model.predict_quantiles(24, q=[0.5])[:, 0], planned[144:])


def test_each_series_of_a_panel_has_its_own_timetable():
    lines = np.array([np.tile(PLAN, 5), np.tile(PLAN[::-1] + 1.0, 5), np.tile(PLAN, 5)])
    lines[2, 11] += 1.0
    panel = GPPanelForecaster(GPForecaster([7], trend="level", **BARE), hyperparameters="shared")
    panel.fit(lines.ravel(), by=np.repeat(np.arange(3), 35))
    counts = [panel.models_[k].timetable_ for k in range(3)]
    np.testing.assert_array_equal(counts[0].counts, PLAN)
    np.testing.assert_array_equal(counts[1].counts, PLAN[::-1] + 1.0)
    assert counts[2] is None
