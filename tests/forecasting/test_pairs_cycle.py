"""Cycles and seasons that drift: their covariances, what is chosen, and what is forecast."""

from __future__ import annotations

import numpy as np
import pytest

from qpruntime import InputError, load
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.autoregressive import Autoregressive
from qpruntime.forecasting import GPForecaster
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.pairs import Cycle
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
    Q = block.precision(THETA).toarray()
    whole = np.linalg.inv(Q)
    np.testing.assert_allclose(whole[::2, ::2], covariance(TIMES, TIMES), atol=1e-12)
    assert block.log_det(THETA)[0] == pytest.approx(np.linalg.slogdet(Q)[1], abs=1e-11)
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


@pytest.mark.parametrize("k", range(3))
def test_slopes_of_a_cycle_are_differences(k):
    block, step = Cycle("t", 6.0).bind(DataColumns({"t": TIMES})), 1e-5 * np.eye(3)[k]
    for function in (block.entries, block.log_det, block.log_prior):
        high, low = function(THETA + step)[0], function(THETA - step)[0]
        slope = function(THETA)[1][k]
        np.testing.assert_allclose((high - low) / 2e-5, slope, rtol=1e-6, atol=1e-6)


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
    with pytest.raises(InputError, match="the values show none: say its period"):
        GPForecaster(cycle=True, seasons=(), **asked).fit(np.random.default_rng(0).poisson(9.0, 30))
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
