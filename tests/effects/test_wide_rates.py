"""Counts whose log rates are bounded from one side alone, beside sums over a grid."""

import warnings

import numpy as np
import pytest
from scipy.special import logsumexp

from qpruntime import CorrectionWarning, likelihoods
from qpruntime.effects import EffectsModel, Fixed, Groups, wide_rates

#: Four days of 120 are holidays, on which nothing happens.
HOLIDAY = (np.arange(120) % 30 == 0).astype(float)
COUNTS = np.where(HOLIDAY == 1.0, 0, np.random.default_rng(0).poisson(5, size=120))


def log_likelihood(name, y, f):
    if name == "poisson":
        return y.sum() * f - y.size * np.exp(np.minimum(f, 600.0))
    size = 2.0
    return y.sum() * f - (y.sum() + size * y.size) * np.logaddexp(f, np.log(size))


def exact(name, model):
    """Points, probabilities and log expected rates, of an ordinary day and of a holiday."""
    grid = np.concatenate([-np.geomspace(400.0, 1e-2, 1500), np.geomspace(1e-2, 60.0, 900)])
    day, holiday = np.meshgrid(grid, grid, indexing="ij")
    block = model.state_.assembly.blocks[0]
    slope = (holiday - day) * block.scale[0]
    level = day + slope * block.centre[0] / block.scale[0]
    logs = -0.5 * (level / block.std[0]) ** 2 - 0.5 * (slope / block.std[1]) ** 2
    logs += log_likelihood(name, COUNTS[HOLIDAY == 0.0], day)
    logs += log_likelihood(name, COUNTS[HOLIDAY == 1.0], holiday)
    logs += np.log(np.gradient(grid))[:, None] + np.log(np.gradient(grid))
    logs -= logsumexp(logs)
    marginals = [logsumexp(logs, axis=1), logsumexp(logs, axis=0)]
    return grid, np.exp(marginals), [logsumexp(log + grid) for log in marginals]


@pytest.fixture(scope="module", params=["poisson", "negative-binomial"])
def fitted(request):
    family = likelihoods.get("negative-binomial", dispersion=2.0)
    family = "poisson" if request.param == "poisson" else family
    model = EffectsModel([Fixed("holiday")], family, integrate="mode")
    model.fit({"holiday": HOLIDAY}, COUNTS)
    return model, *exact(request.param, model)


NEW = {"holiday": np.array([1.0, 0.0, 1.0])}


def test_quantiles_observations_and_moments_are_those_of_the_grid(fitted):
    model, grid, (_, share), log_rates = fitted
    below = np.cumsum(share) - 0.5 * share
    levels = [0.025, 0.1, 0.5, 0.9, 0.99]
    quantiles = model.predict_quantiles(NEW, levels, kind="latent")
    # The normals between levels are a hundredth of probability off, EP's density a half of one.
    np.testing.assert_allclose(np.interp(quantiles[0], grid, below), levels, atol=0.015)
    np.testing.assert_array_equal(quantiles[0], quantiles[2])
    rates = model.predict_quantiles(NEW, levels)
    np.testing.assert_allclose(rates[0], np.exp(quantiles[0]), rtol=1e-12)
    # Not even one of a hundred holidays has a count above 0; a normal promised 12 597.
    assert model.predict_quantiles(NEW, [0.5, 0.99], kind="observation")[0].tolist() == [0.0, 0.0]
    size = np.inf if model.family_.likelihood.name == "poisson-exp" else 2.0
    log_zero = -np.exp(grid) if size == np.inf else -size * np.logaddexp(0.0, grid - np.log(size))
    zero = float(share @ np.exp(log_zero))
    assert np.exp(model.predict_log_density(NEW, [0, 5, 0])[0]) == pytest.approx(zero, abs=3e-3)
    above = float(share[grid > -5.0].sum())
    assert model.exceedance(NEW, -5.0)[0] == pytest.approx(above, abs=0.01)
    mean, variance = model.latent(NEW)
    center = float(share @ grid)
    assert mean[0] == pytest.approx(center, rel=0.01)
    assert np.sqrt(variance[0]) == pytest.approx(np.sqrt(share @ (grid - center) ** 2), rel=0.02)
    rates = model.predict(NEW)
    assert rates[1] == pytest.approx(np.exp(log_rates[0]), rel=2e-3)
    assert rates[0] == pytest.approx(np.exp(log_rates[1]), rel=2e-3)


