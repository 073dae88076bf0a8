"""One observation far from all others: an effect of its own, and forecasts as without it."""

from __future__ import annotations

import numpy as np
import pytest

from qpruntime.forecasting import GPForecaster
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.structure_search import calmed, far_off
from tests.tools.cases import refuses

RNG = np.random.default_rng(0)
T = np.arange(96)
Y = RNG.poisson(8.0 * np.exp(0.5 * np.sin(2.0 * np.pi * T / 12.0))).astype(float)
BARE = {"trend": "level", "noise": False, "drift": False, "integrate": "mode"}


def test_bands_are_those_without_the_row():
    y = np.where(T == 70, 900.0, Y)
    days = np.datetime64("2024-01-01") + T
    model = GPForecaster(seasons=[12], **BARE).fit(y, index=days)
    assert model.outliers_ == [days[70]]
    assert model.family_ == "poisson"
    gone = np.where(T == 70, np.nan, y)
    without = GPForecaster(seasons=[12], **BARE).fit(gone, index=days)
    quantiles = (one.predict_quantiles(12, q=(0.05, 0.5, 0.95)) for one in (model, without))
    np.testing.assert_array_equal(*quantiles)
    np.testing.assert_allclose(model.predict(12), without.predict(12), rtol=0.02)
    assert model.predict(index=days[70:71])[0] == pytest.approx(900.0, rel=0.1)
    wide = GPForecaster(seasons=[12], outliers=False, **BARE).fit(y, index=days)
    assert wide.outliers_ == []
    assert wide.predict_interval(12)[:, 1].mean() > 1.4 * model.predict_interval(12)[:, 1].mean()


def test_what_is_no_mistake_stays():
    assert GPForecaster(seasons=[12], **BARE).fit(Y).outliers_ == []
    rng = np.random.default_rng(3)
    # A family with far values has many of them.
    heavy = rng.negative_binomial(0.3, 0.02, 150).astype(float)
    assert GPForecaster(seasons=(), **BARE).fit(heavy).outliers_ == []
    refuses("outliers", GPForecaster(outliers=3).fit, Y)


def test_rows_that_are_far_off_are_found_by_medians():
    steps, season = np.arange(60.0), 100.0 * (np.arange(60) % 12 == 3)
    y = 5.0 + np.tile([0.0, 1.0], 30) + season
    whole = Scale()
    # A peak that comes every season is none, and of more than one in a hundred there are none.
    assert far_off(steps, y, (12.0,), whole).size == 0
    once = np.where(steps == 15.0, 5.0, y) + 400.0 * (steps == 31.0)
    assert far_off(steps, once, (), whole).size == 0
    assert far_off(steps, y + 400.0 * (steps == 31.0), (12.0,), whole).tolist() == [31]
    assert calmed(y + 400.0 * (steps == 31.0), np.array([31]))[31] == 5.0
    assert far_off(steps[:10], np.where(steps[:10] == 5.0, 1e6, 1.0), (), whole).size == 0
