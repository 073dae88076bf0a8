"""Fits without arguments: subsets, judges, ranks, budgets, and what comes out of small fits."""

import logging
import pickle
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import poisson, rankdata
from sklearn.datasets import make_classification, make_moons
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Inducing, Search, infer
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.problem import Problem
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.model_selection import budget, candidates
from qpruntime.learning.model_selection import select as policy
from qpruntime.learning.model_selection.budget import (
    OPERATIONS_PER_SECOND,
    Budget,
    gains_significantly,
    split_rows,
)
from qpruntime.learning.model_selection.candidates import FittedKernel, Trial
from qpruntime.learning.model_selection.inducing_growth import ScoredEngine
from qpruntime.learning.objective import settle_fast
from qpruntime.learning.scaling import Warp
from qpruntime.learning.settings import Data, settings_of
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case
from tests.tools.oracle import unit_normal

RNG = np.random.default_rng(0)


@every_case("n", [60, 61, 400, 1501, 1999, 2000, 5000, 100_000])
@every_case("rare", [0.5, 0.05, 0.002])
def test_subsets(n, rare):
    labels = np.where(np.arange(n) < max(1, rare * n), 1.0, -1.0)
    subsets = split_rows(n, labels, np.random.default_rng(1))
    rungs, judged = subsets.rungs, subsets.holdout
    assert len(set(subsets.order.tolist())) == len(subsets.order) <= n
    assert list(rungs) == sorted(set(rungs))
    assert rungs[0] <= n // 2
    assert rungs[-1] <= 2000
    assert rungs[0] <= judged.start < judged.stop <= n
    assert judged.stop - judged.start <= 2000
    if rare == 0.5:
        assert subsets.has_holdout
    for size in (*rungs, judged.stop):
        share = np.mean(labels[subsets.order[:size]] > 0.0)
        # Every class is spread evenly over the order: off by one row at most.
        assert abs(share - np.mean(labels > 0.0)) * size <= 1.0 + 1e-9


def test_ranks_of_features():
    X = np.column_stack([np.exp(3.0 * RNG.standard_normal(150)), RNG.integers(0, 3, 150)])
    warp = Warp.of(X)
    # The middle of the ranks of equal values, over their number.
    expected = (np.column_stack([rankdata(c) for c in X.T]) - 0.5) / len(X)
    np.testing.assert_allclose(warp(X), expected, rtol=0.0, atol=1e-12)
    many = np.exp(RNG.standard_normal((5000, 1)))
    found = Warp.of(many)
    assert len(found.knots[0]) <= 200
    exact = (rankdata(many[:, 0]) - 0.5) / len(many)
    # 200 knots are half a percent apart.
    np.testing.assert_allclose(found(many)[:, 0], exact, rtol=0.0, atol=1.0 / 200)
    ends = warp(np.array([[-np.inf, -9.0], [np.inf, 9.0]]))
    np.testing.assert_array_equal(ends, [warp(X).min(axis=0), warp(X).max(axis=0)])
    assert (np.diff(warp(np.sort(X, axis=0)), axis=0) >= 0.0).all()
    # Weights count rows.
    X, weights = RNG.standard_normal((40, 1)), RNG.integers(1, 4, 40).astype(float)
    again = np.repeat(X, weights.astype(int), axis=0)
    np.testing.assert_allclose(Warp.of(X, weights)(X), Warp.of(again)(X), atol=1e-12)


def test_a_gain_is_more_than_its_standard_error():
    gain = np.array([1.0, -1.0, 1.0, -1.0, 1.0]) / np.sqrt(5.0)
    error = np.std(gain) / np.sqrt(5.0)
    assert not gains_significantly(gain - gain.mean() + 0.999 * error)
    assert gains_significantly(gain - gain.mean() + 1.001 * error)
    assert not gains_significantly(gain - gain.mean() + 1.999 * error, 2.0)
    assert not gains_significantly(np.array([np.inf, 1.0]))
    # No rows judge where a class is too rare.
    labels = np.where(np.arange(3000) < 12, 1.0, -1.0)
    assert not split_rows(3000, labels, np.random.default_rng(0)).has_holdout


def test_nearest_rows_are_taken_beyond_doubt_and_a_little():
    alone = np.zeros(16)
    wave = np.where(np.arange(16) % 2, 1.0, -1.0)  # standard error 1/4, of which half is doubt
    for gain, taken in (
        (np.full(16, 1.9e-4), False),
        (np.full(16, 2.1e-4), True),
        (0.1 + 0.801 * wave, False),
        (0.1 + 0.799 * wave, True),
        (1.9e-4 + 1e-6 * wave, False),
    ):
        assert ScoredEngine(None, alone, gain).uses_nearest == taken
    assert not ScoredEngine(None, alone, None).uses_nearest


