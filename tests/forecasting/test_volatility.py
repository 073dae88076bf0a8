"""Variances that change over time: one-step errors, their weights, and forecasts with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg, stats

from qpruntime import load
from qpruntime.forecasting import GPForecaster, GPPanelForecaster
from qpruntime.forecasting.structure import ahead_of
from qpruntime.forecasting.volatility import innovations

BARE = {"seasons": (), "drift": False, "outliers": False, "integrate": "mode"}
RNG = np.random.default_rng(3)
CALM = 20.0 + RNG.normal(size=120)
#: The standard deviation of the last third is a quarter of that before.
CALMER = 20.0 + RNG.normal(size=120) * np.where(np.arange(120) < 80, 1.0, 0.25)
LEVELS = np.array([0.025, 0.1, 0.5, 0.9, 0.975])


@pytest.fixture(scope="module")
def calmer():
    return GPForecaster(**BARE, trend="level", noise=True, family="gaussian").fit(CALMER)


def test_innovations_are_errors_of_one_step_forecasts(calmer):
    state = calmer.model_.state_
    theta, logs = state.split(state.nodes.theta[0])
    Q, A = state.assembly.precision(theta)[0].toarray(), state.A.toarray()
    # The covariance of observations, from a basis of what the constraints leave free.
    free = linalg.null_space(state.assembly.constraint)
    K = A @ free @ np.linalg.inv(free.T @ Q @ free) @ free.T @ A.T
    K += np.exp(2.0 * logs[0]) * np.eye(len(A))
    y, found = state.y - state.offset, innovations(state)
    assert found.shape == y.shape
    for t in (1, 40, 119):
        weights = np.linalg.solve(K[:t, :t], K[:t, t])
        std = np.sqrt(K[t, t] - weights @ K[:t, t])
        assert found[t] == pytest.approx((y[t] - weights @ y[:t]) / std, rel=1e-6)
        assert found[t] != pytest.approx((y[t] - weights @ y[:t]) / (1.001 * std), rel=1e-4)
    # Their densities are factors of the evidence.
    log_evidence = stats.norm.logpdf(found).sum() - 0.5 * np.linalg.slogdet(K)[1]
    assert log_evidence == pytest.approx(calmer.model_.log_evidence_, abs=1e-5)


def expected_volatility(errors, decay=0.85):
    """Factors and weights, by sums of the definition and distributions of SciPy."""
    n = errors.size
    scales = [
        decay**t + (1.0 - decay) * (decay ** np.arange(t)[::-1] @ errors[:t] ** 2)
        for t in range(n + 1)
    ]
    changing = stats.t.logpdf(errors, 5.0, scale=np.sqrt(scales[:n])).sum() + 3.0
    weight = 1.0 / (1.0 + np.exp(stats.norm.logpdf(errors).sum() - changing))
    # The inverse of a gamma variable with mean 1 mixes normals to Student's t.
    levels = 1.0 - (np.arange(9) + 0.5) / 9.0
    factors = scales[n] * stats.invgamma.ppf(levels, 2.5, scale=2.5)
    return np.append(1.0, factors), np.append(1.0 - weight, np.full(9, weight / 9.0))


def test_volatility_is_that_of_its_definition(calmer):
    volatility = calmer.volatilities_[0]
    errors = innovations(calmer.model_.state_)
    factors, weights = expected_volatility(errors)
    np.testing.assert_allclose(volatility.factors, factors, rtol=1e-9)
    np.testing.assert_allclose(volatility.weights, weights, rtol=1e-9)
    assert np.abs(volatility.factors / expected_volatility(errors, 0.85085)[0] - 1.0).max() > 1e-4
    # The variance of the last third is a sixteenth, and that of the fit is in between.
    assert volatility.weights[0] < 1e-3
    assert 0.03 < np.median(volatility.factors[1:]) < 0.25


def test_a_constant_variance_is_found():
    model = GPForecaster(**BARE, trend="level", noise=False, family="gaussian")
    assert model.fit(np.tile(CALM, 4)[:400]).volatilities_[0].weights[0] > 0.9
    counts = RNG.poisson(5.0, size=60)
    assert GPForecaster(**{**BARE, "family": "poisson"}).fit(counts).volatilities_[0].is_constant


@pytest.mark.parametrize("family", ["gaussian", "log-normal"])
def test_forecasts_are_mixtures_over_factors(family, tmp_path):
    model = GPForecaster(**BARE, trend="level", noise=False, family=family).fit(CALMER)
    steps = np.arange(110.0, 126.0)
    scale, volatility = model.structure_.scale, model.volatilities_[0]
    plain = ahead_of(model.model_, model.structure_.columns(steps, None, None), scale)
    quantiles = model.predict_quantiles(index=steps, q=LEVELS)
    # Times of the fit have the variance of the fit.
    np.testing.assert_allclose(quantiles[:10], plain.quantiles(LEVELS)[:10], rtol=1e-9)
    mean, variance = plain.mixture.mean[0], plain.mixture.variance[0]
    total = variance + plain.likelihoods[0].parameters["scale"] ** 2

    def parts(factor=1.0):
        return [
            stats.norm(mean[10:, None], np.sqrt(f * factor * total[10:, None]))
            for f in volatility.factors
        ]

    z = scale.into(quantiles[10:])
    below = sum(w * p.cdf(z) for w, p in zip(volatility.weights, parts(), strict=True))
    np.testing.assert_allclose(below, np.tile(LEVELS, (6, 1)), atol=1e-9)
    moved = sum(w * p.cdf(z) for w, p in zip(volatility.weights, parts(1.001), strict=True))
    assert np.abs(moved - LEVELS).max() > 1e-5
    y = np.full(6, 20.3)
    z, pairs = scale.into(y)[:, None], zip(volatility.weights, parts(), strict=True)
    density = sum(w * p.pdf(z)[:, 0] for w, p in pairs)
    log_density = model.predict_log_density(y, index=steps[10:])
    np.testing.assert_allclose(log_density, np.log(density) + scale.log_slope(y), rtol=1e-9)
    model.save(tmp_path / "volatile.qpr")
    again = load(tmp_path / "volatile.qpr").predict_quantiles(index=steps, q=LEVELS)
    np.testing.assert_array_equal(again, quantiles)


def test_values_that_stay_the_same_leave_an_interval():
    y = np.append(CALM, np.full(80, 20.0))
    model = GPForecaster(**BARE, trend="level", noise=False, family="gaussian").fit(y)
    low, high = model.predict_interval(3).T
    assert (high > low).all()
    assert model.volatilities_[0].factors.min() > 1e-3
    assert np.isfinite(model.predict_log_density([20.0, 20.0, 20.0], 3)).all()


def test_panels_with_shared_hyperparameters_have_a_constant_variance():
    table = {"by": np.repeat([0, 1], 120), "y": np.concatenate([CALMER, CALM])}
    table["time"] = np.tile(np.arange(120), 2)
    single = GPForecaster(**BARE, trend="level", noise=False, family="gaussian")
    panel = GPPanelForecaster(single, hyperparameters="shared")
    panel.fit("y", by="by", index="time", data=table)
    assert panel.model(0).volatilities_[0].is_constant
