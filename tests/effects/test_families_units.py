"""The unit of observations, for every block and every family of real or positive values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from qpruntime.effects import Areas, EffectsModel, Fixed, Groups, Plane, Product, Series, Walk

pytestmark = pytest.mark.slow
NEIGHBOURS = [(area, area + 1) for area in range(8)]
BLOCKS = {
    "fixed": lambda: [Fixed("a")],
    "groups": lambda: [Fixed("a"), Groups("group", slope="a")],
    "areas": lambda: [Fixed("a"), Areas("area", NEIGHBOURS)],
    "icar": lambda: [Areas("area", NEIGHBOURS, model="icar")],
    "series": lambda: [Series("day")],
    "walk": lambda: [Walk("day")],
    "smooth walk": lambda: [Walk("day", 2)],
    "plane": lambda: [Plane("lon", "lat", spacing=0.2)],
    "product": lambda: [Product(Series("week"), Plane("lon", "lat", spacing=0.3))],
}
OBSERVED = {
    "gaussian": lambda f, rng: f + 0.5 * rng.normal(size=f.size),
    "student-t": lambda f, rng: f + 0.5 * rng.standard_t(3, size=f.size),
    "laplace": lambda f, rng: f + 0.5 * rng.laplace(size=f.size),
    "gamma": lambda f, rng: rng.gamma(3.0, np.exp(f) / 3.0),
}
#: Searches end within their tolerance of the maximum, and evidences within its square.
RTOL = 1e-6


def _data():
    rng = np.random.default_rng(0)
    n = 120
    X = pd.DataFrame({
        "a": rng.normal(size=n), "day": np.repeat(np.arange(24), 5),
        "group": rng.integers(0, 8, n), "area": rng.integers(0, 9, n),
        "lon": rng.uniform(size=n), "lat": rng.uniform(size=n),
        "week": np.repeat(np.arange(6), 20),
    })  # fmt: skip
    f = 0.8 * X["a"] + np.sin(X["day"] / 4.0) + 0.5 * np.cos(3.0 * X["lon"])
    f = f + 0.4 * rng.normal(size=8)[X["group"]] + 0.4 * rng.normal(size=9)[X["area"]]
    return X, f.to_numpy(), rng


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("family", OBSERVED)
def test_unit_and_origin_of_observations(family, block):
    X, f, rng = _data()
    y = OBSERVED[family](f, rng)

    def fitted(y):
        model = EffectsModel(BLOCKS[block](), family).fit(X, y)
        mean, variance = model.latent(X[:7])
        return mean, np.sqrt(variance), model.log_evidence_

    mean, std, evidence = fitted(y)
    positive = family == "gamma"
    for unit, shift in [(1e-6, 0.0), (1e9, 0.0), (1e3, 0.0 if positive else 1e6)]:
        other, other_std, other_evidence = fitted(unit * (y + shift))
        other = other - np.log(unit) if positive else other / unit - shift
        other_std = other_std if positive else other_std / unit
        np.testing.assert_allclose(other, mean, rtol=0.0, atol=RTOL * std.max())
        np.testing.assert_allclose(other_std, std, rtol=RTOL)
        assert other_evidence + len(y) * np.log(unit) == pytest.approx(evidence, abs=1e-5)