def test_expected_counts_beyond_what_a_call_corrects(fitted, monkeypatch):
    # The corrected density alone has the rate to 2 %; a normal promises more than 1e50.
    model, _, _, log_rates = fitted
    monkeypatch.setattr(wide_rates, "_RATES", (0, 0))
    assert model.predict(NEW)[0] == pytest.approx(np.exp(log_rates[1]), rel=0.03)
    monkeypatch.setattr(wide_rates, "_MOST_SPREAD", 0.0)
    with (
        pytest.warns(CorrectionWarning, match="2 rows are those of a normal log rate"),
        pytest.warns(UserWarning, match="its far tail"),
    ):
        assert model.predict(NEW)[0] > 1e50


def test_rows_keep_their_places_beside_wide_ones(fitted):
    model = fitted[0]
    alone = {"holiday": np.zeros(1)}
    for ask in (model.predict, lambda X: model.latent(X)[1], lambda X: model.exceedance(X, 1.0)):
        assert ask(NEW)[1] == pytest.approx(ask(alone)[0], rel=1e-12)
    quantiles = model.predict_quantiles(NEW, kind="observation")
    expected = model.predict_quantiles(alone, kind="observation")[0]
    np.testing.assert_array_equal(quantiles[1], expected)


def test_an_unknown_level_widens_what_zeros_bound():
    X = {"holiday": HOLIDAY, "shop": np.arange(120) % 6}
    model = EffectsModel([Fixed("holiday"), Groups("shop")], "poisson", integrate="mode")
    model.fit(X, COUNTS)
    known, unknown = ({"holiday": np.ones(1), "shop": np.array([shop])} for shop in (0, 99))
    assert model.latent(unknown)[1][0] > model.latent(known)[1][0] - 1.0
    medians = [model.predict_quantiles(X, [0.5], kind="latent")[0, 0] for X in (known, unknown)]
    assert medians[1] == pytest.approx(medians[0], abs=2.0)
    assert model.predict_quantiles(unknown, [0.99], kind="observation")[0, 0] <= 1.0


def test_zeros_of_a_small_dispersion_settle_with_one_event():
    # Each zero bounds the rate by its power of -0.36 only, and one event moves all sites by far.
    x = np.random.default_rng(0).normal(size=60)
    size, z = 0.36, (x - x.mean()) / x.std()
    family = likelihoods.get("negative-binomial", dispersion=size)
    model = EffectsModel([Fixed("x")], family, integrate="mode").fit({"x": x}, np.zeros(60))
    level, slope = np.meshgrid(np.linspace(-400, 100, 1001), np.linspace(-70, 70, 561))
    logs = -0.5 * (level / 100.0) ** 2 - 0.5 * (slope / 10.0) ** 2
    for value in z:
        logs -= size * np.logaddexp(np.log(size), level + slope * value)
    logs -= logsumexp(logs)
    rows = np.argsort(x)[[2, 10, 30, 50, 57]]
    exact_logs = [logsumexp(logs + level + slope * z[row]) for row in rows]
    # EP's own error: it is .24 in the middle.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the expected observation is .* its far tail")
        found = model.predict({"x": x[rows]})
    np.testing.assert_allclose(np.log(found), exact_logs, atol=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [0, 1])
def test_hardly_any_events_under_a_learnt_dispersion(counts):
    # At nodes with a small dispersion zeros say little.
    X = {"group": np.repeat(np.arange(6), 10)}
    y = np.zeros(60)
    y[7] = counts
    model = EffectsModel([Groups("group")], "negative-binomial").fit(X, y)
    assert model.family_.learn["dispersion"][0] == pytest.approx(2.0 / 60.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the expected observation is .* its far tail")
        rates = model.predict(X)
    # No rate is far above that of the data, two events in sixty rows at most.
    assert (rates > 0.0).all()
    assert rates.max() < 10.0 * (1.0 + counts) / 60.0
    assert model.predict_quantiles(X, [0.9], kind="observation").max() <= 1.0
