"""Few rows: features may be seen as ranks; of many features those that matter are found."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import spearmanr

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Search
from qpruntime.learning.model_selection import small_data
from qpruntime.learning.model_selection.small_data import _correlation, log_choices
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
    got, want = model.predict_proba(SKEWED[180:]), own.predict_proba(warp(SKEWED[180:]))
    # Both climb to the same optimum, from elsewhere; they stop at 1e-5 of the evidence.
    np.testing.assert_allclose(got, want, atol=2e-3)


def test_straight_features_and_few_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(small_data, "Trial", None)
    assert GPClassifier(random_state=0).fit(X[:, :45], X[:, 7] > 0.0).stages_ == ()
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


GIVEN = [
    {"optimize": Search(restarts=1)},
    {"inducing": None},
    {"optimize": "loo"},
    {"method": "vb"},
]


@every_case("options, n", [({}, 59), *((given, 80) for given in GIVEN)])
def test_fits_that_are_asked_for_are_left_alone(options, n):
    model = GPClassifier(random_state=0, **options).fit(SKEWED[:n], SIDES[:n])
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


DRAWS = np.random.default_rng(0)
X, NEW = DRAWS.standard_normal((90, 400)), DRAWS.standard_normal((300, 400))
NOISE = DRAWS.standard_normal(90)


def latent(points):
    """Two features matter: one by its sign, one by its size."""
    return 2.5 * points[:, 7] + 2.0 * (np.abs(points[:, 300]) - 0.8)


def kept(model):
    kernel = model.kernel_[0] if isinstance(model.kernel_, tuple) else model.kernel_
    return np.flatnonzero(np.isfinite(kernel.k2.k2.length_scale))


@every_case("kind", ["classes", "counts", "numbers", "three"])
def test_features_that_matter_are_found(kind):
    f, new = latent(X), latent(NEW)
    if kind == "numbers":
        model = GPRobustRegressor(random_state=0).fit(X, f + 0.5 * NOISE)
        assert np.abs(model.predict(NEW) - new).mean() < 0.4 * np.abs(new - new.mean()).mean()
    elif kind == "counts":
        y = np.random.default_rng(1).poisson(np.exp(1.0 + 0.5 * f))
        model = GPPoissonRegressor(link="exp", dispersion=np.inf, random_state=0).fit(X, y)
        assert spearmanr(model.predict(NEW), new).statistic > 0.7
    else:
        cuts = [0.0] if kind == "classes" else [-1.0, 1.0]
        model = GPClassifier(random_state=0).fit(X, np.digitize(f + 0.3 * NOISE, cuts))
        assert (model.predict(NEW) == np.digitize(new, cuts)).mean() > 0.7
    assert 7 in kept(model)
    assert len(kept(model)) <= 5
    assert model.engine_ == "dense"
    # What is ignored is ignored in new rows too.
    other = NEW.copy()
    other[:, np.setdiff1d(np.arange(400), kept(model))] = 1e6
    np.testing.assert_array_equal(model.predict(other), model.predict(NEW))


def test_noise_is_not_chosen():
    """Draws of labels without meaning: a search without its price would find some in each."""
    for seed in range(4):
        y = np.random.default_rng(seed).integers(0, 2, 90)
        with warnings.catch_warnings(action="ignore"):
            model = GPClassifier(random_state=0).fit(X, y)
        assert len(kept(model)) == 400
        assert model.stages_ == ()


def test_the_price_is_the_log_of_the_number_of_choices(monkeypatch):
    first, *some = GPClassifier(random_state=0).fit(X, latent(X) > 0.0).stages_
    assert first.candidate.startswith("400 features, log evidence ")
    assert [int(stage.candidate.split()[0]) for stage in some] == [1, 2, 3, 5, 8, 13, 20]
    single = GPClassifier(inducing=None).fit(X[:, [7]], latent(X) > 0.0)
    # One of 400; the climb of a stage ends at 1e-3.
    expected = single.log_marginal_likelihood_value_ - np.log(400.0)
    assert float(some[0].candidate.split()[-1]) == pytest.approx(expected, abs=0.2)


def test_choices_are_counted_and_weights_are_rows():
    """Against exact whole numbers, also where several features are chosen."""
    for d, k in ((400, 1), (400, 2), (400, 13), (9, 3), (5, 5)):
        assert log_choices(d, k) == pytest.approx(math.log(math.comb(d, k)), rel=1e-12, abs=1e-12)
    a, y = DRAWS.standard_normal((40, 6)), DRAWS.standard_normal(40)
    mass = DRAWS.integers(1, 4, 40)
    rows = np.repeat(np.arange(40), mass)
    expected = np.abs(np.corrcoef(np.column_stack([a, y])[rows].T)[-1, :-1])
    np.testing.assert_allclose(_correlation(a, y, mass.astype(float)), expected, rtol=1e-12)
    np.testing.assert_array_equal(_correlation(np.ones((40, 1)), y, mass * 1.0), 0.0)
