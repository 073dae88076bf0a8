"""Summaries where labels are separated or alike, beside grids of the exact posterior."""

import numpy as np
import pytest
from scipy.special import log_expit, log_ndtr
from scipy.stats import norm

from qpruntime.effects import EffectsModel, Fixed, Groups
from tests.tools.cases import refuses

N = np.arange(30)
COLUMNS = {
    "numbers": np.random.default_rng(0).normal(size=30),
    "half": (N >= 15).astype(float),
    "rare": (N >= 25).astype(float),
}


def exact(x, log_share, y, scale):
    """Mean, deviation and quantiles of the slope under N(0, 100^2) and N(0, 10^2) a spread."""
    a, b = np.linspace(-450.0, 450.0, 1801), np.linspace(-60.0, 60.0, 1201)
    A, B = np.meshgrid(a, b, indexing="ij")
    logs = -0.5 * (A / 100.0) ** 2 - 0.5 * (B / 10.0) ** 2
    rows = np.column_stack([(x - x.mean()) / scale, np.where(y, 1.0, -1.0)])
    for (z, sign), count in zip(*np.unique(rows, axis=0, return_counts=True), strict=True):
        logs += count * log_share(sign * (A + z * B))
    w = np.exp(logs - logs.max()).sum(axis=0)
    w /= w.sum()
    mean = w @ b
    quantiles = np.interp([0.025, 0.5, 0.975], np.cumsum(w) - 0.5 * w, b)
    return np.array([mean, np.sqrt(w @ (b - mean) ** 2), *quantiles]) / scale


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("family", ["logistic", pytest.param("probit", marks=pytest.mark.slow)])
def test_separated_labels(column, family):
    x = COLUMNS[column]
    y = x > 0.3
    model = EffectsModel([Fixed("x")], family).fit({"x": x}, y)
    known = exact(x, log_expit if family == "logistic" else log_ndtr, y, x.std())
    found = np.array([*model.summary()["x"].values()])
    # The error of EP itself, whose pairs of probit sites are strongly correlated under this prior.
    allowed = 0.02 if family == "logistic" else 0.12
    np.testing.assert_allclose(found, known, atol=allowed * known[1])
    assert any("separated by x" in one for one in model.check())
    mixed = EffectsModel([Fixed("x")], family).fit({"x": x}, N % 2)
    assert not any("separated" in one for one in mixed.check())


def test_labels_that_are_all_alike():
    model = EffectsModel([], "logistic").fit({"x": N}, np.ones(30))
    a = np.linspace(-50.0, 700.0, 150_001)
    w = np.exp(-0.5 * (a / 100.0) ** 2 + 30.0 * log_expit(a))
    w /= w.sum()
    mean = w @ a
    assert model.family_.classes.tolist() == [-1, 1]
    row = model.summary()["intercept"]
    std = np.sqrt(w @ (a - mean) ** 2)
    assert row["mean"] == pytest.approx(mean, abs=5e-3 * std)
    assert row["sd"] == pytest.approx(std, rel=5e-3)
    assert row["2.5%"] == pytest.approx(np.interp(0.025, np.cumsum(w), a), abs=0.01 * std)
    assert any("separated by intercept" in one for one in model.check())


def test_expected_counts_where_all_are_zero():
    model = EffectsModel([], "poisson").fit({"x": N}, np.zeros(30))
    a = np.linspace(-600.0, 20.0, 400_001)
    w = np.exp(-0.5 * (a / 100.0) ** 2 - 30.0 * np.exp(a))
    # Equal rows are one site, whose evidence is exact.
    assert model.predict({"x": [0]})[0] == pytest.approx(w @ np.exp(a) / w.sum(), rel=1e-3)


def rates(z, y, at):
    """Expected rates of an intercept and a slope under N(0, 100^2) and N(0, 10^2)."""
    a, b = np.meshgrid(np.linspace(-250, 10, 2601), np.linspace(-60, 60, 1201), indexing="ij")
    logs = -0.5 * (a / 100.0) ** 2 - 0.5 * (b / 10.0) ** 2 + y.sum() * a + (y @ z) * b
    for value, count in zip(*np.unique(z, return_counts=True), strict=True):
        logs -= count * np.exp(np.minimum(a + value * b, 50.0))
    w = np.exp(logs - logs.max())
    w /= w.sum()
    return np.array([(w * np.exp(np.minimum(a + value * b, 50.0))).sum() for value in at])


def test_expected_counts_of_a_level_of_zeros():
    cell = np.where(N < 20, "a", "b")
    y = np.where(N < 20, 3.0 + N % 2, 0.0)
    model = EffectsModel([Fixed("cell")], "poisson").fit({"cell": cell}, y)
    z = ((N >= 20) - 1.0 / 3.0) / np.std(N >= 20)
    known = rates(z, y, z[[0, -1]])
    np.testing.assert_allclose(model.predict({"cell": ["a", "b"]}), known, rtol=0.01)