def test_judges_observe_their_exposures():
    """Densities of f times a scale are those of the process whose covariance has the scales."""
    rng = np.random.default_rng(4)
    X, scale = rng.uniform(-2.0, 2.0, (60, 2)), np.sqrt(rng.uniform(0.1, 9.0, 60))
    y = rng.poisson((scale * (1.5 + 0.5 * X[:, 0])) ** 2).astype(float)
    kernel, settings = ConstantKernel(1.0) * RBF(0.7), settings_of(GPPoissonRegressor())
    data = Data(Inputs(X), y, Projector("poisson", "ep"), np.full(60, 1.5), None, scale)
    fitted = FittedKernel(Start(kernel), SimpleNamespace(theta=kernel.theta), None)
    found = Trial(data, settings, Budget(None, 60), slice(40, 60)).densities(fitted, 40)
    K, prior = kernel(X) * np.outer(scale, scale), 1.5 * scale
    post = infer(K[:40, :40], y[:40], "poisson", "ep", mean=prior[:40])
    mean, variance = post.predict(K[40:, :40], np.diag(K)[40:], mean=prior[40:])
    z, w = unit_normal(100)
    g = mean[:, None] + np.sqrt(variance)[:, None] * z
    expected = np.log(poisson.pmf(y[40:, None], g * g) @ w)
    # Sites of stages settle to 1e-4.
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=2e-3)


def test_budget_grows_with_the_rows():
    assert Budget(None, 50).seconds == Budget(None, 10_000).seconds == 30.0
    assert Budget(None, 100_000).seconds == pytest.approx(120.0)
    budget = Budget(2.0, 10**6)
    assert budget.allows(2.0 * OPERATIONS_PER_SECOND)
    budget.spend(1.5 * OPERATIONS_PER_SECOND)
    assert budget.allows(0.5 * OPERATIONS_PER_SECOND)
    assert not budget.allows(0.501 * OPERATIONS_PER_SECOND)
    assert not budget.allows(0.0, 0.7)
    # Kernels are learnt from a thousand rows.
    limit = policy._DENSE_ROW_LIMIT_NOT_LOG_CONCAVE
    assert split_rows(4000, None, np.random.default_rng(0), limit).rungs == (500, 1000)


MOONS, SIDES = make_moons(90, noise=0.25, random_state=0)
NEW = RNG.uniform(-1.5, 2.5, (40, 2))


def test_small_fits_are_dense_and_say_what_they_chose(caplog):
    with caplog.at_level(logging.INFO, "qpruntime"):
        model = GPClassifier(inducing="judged", random_state=0).fit(MOONS, SIDES)
    (told,) = [r.getMessage() for r in caplog.records if "rows:" in r.getMessage()]
    assert "90 rows: all of them by the dense engine" in told
    assert model.engine_ == "dense"
    assert model.nearest_ == 0
    assert model.stages_[-1].rows == 90
    assert {stage.rows for stage in model.stages_[:-2]} == {45}
    assert "all rows, one length-scale" in model.stages_[-1].candidate
    assert sorted(s.operations for s in model.stages_) == [s.operations for s in model.stages_]
    again = GPClassifier(inducing="judged", random_state=0, n_jobs=2).fit(MOONS, SIDES)
    np.testing.assert_array_equal(again.predict_proba(NEW), model.predict_proba(NEW))
    assert again.stages_ == model.stages_ or str(again.stages_) == str(model.stages_)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(NEW), model.predict_proba(NEW))


@pytest.fixture
def few_dense(monkeypatch):
    monkeypatch.setattr(policy, "DENSE_ROW_LIMIT", 80)
    monkeypatch.setattr(policy, "FIRST_INDUCING", 10)


def test_many_rows_take_inducing_points(few_dense):
    options = {"inducing": "judged", "random_state": 3}
    models = [GPClassifier(n_jobs=n, **options).fit(MOONS, SIDES) for n in (None, 1)]
    one, other = models
    assert one.engine_ in ("inducing", "inducing+nearest")
    assert len(one.inducing_points_) in (10, 20, 40)
    assert one.X_train_.shape == (0, 2)
    np.testing.assert_array_equal(one.predict_proba(NEW), other.predict_proba(NEW))
    assert one.score(MOONS, SIDES) > 0.85
    dense = GPClassifier(random_state=3).fit(MOONS, SIDES)
    assert dense.engine_ == "dense"
    assert np.abs(dense.predict_proba(NEW) - one.predict_proba(NEW)).mean() < 0.1


