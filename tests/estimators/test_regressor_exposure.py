"""Exposures and trials of GPRegressor: against the estimator of counts, and sums over f."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import r2_score

from qpruntime import GPPoissonRegressor, GPRegressor
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(5)
X = RNG.uniform(0.0, 6.0, (50, 1))
E = RNG.uniform(1.0, 60.0, 50)
RATE = np.exp(0.4 + np.sin(X[:, 0]))
COUNTS = RNG.poisson(E * RATE * RNG.gamma(4.0, 0.25, 50)).astype(float)
NEW, AWAY = np.array([[0.5], [3.0], [5.5]]), np.array([2.0, 0.5, 300.0])
KERNEL = ConstantKernel(0.7, "fixed") * RBF(1.3, "fixed")
FIXED = {"kernel": KERNEL, "method": "ep", "optimize": False}


def test_exposures_are_those_of_the_estimator_of_counts():
    model = GPRegressor(likelihood="negative-binomial(dispersion=4)", **FIXED)
    model.fit(X, COUNTS, exposure=E)
    other = GPPoissonRegressor(KERNEL, link="exp", dispersion=4.0, mean=model.mean_, method="ep")
    other.set_params(optimize=False).fit(X, COUNTS, exposure=E)
    np.testing.assert_allclose(model.latent(NEW), other.latent(NEW), rtol=1e-8)
    for exposure in (None, 7.0, AWAY):
        found = model.predict(NEW, exposure=exposure)
        np.testing.assert_allclose(found, other.predict(NEW, exposure=exposure), rtol=1e-8)
        found = model.predict_quantiles(NEW, [0.1, 0.9], exposure=exposure)
        wanted = other.predict_quantiles(NEW, [0.1, 0.9], exposure=exposure)
        np.testing.assert_array_equal(found, wanted)
    y = np.array([3.0, 0.0, 800.0])
    found = model.predict_log_density(NEW, y, exposure=AWAY)
    np.testing.assert_allclose(found, other.predict_log_pmf(NEW, y, exposure=AWAY), rtol=1e-8)
    expected = r2_score(COUNTS, E * model.predict(X))
    assert model.score(X, COUNTS, exposure=E) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(model.loo(), other.posterior_.loo(), rtol=1e-6)
    drawn = model.sample(NEW, 4000, random_state=0, exposure=AWAY)
    below = (drawn <= model.predict_quantiles(NEW, 0.5, exposure=AWAY)).mean(axis=0)
    # Of counts the median has at least half: five standard errors.
    assert (below > 0.5 - 5.0 * math.sqrt(0.25 / 4000)).all()
    assert drawn[:, 2].mean() > 50.0 * drawn[:, 1].mean()
    refuses("exposure", model.predict_log_density, NEW, y)
    refuses("exposure", model.score, X, COUNTS)


def test_an_exposure_for_all_is_a_shift_of_the_mean():
    """The prior mean is found again, in units of the exposure."""
    plain = GPRegressor(likelihood="gamma", **FIXED).fit(X, RATE)
    scaled = GPRegressor(likelihood="gamma", **FIXED).fit(X, 50.0 * RATE, exposure=50.0)
    # The search for the mean ends within 1e-3.
    np.testing.assert_allclose(scaled.predict(NEW), plain.predict(NEW), rtol=2e-3)
    np.testing.assert_allclose(scaled.predict(NEW, exposure=50.0), 50.0 * scaled.predict(NEW))
    weights = np.where(np.arange(50) < 40, 1.0, 0.0)
    some = GPRegressor(likelihood="gamma", **FIXED).fit(X, E * RATE, weights, exposure=E)
    again = GPRegressor(likelihood="gamma", **FIXED).fit(X[:40], (E * RATE)[:40], exposure=E[:40])
    np.testing.assert_allclose(some.predict(NEW), again.predict(NEW), rtol=1e-12)


@every_case("correction", [None, "fact"])
def test_corrected_predictions_take_exposures_and_trials(correction):
    options = FIXED | {"correction": correction}
    model = GPRegressor(likelihood="hurdle", **options).fit(X[:15], COUNTS[:15], exposure=E[:15])
    both = [
        np.concatenate([[m], model.predict_quantiles(NEW[[i]], exposure=e).reshape(-1)])
        for i, e in enumerate(AWAY)
        for m in model.predict(NEW[[i]], exposure=e)
    ]
    found = np.column_stack(
        [model.predict(NEW, exposure=AWAY), model.predict_quantiles(NEW, exposure=AWAY)]
    )
    np.testing.assert_allclose(found, both, rtol=1e-9)
    assert found[2, 3] > 50.0 * found[1, 3]


def test_quantiles_of_trials_are_sums_over_f():
    trials = RNG.integers(1, 40, 50).astype(float)
    y = np.column_stack([RNG.binomial(trials.astype(int), 1.0 / (1.0 + 1.0 / RATE)), trials])
    model = GPRegressor(likelihood="binomial", **FIXED).fit(X, y)
    mean, variance = model.latent(NEW)
    ahead = np.array([1.0, 12.0, 3000.0])
    z = np.linspace(-10.0, 10.0, 20_001)
    w = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    found = model.predict_quantiles(NEW, [0.05, 0.5, 0.95], trials=ahead)
    first, std = model.predict(NEW, return_std=True, trials=ahead)
    np.testing.assert_allclose(first, ahead * model.predict(NEW), rtol=1e-12)
    for i, n in enumerate(ahead):
        p = 1.0 / (1.0 + np.exp(-mean[i] - math.sqrt(variance[i]) * z))
        for level, at in zip((0.05, 0.5, 0.95), found[i], strict=True):
            assert w @ stats.binom(n, p).cdf(at) >= level - 1e-12
            assert at == 0.0 or w @ stats.binom(n, p).cdf(at - 1.0) < level
        second = n * (w @ (p * (1.0 - p))) + n * n * (w @ p**2 - (w @ p) ** 2)
        assert std[i] == pytest.approx(math.sqrt(second), rel=1e-8)
    drawn = model.sample(NEW, 3000, random_state=1, trials=ahead)
    assert (np.abs(drawn.mean(axis=0) - first) < 5.0 * std / math.sqrt(3000)).all()


@every_case(
    ("likelihood", "given", "message"),
    [
        ("gaussian", {"exposure": 2.0}, "multiplies a mean"),
        ("binomial", {"exposure": 2.0}, "trials"),
        ("poisson", {"exposure": 2.0}, "GPPoissonRegressor"),
        ("gamma", {"exposure": 0.0}, "positive"),
        ("gamma", {"exposure": np.ones(3)}, "shape"),
    ],
)
def test_refused_exposures(likelihood, given, message):
    y = np.column_stack([RATE > 1.0, np.ones(50)]) if likelihood == "binomial" else np.ceil(RATE)
    refuses(message, GPRegressor(likelihood=likelihood).fit, X, y, **given)


def test_refused_trials():
    model = GPRegressor(likelihood="gamma", **FIXED).fit(X, RATE)
    refuses("not for 'gamma'", model.predict_quantiles, NEW, trials=3)
    y = np.column_stack([RATE > 1.0, np.ones(50)])
    model = GPRegressor(likelihood="binomial", **FIXED).fit(X, y)
    for trials in (0, 2.5, np.ones(7), np.nan):
        refuses("trials", model.predict, NEW, trials=trials)
