"""Effects of groups: shifts of columns that have slopes."""

import numpy as np
import pytest

from qpruntime.effects import Autoregressive, EffectsModel, Fixed, Groups, Plane, Walk

RNG = np.random.default_rng(3)
LEVEL, YEAR = np.repeat(np.arange(12), 8), np.tile(np.arange(8.0), 12)
PARTS = RNG.normal(size=(12, 2)) * [0.5, 0.12]
Y = RNG.poisson(np.exp(1.0 + 0.1 * YEAR + PARTS[LEVEL, 0] + PARTS[LEVEL, 1] * (YEAR - 3.5)))
TERMS = [
    [Fixed("year"), Groups("level", slope="year")],
    [Groups("level", slope="year", correlated=False)],
    [Walk("year", 2)],
    [Walk("year", knots=6)],
    [Walk("year", cyclic=True)],
    [Autoregressive("year")],
    [Plane("year", "level", spacing=3.0)],
]


def fitted(terms, shift):
    data = {"year": YEAR + shift, "level": LEVEL}
    return EffectsModel(terms, "poisson", integrate="mode").fit(data, Y)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("shift", [100.0, 2017.25, -2.3e6 + 0.1])
def test_shifts_of_a_column_change_the_intercept_alone(terms, shift):
    fits = base, moved = [fitted(terms, s) for s in (0.0, shift)]
    assert moved.log_evidence_ == pytest.approx(base.log_evidence_, abs=1e-5)
    for name, row in base.summary(profile=False):
        if "intercept" not in name:
            own = moved.summary(profile=False)[name]
            for key in ("mean", "sd"):
                assert own[key] == pytest.approx(row[key], rel=1e-3, abs=1e-6)
    pairs = zip(fits, (0.0, shift), strict=True)
    means = [one.predict({"year": YEAR + s, "level": LEVEL}) for one, s in pairs]
    np.testing.assert_allclose(means[1], means[0], rtol=1e-4)


def test_deviations_are_those_of_the_columns_as_they_are():
    """At a value of 0, an intercept varies by a'Sa for the numbers a of the centred column."""
    fits = [fitted(TERMS[0], s) for s in (-3.5, 0.0)]
    centred, raw = (one.summary(profile=False) for one in fits)
    name = "level(1 + year)"
    parts = "sd intercept", "sd year", "correlation year, intercept"
    a, b, r = (centred[f"{name}: {part}"]["mean"] for part in parts)
    own = np.sqrt(a**2 + 3.5**2 * b**2 - 2.0 * 3.5 * r * a * b)
    assert raw[f"{name}: sd intercept"]["mean"] == pytest.approx(own, rel=1e-5)
    levels = [one.effects(name).column("mean") for one in fits]
    np.testing.assert_allclose(levels[1][1::2], levels[0][1::2], atol=1e-6)
    np.testing.assert_allclose(levels[1][::2], levels[0][::2] - 3.5 * levels[0][1::2], atol=1e-6)


def test_an_unknown_level_varies_as_the_prior_has_it():
    """The variance is quadratic in the column: twice that of the slope is its second difference."""
    model = fitted([Groups("level", slope="year")], 0.0)
    _, variance = model.latent({"year": [2.0, 3.0, 4.0], "level": [99, 99, 99]})
    slope = model.summary(profile=False)["level(1 + year): sd year"]["mean"]
    assert np.diff(variance, 2)[0] == pytest.approx(2.0 * slope**2, rel=1e-8)