@pytest.mark.slow
def test_a_kernel_of_more_rows_is_left_where_rows_left_out_lose_by_it(few_dense, monkeypatch):
    options = {"inducing": Inducing("judged", nearest=0), "random_state": 3}
    plain = GPClassifier(**options).fit(MOONS, SIDES)

    def smooth(trial, candidate, *_):
        """A kernel that knows one frequency at most."""
        climbed = candidate.fitted
        theta = climbed.theta.copy()
        theta[2:] += 6.0
        optimum = replace(climbed.optimum, theta=theta)
        return replace(candidate, fitted=replace(climbed, optimum=optimum))

    monkeypatch.setattr(policy, "fit_last_rung", smooth)
    kept = GPClassifier(**options).fit(MOONS, SIDES)
    assert len(kept.stages_) >= len(plain.stages_) + 2
    assert str(kept.kernel_) == str(plain.kernel_)
    # With as few inducing points other clusters show.
    np.testing.assert_allclose(kept.predict_proba(NEW), plain.predict_proba(NEW), atol=0.05)


@every_case("k", [0, 7])
def test_nearest_rows_as_asked_for(few_dense, k):
    model = GPClassifier(inducing=Inducing("judged", nearest=k), random_state=3).fit(MOONS, SIDES)
    assert model.nearest_ == k
    assert model.engine_ == ("inducing+nearest" if k else "inducing")
    assert getattr(model.posterior_, "nearest", 0) == k


def test_ranks_are_taken_where_judges_prefer_them():
    X = np.exp(4.0 * np.random.default_rng(5).standard_normal((300, 3)))
    y = np.sin(0.5 * np.log(X[:, 0])) + 0.25 * np.log(X[:, 1]) > 0.0
    model = GPClassifier(inducing="judged", random_state=0).fit(X[:200], y[:200])
    assert model.warp_ is not None
    assert model.score(X[200:], y[200:]) > 0.75
    np.testing.assert_array_equal(model.X_train_, model.warp_(X[:200]))
    # The kernel is of these ranks.
    post = GPClassifier(model.kernel_, optimize=False).fit(model.X_train_, y[:200])
    got = post.predict_proba(model.warp_(X[200:]))
    np.testing.assert_allclose(got, model.predict_proba(X[200:]), rtol=1e-6, atol=1e-6)


def test_without_arguments_few_rows_are_fitted_by_the_evidence_and_more_by_the_policy(monkeypatch):
    few = GPClassifier().fit(MOONS, SIDES)
    dense = GPClassifier(inducing=None).fit(MOONS, SIDES)
    assert few.engine_ == "dense"
    np.testing.assert_array_equal(few.predict_proba(NEW), dense.predict_proba(NEW))
    for room in (policy, budget):
        monkeypatch.setattr(room, "DENSE_ROW_LIMIT", 80)
    assert GPClassifier(random_state=3).fit(MOONS, SIDES).engine_.startswith("inducing")
    assert GPClassifier(dense.kernel_, random_state=3).fit(MOONS, SIDES).engine_ == "dense"


def test_useless_features_keep_one_length_scale():
    options = {"n_informative": 30, "n_redundant": 0, "random_state": 2}
    X, y = make_classification(n_samples=200, n_features=30, **options)
    model = GPClassifier(inducing="judged", random_state=0).fit(X, y)
    lengths = model.kernel_.k2.k2.length_scale / X.std(axis=0)
    assert lengths.max() < 3.0 * lengths.min()


@pytest.mark.slow
def test_all_rows_take_the_length_scales_that_half_of_them_do_not(monkeypatch, caplog):
    rng = np.random.default_rng(11)
    X = rng.uniform(-1.0, 1.0, (120, 4))
    y = np.sin(4.0 * X[:, 0]) + 0.2 * rng.standard_normal(120)
    monkeypatch.setattr(candidates, "gains_significantly", lambda *_: False)
    fits = []
    for seconds in (None, 0.02):
        with caplog.at_level(logging.INFO, "qpruntime"):
            inducing = Inducing("judged", budget=seconds)
            fits.append(GPRobustRegressor(inducing=inducing, random_state=0).fit(X, y))
    told = [r.getMessage() for r in caplog.records if "rows:" in r.getMessage()]
    one, other = (fit.kernel_.k2.k2.length_scale / X.std(axis=0) for fit in fits)
    assert one[1:].min() > 3.0 * one[0]
    assert "one length-scale a feature" in told[0]
    # The budget ends before it.
    assert other.max() < 1.5 * other.min()
    assert "one length-scale a feature" not in told[1]