@pytest.mark.slow
def test_expected_counts_where_one_row_counts_1():
    x = np.random.default_rng(1).normal(size=60)
    y = (np.arange(60) == 30).astype(float)
    model = EffectsModel([Fixed("x")], "poisson").fit({"x": x}, y)
    z = (x - x.mean()) / x.std()
    rows = np.argsort(-x)[[0, 1, 3, 8]]
    found, known = model.predict({"x": x[rows]}), rates(z, y, z[rows])
    assert known[0] > 0.5
    np.testing.assert_allclose(found[:2], known[:2], rtol=0.01)
    # EP's own error where the rate is a tenth of the mean count.
    np.testing.assert_allclose(found[2:], known[2:], rtol=0.25)


@pytest.mark.slow
def test_expected_counts_of_a_rare_column_of_many_rows():
    n = np.arange(2400)
    rare = (n % 600 == 7).astype(float)
    y = np.where(rare > 0.0, 0.0, 1.0 + n % 3)
    for family in ("poisson", "negative-binomial"):
        model = EffectsModel([Fixed("rare")], family).fit({"rare": rare}, y)
        found = model.predict({"rare": [0.0, 1.0]})
        # Counts of a dispersion at its bound, 10^6, are Poisson counts.
        f, g = np.meshgrid(np.linspace(0.6, 0.8, 201), np.linspace(-900.0, 5.0, 9051))
        z = (rare - rare.mean()) / rare.std()
        b = (g - f) / (z[7] - z[0])
        logs = -0.5 * ((f - z[0] * b) / 100.0) ** 2 - 0.5 * (b / 10.0) ** 2
        logs += y.sum() * f - (rare == 0.0).sum() * np.exp(f) - rare.sum() * np.exp(g)
        w = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
        known = [(w * np.exp(log_rate)).sum() for log_rate in (f, g)]
        np.testing.assert_allclose(found, known, rtol=0.01)


def test_an_expected_count_above_its_quantiles_warns():
    x = np.r_[np.zeros(8), np.ones(8)]
    y = np.r_[np.full(8, 2.0), np.zeros(8)]
    model = EffectsModel([Fixed("x", standardise=False, std=3.0)], "poisson").fit({"x": x}, y)
    words = "the expected observation is .* in row 1, and 99 % of the distribution of its rate"
    with pytest.warns(UserWarning, match=words):
        mean = model.predict({"x": [0.0, -5.0]})
    assert mean[1] > model.predict_quantiles({"x": [-5.0]}, 0.99)[0, 0]
    model.predict({"x": [0.0, 1.0]})


def test_summaries_of_normal_noise_are_exact_without_corrections(monkeypatch):
    """With normal noise the posterior at one set of hyper-parameters is normal."""

    def refuse(*args):
        raise AssertionError("a correction was computed")

    monkeypatch.setattr("qpruntime.inference.precision.corrections.third_and_fourth", refuse)
    monkeypatch.setattr("qpruntime.effects.results.profile", refuse)
    monkeypatch.setattr("qpruntime.effects.results.profiles_unless_normal", refuse)
    rng, group = np.random.default_rng(5), N // 5
    x = rng.normal(size=30)
    y = 40.0 + 6.0 * x + 3.0 * rng.normal(size=6)[group] + 4.0 * rng.normal(size=30)
    model = EffectsModel([Fixed("x"), Groups("g")], "gaussian", integrate="mode", tol=1e-10)
    table = model.fit({"x": x, "g": group}, y, sample_weight=1.0 + N % 2).summary()
    deviation, scale = np.exp(model.theta_)
    fixed, unit = model.blocks_[0], model.family_.unit
    z = (x - fixed.centre) / fixed.scale
    A = np.column_stack([np.ones(30), z, group[:, None] == np.arange(6)])
    precision = (A.T * (1.0 + N % 2)) @ A / scale**2
    precision += np.diag([100.0**-2, 10.0**-2, *np.full(6, deviation**-2)])
    S = np.linalg.inv(precision)
    mean = S @ (A.T * (1.0 + N % 2)) @ (y - model.family_.centre) / unit / scale**2
    known = norm(mean[1] * unit / fixed.scale[0], np.sqrt(S[1, 1]) * unit / fixed.scale[0])
    expected = [known.mean(), known.std(), *known.ppf([0.025, 0.5, 0.975])]
    np.testing.assert_allclose([*table["x"].values()], expected, rtol=1e-7)
    # Weights of the nodes of an integral take no corrections either.
    EffectsModel([Fixed("x"), Groups("g")], "gaussian").fit({"x": x, "g": group}, y).summary()
    refuses("a correction was computed", model.summary, error=AssertionError, profile=True)
