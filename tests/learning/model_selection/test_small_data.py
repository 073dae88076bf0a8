"""Few rows whose features may be seen as ranks."""

import numpy as np
import pytest

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Search
from qpruntime.learning.model_selection import small_data
from qpruntime.learning.scaling import Warp
from tests.tools.cases import every_case

RNG = np.random.default_rng(0)
PLAIN = RNG.standard_normal((240, 3))
SKEWED = np.exp(3.0 * PLAIN)
LATENT = np.sin(2.0 * PLAIN[:, 0]) + 0.5 * PLAIN[:, 1]
SIDES = LATENT + 0.3 * RNG.standard_normal(240) > 0.0
MASS = RNG.uniform(0.5, 2.0, 180)


def loss(model, X, y):
    p = model.predict_proba(X)
    return -np.log(p[np.arange(len(y)), np.searchsorted(model.classes_, y)]).mean()


def test_ranks_of_skewed_features():
    model = GPClassifier(random_state=0).fit(SKEWED[:180], SIDES[:180])
    before = GPClassifier(inducing=None).fit(SKEWED[:180], SIDES[:180])
    assert model.engine_ == "dense"
    assert [stage.candidate for stage in model.stages_] == ["features", "ranks of features"]
    assert model.stages_[1].density > model.stages_[0].density
    assert loss(model, SKEWED[180:], SIDES[180:]) < loss(before, SKEWED[180:], SIDES[180:]) - 0.05
    # It is the fit to ranks that users could have made.
    warp = Warp.of(SKEWED[:180])
    np.testing.assert_array_equal(model.X_train_, warp(SKEWED[:180]))
    own = GPClassifier(inducing=None).fit(warp(SKEWED[:180]), SIDES[:180])
    got, want = (
        m.predict_proba(points) for m, points in ((model, SKEWED[180:]), (own, warp(SKEWED[180:])))
    )
    # Both climb to the same optimum, from elsewhere; they stop at 1e-5 of the evidence.
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_straight_features_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(small_data, "Trial", None)
    model = GPClassifier(random_state=0).fit(PLAIN, SIDES)
    assert (model.warp_, model.stages_) == (None, ())
    same = GPClassifier(inducing=None).fit(PLAIN, SIDES)
    np.testing.assert_array_equal(model.predict_proba(PLAIN), same.predict_proba(PLAIN))


def test_features_stay_where_ranks_are_no_better():
    """A line in the values themselves, which is bent in their ranks."""
    line = np.column_stack([np.exp(PLAIN[:, 0]), PLAIN[:, 1:]])
    line = line[:150]
    model = GPRobustRegressor(random_state=0)
    model.fit(line, line.sum(axis=1) + 0.3 * RNG.standard_normal(150))
    assert [stage.candidate for stage in model.stages_] == ["features", "ranks of features"]
    assert model.stages_[1].density < model.stages_[0].density
    assert model.warp_ is None


@every_case(
    "left_out",
    [
        {"n": 59},
        {"optimize": Search(restarts=1)},
        {"inducing": None},
        {"optimize": "loo"},
        {"method": "vb"},
    ],
)
def test_fits_that_are_asked_for_are_left_alone(left_out):
    n = left_out.pop("n", 80)
    model = GPClassifier(random_state=0, **left_out).fit(SKEWED[:n], SIDES[:n])
    assert (model.warp_, model.stages_) == (None, ())


@pytest.mark.slow
@every_case("kind", ["counts", "numbers", "classes"])
def test_weights_and_all_kinds_of_observations(kind):
    rng = np.random.default_rng(3)
    n = 64
    X, f = SKEWED[:n], LATENT[:n]
    # Student-t sites of fractional weight have no fixed point where noise is small.
    mass = None if kind == "numbers" else MASS[:n]
    if kind == "classes":
        y, model = np.digitize(f, [-0.5, 0.5]), GPClassifier(random_state=0)
    elif kind == "counts":
        y, model = rng.poisson(np.exp(1.0 + f)), GPPoissonRegressor(link="exp", random_state=0)
    else:
        y, model = f + 0.3 * rng.standard_normal(n), GPRobustRegressor(random_state=0)
    model.fit(X, y, sample_weight=mass)
    assert model.warp_ is not None
    want = Warp.of(X, mass)
    np.testing.assert_array_equal(model.warp_(X), want(X))
    assert np.isfinite(model.predict(SKEWED[180:]).astype(float)).all()
    # Units of features do not matter to ranks.
    other = type(model)(**model.get_params()).fit(1e6 * X, y, sample_weight=mass)
    expected = other.predict(1e6 * X).astype(float)
    np.testing.assert_allclose(model.predict(X).astype(float), expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_columns_of_any_size(scale):
    X = np.column_stack([SKEWED[:100] * scale, np.ones(100), np.arange(100) == 3])
    with np.errstate(all="ignore"):
        model = GPClassifier(random_state=0).fit(X, SIDES[:100])
    assert model.warp_ is not None
    assert model.score(X, SIDES[:100]) > 0.8