@pytest.mark.slow
def test_several_classes_share_their_features(few_dense):
    labels = np.digitize(MOONS[:, 0], [0.0, 1.0])
    model = GPClassifier(inducing="judged", random_state=0).fit(MOONS, labels)
    assert len(model.kernel_) == len(model.posterior_) == 3
    assert model.score(MOONS, labels) > 0.9
    np.testing.assert_allclose(model.predict_proba(NEW).sum(axis=1), 1.0, rtol=1e-12)


def function(X):
    """Smooth, of two features of three."""
    return np.sin(4.0 * X[:, 0]) + X[:, 1] ** 2


def many(fit, *data):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="error"):
        for room in (policy, budget):
            patch.setattr(room, "DENSE_ROW_LIMIT", 400)
        return fit(*data)


@pytest.mark.slow
def test_rates_are_found_as_well_as_by_a_dense_fit_of_fewer_rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (1700, 3))
    rate = (2.0 + function(X)) ** 2
    y = rng.poisson(rate)
    fitted, new = slice(800), slice(800, None)
    model = many(GPPoissonRegressor(random_state=0).fit, X[fitted], y[fitted])
    assert model.link_ == "square"
    assert model.engine_.startswith("inducing")
    some = GPPoissonRegressor(inducing=None, method="ep", optimize=Search(ftol=1e-4))
    some.fit(X[:300], y[:300])
    roots = [np.sqrt(one.predict(X[new])) for one in (model, some)]
    errors = [float(np.mean((root - np.sqrt(rate[new])) ** 2)) for root in roots]
    assert errors[0] < errors[1]
    # The counts themselves have a variance of 1/4 on this scale.
    assert errors[0] < 0.01
    low, high = model.predict_quantiles(X[new], (0.05, 0.95)).T
    inside = np.mean((low <= y[new]) & (y[new] <= high))
    # Whole counts are held more often than asked for; below, four errors of 900 draws.
    assert 0.9 - 4.0 * np.sqrt(0.09 / 900.0) < inside < 0.99


@pytest.mark.slow
def test_outliers_do_not_pull_and_intervals_hold_what_they_say():
    """A fit to t_4 noise, one row in twenty-five of which is far off; new rows are not."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.0, 1.0, (2500, 3))
    y = function(X) + 0.1 * rng.standard_t(4.0, len(X))
    spoilt = y.copy()
    spoilt[rng.permutation(500)[:20]] += 30.0
    model = many(GPRobustRegressor(random_state=0, method="ep").fit, X[:500], spoilt[:500])
    new, y = X[500:], y[500:]
    assert model.engine_.startswith("inducing")
    # The noise of a row is .14; 500 rows with it, clean, are followed to .04.
    assert np.sqrt(np.mean((model.predict(new) - function(new)) ** 2)) < 0.06
    low, high = model.predict_quantiles(new, (0.05, 0.95)).T
    # Four errors of 2000 draws below; outliers among the rows make the noise wider, not narrower.
    assert np.mean((low <= y) & (y <= high)) > 0.9 - 4.0 * np.sqrt(0.09 / 2000.0)
    assert np.mean(high - low) < 1.0


@every_case("seed", [0, 1, 2])
def test_negative_sites_of_parallel_iterations_are_those_of_sweeps(seed):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-3.0, 3.0, 80))
    K = np.exp(-0.5 * (X[:, None] - X) ** 2)
    y = np.sin(X) + 0.2 * rng.standard_t(3.0, 80)
    projector = Projector("student-t(nu=4, scale=0.2)", "ep")
    problem = Problem(DensePrior(K, np.zeros(80)), y, projector)
    end = settle_fast(problem, tol=1e-9, max_sweeps=100, seek=False)
    assert end.sites.tau.min() < 0.0
    slow = infer(K, y, "student-t(nu=4, scale=0.2)", "ep", order="sequential", tol=1e-9)
    # Both settle to 1e-9, in units of the posterior.
    np.testing.assert_allclose(end.factor.mean, slow.mean, rtol=0.0, atol=1e-7)
    np.testing.assert_allclose(end.variance, slow.variance, rtol=1e-6)
