"""Fits without arguments of counts in the square link and of heavy tails: beyond dense fits."""

import warnings

import numpy as np
import pytest

from qpruntime import GPPoissonRegressor, GPRobustRegressor, Search, infer
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.problem import Problem
from qpruntime.learning.model_selection import budget
from qpruntime.learning.model_selection import select as policy
from qpruntime.learning.model_selection.budget import split_rows
from qpruntime.learning.objective import settle_fast
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case


def function(X):
    """Smooth, of two features of three."""
    return np.sin(4.0 * X[:, 0]) + X[:, 1] ** 2


def many(fit, *data):
    """Fit where more than 400 rows are many."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="error"):
        for room in (policy, budget):
            patch.setattr(room, "DENSE_ROW_LIMIT", 400)
        return fit(*data)


def test_kernels_are_learnt_from_a_thousand_rows():
    assert split_rows(
        4000, None, np.random.default_rng(0), policy._DENSE_ROW_LIMIT_NOT_LOG_CONCAVE
    ).rungs == (500, 1000)


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


@pytest.fixture(scope="module")
def outliers():
    """A fit to t_4 noise, one row in twenty-five of which is far off; new rows are not."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1.0, 1.0, (2500, 3))
    y = function(X) + 0.1 * rng.standard_t(4.0, len(X))
    spoilt = y.copy()
    spoilt[rng.permutation(500)[:20]] += 30.0
    model = many(GPRobustRegressor(random_state=0, method="ep").fit, X[:500], spoilt[:500])
    return model, X[500:], y[500:]


@pytest.mark.slow
def test_outliers_do_not_pull(outliers):
    model, new, _ = outliers
    assert model.engine_.startswith("inducing")
    # The noise of a row is .14; 500 rows with it, clean, are followed to .04.
    assert np.sqrt(np.mean((model.predict(new) - function(new)) ** 2)) < 0.06


@pytest.mark.slow
def test_intervals_hold_what_they_say(outliers):
    model, new, y = outliers
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
