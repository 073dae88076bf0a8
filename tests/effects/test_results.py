"""Summaries where labels are separated or alike, beside grids of the exact posterior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_expit, log_ndtr

from qpruntime.effects import EffectsModel, Fixed

N = np.arange(30)
COLUMNS = {
    "numbers": np.random.default_rng(0).normal(size=30),
    "half": (N >= 15).astype(float),
    "rare": (N >= 25).astype(float),
}


def exact(x, log_share, y, scale):
    """Mean, deviation and quantiles of the slope under N(0, 100^2) and N(0, 10^2) a spread."""
    a, b = np.linspace(-450.0, 450.0, 3601), np.linspace(-60.0, 60.0, 1201)
    A, B = np.meshgrid(a, b, indexing="ij")
    logs = -0.5 * (A / 100.0) ** 2 - 0.5 * (B / 10.0) ** 2
    for z, sign in zip((x - x.mean()) / scale, np.where(y, 1.0, -1.0), strict=True):
        logs += log_share(sign * (A + z * B))
    w = np.exp(logs - logs.max()).sum(axis=0)
    w /= w.sum()
    mean = w @ b
    quantiles = np.interp([0.025, 0.5, 0.975], np.cumsum(w) - 0.5 * w, b)
    return np.array([mean, np.sqrt(w @ (b - mean) ** 2), *quantiles]) / scale


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("family", ["logistic", "probit"])
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


def test_labels_that_are_all_alike():
    model = EffectsModel([], "logistic").fit({"x": N}, np.ones(30))
    a = np.linspace(-50.0, 700.0, 150_001)
    w = np.exp(-0.5 * (a / 100.0) ** 2 + 30.0 * log_expit(a))
    w /= w.sum()
    mean = w @ a
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
    assert model.predict({"x": [0]})[0] == pytest.approx(w @ np.exp(a) / w.sum(), rel=0.1)


def test_expected_counts_of_a_level_of_zeros():
    cell = np.where(N < 20, "a", "b")
    y = np.where(N < 20, 3.0 + N % 2, 0.0)
    model = EffectsModel([Fixed("cell")], "poisson").fit({"cell": cell}, y)
    z = ((N >= 20) - 1.0 / 3.0) / np.std(N >= 20)
    a, b = np.meshgrid(np.linspace(-60, 20, 2001), np.linspace(-60, 20, 2001), indexing="ij")
    first, second = a + z[0] * b, a + z[-1] * b
    logs = -0.5 * (a / 100.0) ** 2 - 0.5 * (b / 10.0) ** 2
    logs += y.sum() * first - 20.0 * np.exp(first) - 10.0 * np.exp(second)
    w = np.exp(logs - logs.max())
    known = [(w * np.exp(f)).sum() / w.sum() for f in (first, second)]
    np.testing.assert_allclose(model.predict({"cell": ["a", "b"]}), known, rtol=0.15)
