"""Cycles, drifting seasons and damped trends: covariances, choices and forecasts."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from qpruntime import load
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.autoregressive import Autoregressive
from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.pairs import Cycle, Damped
from qpruntime.forecasting.structure import Structure
from tests.tools.cases import refuses

TIMES = np.array([0.0, 1.0, 2.0, 4.0, 5.5, 9.0, 10.0, 11.0])
THETA = np.array([0.3, np.log(5.0), -0.2])


def covariance(x, y):
    """That of a swing, written out."""
    sd, period, turns = np.exp(THETA)
    gap, w, a = np.abs(x[:, None] - y), 2.0 * np.pi / period, 1.0 / (period * turns)
    return sd**2 * np.exp(-a * gap) * (np.cos(w * gap) + a / w * np.sin(w * gap))


def test_a_cycle_is_its_covariance():
    block = Cycle("t", 6.0).bind(DataColumns({"t": TIMES}))
    whole = np.linalg.inv(block.precision(THETA).toarray())
    np.testing.assert_allclose(whole[::2, ::2], covariance(TIMES, TIMES), atol=1e-12)
    rows = block.columns(DataColumns({"t": TIMES[::-1].copy()})) @ np.arange(block.size)
    np.testing.assert_array_equal(rows, np.arange(block.size)[::2][::-1])
    # Before, at, between and after the times.
    new = np.array([-1.0, 0.0, 3.0, 5.0, 10.5, 13.0])
    design, rest = block.ahead(DataColumns({"t": new}), THETA)
    with_known = (design @ whole)[:, ::2]
    np.testing.assert_allclose(with_known, covariance(new, TIMES), atol=1e-12)
    own = np.diag(design @ whole @ design.T.toarray()) + rest
    np.testing.assert_allclose(own, np.diag(covariance(new, new)), atol=1e-12)
    assert rest[1] == 0.0
    # The process is Markov: what known values leave of new ones is that of the dense formula.
    given = covariance(new, TIMES) @ np.linalg.inv(covariance(TIMES, TIMES))
    assert (np.diag(covariance(new, new) - given @ covariance(TIMES, new)) >= rest - 1e-12).all()
    labels, readings = block.readings()
    np.testing.assert_array_equal(labels, TIMES)
    assert (readings @ np.arange(block.size)).tolist() == list(range(0, 16, 2))


def test_a_season_that_drifts_has_a_chain_a_phase():
    own = Structure((4.0,), (), "none", False, "poisson", Scale(), drifting=(4.0,))
    steps = np.arange(-3.0, 14.0)
    column = own.columns(steps, None, None)["drift 4"]
    block = Autoregressive("t", step=1.0).bind(DataColumns({"t": column}))
    theta = np.array([-0.4, 1.3])
    A = block.columns(DataColumns({"t": column})).toarray()
    found = A @ np.linalg.inv(block.precision(theta).toarray()) @ A.T
    gap = np.abs(steps[:, None] - steps)
    wanted = np.exp(-0.8) * np.where(gap % 4 == 0, np.tanh(1.3) ** (gap / 4.0), 0.0)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    # Steps to come are from the same phase, one and two seasons before.
    later = own.columns(np.array([15.0, 18.0]), None, None)["drift 4"]
    design, rest = block.ahead(DataColumns({"t": later}), theta)
    last = design @ A.T  # each time has one effect
    rho = np.tanh(1.3)
    np.testing.assert_allclose(last[0, steps == 11.0], rho, rtol=1e-12)
    np.testing.assert_allclose(last[1, steps == 10.0], rho**2, rtol=1e-12)
    np.testing.assert_allclose(rest, np.exp(-0.8) * (1.0 - rho ** np.array([2.0, 4.0])), rtol=1e-9)


def swinging(n, seed):
    """Counts whose log rate is an autoregression of second order: cycles of ten steps, about."""
    rng = np.random.default_rng(seed)
    f, r = np.zeros(n + 50), 0.93
    for i in range(2, n + 50):
        f[i] = 2.0 * r * np.cos(0.2 * np.pi) * f[i - 1] - r * r * f[i - 2] + 0.3 * rng.normal()
    return rng.poisson(np.exp(4.0 + f[50:])), 4.0 + f[50:]


def test_a_cycle_is_found_and_forecast():
    y, f = swinging(170, 2)
    bare = {"trend": "level", "family": "poisson", "integrate": "mode"}
    model = GPForecaster(**bare).fit(y[:160])
    assert (model.cycle_, model.seasons_) == (True, ())
    known = model.model_.summary()
    assert 8.0 < known["cycle(step): period"]["mean"] < 12.5
    plain = GPForecaster(cycle=False, **bare).fit(y[:160])
    error, other = (np.abs(np.log(one.predict(3)) - f[160:163]) for one in (model, plain))
    assert error.mean() < other.mean()
    ends = np.log(model.predict_interval(3, level=0.95))
    assert ((ends[:, 0] < f[160:163]) & (f[160:163] < ends[:, 1])).all()
    # Far ahead nothing is left of the swing but its spread.
    low, high = np.log(model.predict_interval(index=[400.0])[0] + 1e-9)
    assert high - low > 1.5
    # Between steps, and before the first, there are numbers too.
    assert np.isfinite(model.predict(index=[-2.0, 10.5])).all()
    # White noise has none.
    quiet = GPForecaster(**bare).fit(np.random.default_rng(1).poisson(5.0, 160))
    assert not quiet.cycle_


@pytest.mark.slow
def test_a_season_that_drifts_is_found_and_forecast():
    rng = np.random.default_rng(5)
    pattern = np.cumsum(0.12 * rng.normal(size=(31, 4)), axis=0) + np.array([1.0, 0.0, -1.0, 0.2])
    f = 3.0 + pattern.ravel() + 0.005 * np.arange(124)
    y = np.exp(f + 0.03 * rng.normal(size=124))
    bare = {"seasons": [4], "family": "log-normal", "noise": False, "integrate": "mode"}
    model = GPForecaster(**bare).fit(y[:120])
    assert model.drift_ == (4.0,)
    fixed = GPForecaster(drift=False, **bare).fit(y[:120])
    assert fixed.drift_ == ()
    error, other = (np.abs(np.log(one.predict(4)) - f[120:]) for one in (model, fixed))
    assert error.mean() < 0.6 * other.mean()
    ends = model.predict_interval(4, level=0.99)
    assert ((y[120:] > ends[:, 0]) & (y[120:] < ends[:, 1])).all()
    # A season that stays has none.
    stays = np.exp(f[:120] - pattern.ravel()[:120] + np.tile(pattern[0], 30))
    stays *= np.exp(0.1 * rng.normal(size=120))
    assert GPForecaster(**bare).fit(stays).drift_ == ()


def test_what_is_asked_for_is_taken_or_refused(tmp_path):
    y, _ = swinging(60, 1)
    asked = {"trend": "level", "family": "poisson", "integrate": "mode"}
    model = GPForecaster(seasons=[12], cycle=9.0, drift=True, noise=False, **asked).fit(y)
    assert (model.cycle_, model.drift_, model.noise_) == (True, (12.0,), False)
    assert len(model.effects("cycle(step)")) == 60
    model.save(tmp_path / "model.qp")
    np.testing.assert_array_equal(load(tmp_path / "model.qp").predict(5), model.predict(5))
    refuses("cycle must be finite and above 2, got 1", GPForecaster(cycle=1.0).fit, y)
    plain, noise = GPForecaster(cycle=True, seasons=(), **asked), np.random.default_rng(0)
    refuses("the values show none: say its period", plain.fit, noise.poisson(9.0, 30))
    refuses("drift", GPForecaster(drift="yes").fit, y)


def test_a_line_goes_on():
    rng = np.random.default_rng(7)
    f = 0.02 * np.arange(112) + 0.05 * np.cumsum(rng.normal(size=112))
    y = np.exp(2.0 + f + 0.02 * rng.normal(size=112))
    bare = {"seasons": (), "noise": False, "family": "log-normal", "integrate": "mode"}
    model = GPForecaster(**bare).fit(y[:100])
    # A slope that reverts to zero slowly has a little more evidence than the line that is true.
    assert model.trend_ in ("line", "damped")
    level = GPForecaster(trend="level", **bare).fit(y[:100])
    line = GPForecaster(trend="line", **bare).fit(y[:100])
    truth = 2.0 + f[100:]
    errors = [np.abs(np.log(one.predict(12)) - truth).mean() for one in (model, line, level)]
    assert max(errors[:2]) < 0.7 * errors[2]
    # The rise over a step is the coefficient, and the prior of 1 over the spread is hardly felt.
    rise = np.diff(np.log(line.predict_quantiles(12, q=0.5)[:, 0]))
    np.testing.assert_allclose(rise.mean(), 0.02, atol=0.012)
    flat = np.exp(2.0 + 0.2 * rng.normal(size=100))
    assert GPForecaster(**bare).fit(flat).trend_ == "level"


EVEN_TIMES = np.arange(41.0)
DAMPED = np.array([0.3, np.log(7.0)])


@pytest.fixture(scope="module")
def block():
    return Damped("t", 11).bind(DataColumns({"t": EVEN_TIMES}))


def double_integral(s, t):
    """E (x(s) - x(0)) (x(t) - x(0)) of unit slopes: the integral of exp(-|u - v|/7)."""
    s, t = min(s, t), max(s, t)
    ends = np.expm1(-s / 7.0) - np.exp(-(t - s) / 7.0) + np.exp(-t / 7.0)
    return float(14.0 * s + 49.0 * ends)


def test_its_values_are_integrals_of_an_exponential_covariance(block):
    covariance = np.linalg.inv(block.precision(DAMPED).toarray())
    times = np.array([0.0, 8.0, 20.0, 47.0, 60.0])
    design, rest = block.ahead(DataColumns({"t": times}), DAMPED)
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


def test_determinants_and_slopes(block):
    cycle = Cycle("t", 6.0).bind(DataColumns({"t": TIMES}))
    for own, theta in ((block, DAMPED), (cycle, THETA)):
        whole = np.linalg.slogdet(own.precision(theta).toarray())[1]
        assert own.log_det(theta)[0] == pytest.approx(whole, abs=1e-9)
        for k, step in enumerate(1e-5 * np.eye(len(theta))):
            for function in (own.entries, own.log_det, own.log_prior):
                difference = (function(theta + step)[0] - function(theta - step)[0]) / 2e-5
                slope = function(theta)[1][k]
                np.testing.assert_allclose(difference, slope, rtol=1e-6, atol=1e-6)
    assert block.deviations(DAMPED) == pytest.approx({"sd": np.exp(0.3), "length": 7.0})


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
    table = {"y": y.ravel(), "by": np.repeat(np.arange(3), 30)}
    single = GPForecaster(trend="damped", integrate="mode", **bare)
    panel = GPPanelForecaster(single, hyperparameters="prior").fit(**table)
    learnt = panel.structure_.learnt
    centre, spread = learnt.of("damped(trend): log length")
    for one in panel.models_.values():
        block = next(b for b in one.model_.blocks_ if b.name == "damped(trend)")
        prior = block.priors[1]
        assert (prior.mean, prior.std) == pytest.approx((centre, max(0.1, spread)))
        assert one.trends_ == {"damped": 1.0}
    assert np.isfinite(panel.predict_quantiles(4)).all()
    single = GPForecaster(trend="average", integrate="mode", **bare)
    own = GPPanelForecaster(single, hyperparameters="own").fit(**table)
    alone = clone(single).fit(y[1])
    assert own.models_[1].trends_ == alone.trends_
    np.testing.assert_array_equal(own.predict(4)[1], alone.predict(4))
