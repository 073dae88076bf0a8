"""Many features for few rows: those that matter are found, and none where there are none."""

import math
import warnings

import numpy as np
import pytest
from scipy.stats import spearmanr

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor
from qpruntime.learning.model_selection import small_data
from qpruntime.learning.model_selection.small_data import _correlation, log_choices
from tests.tools.cases import every_case

RNG = np.random.default_rng(0)
X, NEW = RNG.standard_normal((90, 400)), RNG.standard_normal((300, 400))
NOISE = RNG.standard_normal(90)


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


def test_choices_are_counted():
    """Against exact whole numbers, also where several features are chosen."""
    for d, k in ((400, 1), (400, 2), (400, 13), (9, 3), (5, 5)):
        assert log_choices(d, k) == pytest.approx(math.log(math.comb(d, k)), rel=1e-12, abs=1e-12)


def test_few_features_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(small_data, "Trial", None)
    assert GPClassifier(random_state=0).fit(X[:, :45], X[:, 7] > 0.0).stages_ == ()


def test_weights_are_rows():
    a, y = RNG.standard_normal((40, 6)), RNG.standard_normal(40)
    mass = RNG.integers(1, 4, 40)
    rows = np.repeat(np.arange(40), mass)
    expected = np.abs(np.corrcoef(np.column_stack([a, y])[rows].T)[-1, :-1])
    np.testing.assert_allclose(_correlation(a, y, mass.astype(float)), expected, rtol=1e-12)
    np.testing.assert_array_equal(_correlation(np.ones((40, 1)), y, mass * 1.0), 0.0)
