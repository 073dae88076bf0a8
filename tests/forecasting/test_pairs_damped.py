"""Damped trends: their covariance, their derivatives, and how they go on."""

from __future__ import annotations

import numpy as np
import pytest

from qpruntime.dataframes.readers import DataColumns
from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.pairs import Damped

TIMES = np.arange(41.0)
THETA = np.array([0.3, np.log(7.0)])


@pytest.fixture(scope="module")
def block():
    return Damped("t", 11).bind(DataColumns({"t": TIMES}))


def double_integral(s, t):
    """E (x(s) - x(0)) (x(t) - x(0)) of unit slopes: the integral of exp(-|u - v|/7)."""
    s, t = min(s, t), max(s, t)
    ends = np.expm1(-s / 7.0) - np.exp(-(t - s) / 7.0) + np.exp(-t / 7.0)
    return float(14.0 * s + 49.0 * ends)


def test_its_values_are_integrals_of_an_exponential_covariance(block):
    covariance = np.linalg.inv(block.precision(THETA).toarray())
    times = np.array([0.0, 8.0, 20.0, 47.0, 60.0])
    design, rest = block.ahead(DataColumns({"t": times}), THETA)
    rows = design.toarray() - design.toarray()[0]
    found = rows @ covariance @ rows.T
    slope = covariance[1, 1] / 4.0**2  # knots are 4 apart
    assert found[1, 2] == pytest.approx(slope * double_integral(8.0, 20.0), rel=1e-9)
    assert found[2, 3] == pytest.approx(slope * double_integral(20.0, 47.0), rel=1e-9)
    assert found[3, 3] + rest[3] == pytest.approx(slope * double_integral(47.0, 47.0), rel=1e-9)
    assert rest[:3].tolist() == [0.0, 0.0, 0.0]
    # The deviation is the root mean square of the function about its mean over the span.
    fine = np.linspace(0.0, 40.0, 81)
    own = np.array([[double_integral(s, t) for s in fine[::8]] for t in fine[::8]])
    weights = np.full(11, 0.1)
    weights[[0, -1]] = 0.05  # of the trapezoidal rule
    mean_square = slope * (weights @ np.diag(own) - weights @ own @ weights)
    assert mean_square == pytest.approx(np.exp(0.6), rel=0.02)


def test_its_determinant_and_slopes(block):
    whole = np.linalg.slogdet(block.precision(THETA).toarray())[1]
    assert block.log_det(THETA)[0] == pytest.approx(whole, abs=1e-9)
    for k in range(2):
        step = 1e-5 * np.eye(2)[k]
        for function in (block.entries, block.log_det, block.log_prior):
            difference = (function(THETA + step)[0] - function(THETA - step)[0]) / 2e-5
            np.testing.assert_allclose(difference, function(THETA)[1][k], rtol=1e-6, atol=1e-6)
    assert block.deviations(THETA) == pytest.approx({"sd": np.exp(0.3), "length": 7.0})


def test_it_rises_less_than_a_slope_that_drifts():
    t = np.arange(80.0)
    y = 10.0 * (1.0 - np.exp(-t / 40.0)) + 0.1 * np.random.default_rng(5).normal(size=80)
    bare = {"seasons": (), "noise": False, "family": "gaussian", "integrate": "mode"}
    damped = GPForecaster(trend="damped", **bare).fit(y)
    slope = GPForecaster(trend="slope", **bare).fit(y)
    assert damped.trends_ == {"damped": 1.0}
    assert 40.0 < damped.model_.summary()["damped(trend): length"]["mean"] < 200.0
    rises = [np.ptp(one.predict(40)) for one in (damped, slope)]
    assert 0.7 < rises[0] < rises[1]


@pytest.mark.slow
def test_series_of_a_panel_learn_its_length_from_each_other():
    rng = np.random.default_rng(2)
    y = np.array([np.cumsum(0.2 + 0.3 * rng.normal(size=30)) for _ in range(3)])
    bare = {"seasons": (), "noise": False, "drift": False, "family": "gaussian"}
    panel = GPPanelForecaster(
        GPForecaster(trend="damped", integrate="mode", **bare), hyperparameters="prior"
    ).fit(y.ravel(), by=np.repeat(np.arange(3), 30))
    learnt = panel.structure_.learnt
    centre, spread = learnt.of("damped(trend): log length")
    for one in panel.models_.values():
        block = next(b for b in one.model_.blocks_ if b.name == "damped(trend)")
        prior = block.priors[1]
        assert (prior.mean, prior.std) == pytest.approx((centre, max(0.1, spread)))
        assert one.trends_ == {"damped": 1.0}
    assert np.isfinite(panel.predict_quantiles(4)).all()
    own = GPPanelForecaster(
        GPForecaster(trend="average", integrate="mode", **bare), hyperparameters="own"
    ).fit(y.ravel(), by=np.repeat(np.arange(3), 30))
    alone = GPForecaster(trend="average", integrate="mode", **bare).fit(y[1])
    assert own.models_[1].trends_ == alone.trends_
    np.testing.assert_array_equal(own.predict(4)[1], alone.predict(4))
