"""Families that "auto" has for zeros of their own and for numbers that were rounded."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qpruntime.forecasting import GPForecaster
from qpruntime.forecasting.family_search import zeros_gain


def before_hurdle(n, seed, mean=12.0):
    """Counts of which half are made 0, and which else are at least 1."""
    rng = np.random.default_rng(seed)
    y = 1.0 + rng.poisson(mean * rng.gamma(5.0, 0.2, n))
    return np.where(rng.uniform(size=n) < 0.5, 0.0, y)


def test_what_zeros_gain_is_found_on_a_grid_too():
    for y in (before_hurdle(90, 1), np.random.default_rng(2).negative_binomial(2, 0.3, 90)):
        r = np.exp(np.linspace(-4.0, 8.0, 700))
        one = max(stats.nbinom.logpmf(y, s, s / (s + y.mean())).sum() for s in r)
        positive, none = y[y > 0], np.mean(y == 0)
        two = -np.inf
        for mean in np.linspace(0.3, 1.05, 60) * positive.mean():
            own = stats.nbinom(r[::5], r[::5] / (r[::5] + mean))
            beyond = own.logpmf(positive[:, None]).sum(axis=0) - positive.size * own.logsf(0)
            two = max(two, beyond.max())
        share = positive.size * np.log1p(-none) + (y.size - positive.size) * np.log(none)
        assert zeros_gain(y) == pytest.approx(two + share - one, abs=0.02)


def test_zeros_of_their_own_are_found_and_forecast():
    y = before_hurdle(150, 3)
    model = GPForecaster(seasons=(), trend="level", noise=False, integrate="mode").fit(y)
    assert model.family_ in ("hurdle", "zero-inflated")
    asked = GPForecaster(
        seasons=(), trend="level", noise=False, family="hurdle", integrate="mode"
    ).fit(y)
    for one in (model, asked):
        none = np.exp(one.predict_log_density([0.0], 1)[0])
        assert none == pytest.approx(np.mean(y == 0.0), abs=0.03)
        # Quantiles are those of the sum of the probabilities, and the mean is theirs.
        counts = np.arange(120.0)
        pmf = np.exp(one.predict_log_density(counts, index=np.full(120, 150.0)))
        assert pmf.sum() == pytest.approx(1.0, abs=1e-5)
        levels = np.array([0.3, 0.6, 0.9])
        wanted = np.searchsorted(np.cumsum(pmf), levels)
        np.testing.assert_array_equal(one.predict_quantiles(1, q=levels)[0], wanted)
        assert one.predict(1)[0] == pytest.approx(counts @ pmf, rel=1e-4)
        assert one.predict(1)[0] == pytest.approx(y.mean(), rel=0.15)


def test_numbers_that_were_rounded_are_no_counts_of_events():
    rng = np.random.default_rng(0)
    t = np.arange(120)
    y = np.round(500.0 + 60.0 * np.sin(0.5 * np.pi * t) + 6.0 * rng.normal(size=120))
    bare = {"seasons": [4], "trend": "level", "noise": False, "drift": False, "integrate": "mode"}
    model = GPForecaster(**bare).fit(y)
    assert model.family_ in ("gaussian", "log-normal")
    ends = model.predict_interval(1)[0]
    # Poisson's 90 % would be 72 wide.
    assert ends[1] - ends[0] == pytest.approx(2.0 * 1.645 * 6.0, rel=0.3)
    events = rng.poisson(500.0 + 60.0 * np.sin(0.5 * np.pi * t))
    assert GPForecaster(**bare).fit(events).family_ == "poisson"


def test_whole_numbers_of_thousands_are_forecast_as_in_any_other_unit():
    rng = np.random.default_rng(6)
    y = np.round(9000.0 + 700.0 * rng.normal(size=80))
    bare = {"seasons": (), "trend": "level", "drift": False, "outliers": False}
    model = GPForecaster(**bare, integrate="mode").fit(y)
    # The spread is constant, and seven times that of Poisson's.
    assert model.family_ == "gaussian"
    thousands = GPForecaster(**bare, integrate="mode").fit(y / 1000.0)
    assert (thousands.family_, thousands.noise_) == (model.family_, model.noise_)
    np.testing.assert_allclose(
        model.predict_quantiles(5), 1000.0 * thousands.predict_quantiles(5), rtol=1e-6
    )
    # Events that vary as gamma rates do stay counts.
    events = rng.poisson(3000.0 * rng.gamma(4.0, 0.25, 80))
    assert GPForecaster(**bare, noise=False, integrate="mode").fit(events).family_ == (
        "negative-binomial"
    )
