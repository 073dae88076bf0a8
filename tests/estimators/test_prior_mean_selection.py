"""Boosting by default, lines of scores against SciPy, and rows of rare classes."""

import logging
import re

import numpy as np
import pytest
import zarr
from scipy.optimize import minimize
from scipy.stats import norm, poisson
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier, GPOrdinal, GPPoissonRegressor, GPRobustRegressor
from qpruntime.estimators import prior_mean, prior_mean_selection
from qpruntime.estimators.prior_mean_selection import _by_line, _some_rows
from qpruntime.learning.fit import fit_processes
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.options import Search
from qpruntime.learning.settings import Data, generator
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses

# Model selection for few rows, with short searches.
FEW = {"inducing": "judged", "random_state": 0, "optimize": Search(max_iter=1)}


def thresholds(n=600, seed=0):
    """Features, and a function of narrow bands and steps, which trees see at once."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 5))
    bands = np.where(np.floor(8.0 * X[:, 0]) % 2.0, 2.0, -2.0)
    return X, bands + np.where(X[:, 1] > 0.7, 2.0, -2.0) * (X[:, 2] > 0.3), rng


def labels(n, seed=0):
    X, f, rng = thresholds(n, seed)
    return X, (f + rng.standard_normal(n) > 0.0).astype(int)


@pytest.mark.filterwarnings("ignore:the evidence was not maximised")
def test_the_default_takes_boosting_above_1500_rows_if_it_gains(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "qpruntime")
    X, y = labels(1600)
    model = GPClassifier(random_state=0, optimize=Search(max_iter=1))
    assert model.fit(X[:1500], y[:1500]).prior_mean_ is None
    assert not [text for text in caplog.messages if "boosting" in text]
    monkeypatch.setattr(prior_mean_selection, "_SECONDS", 60.0 / X.size)
    assert model.fit(X, y).prior_mean_ is not None
    said = "boosting of 1600 rows will take about 60 s; prior_mean=None spares it"
    assert [text for text in caplog.messages if said in text]
    (line,) = [text for text in caplog.messages if "prior mean by boosting: +" in text]
    assert float(re.search(r"boosting: \+(\d\.\d+) log density a row", line)[1]) > 0.05


@pytest.mark.filterwarnings("ignore:the evidence was not maximised")
@every_case("copies", [1, 3])
def test_trees_that_lose_on_one_fold_are_not_fitted_to_others(copies, caplog, monkeypatch):
    """A fold has a fifth of 300 distinct rows, however often each of them is there."""
    caplog.set_level(logging.INFO, "qpruntime")
    caplog.clear()
    fitted, fit = [], prior_mean._fit
    monkeypatch.setattr(prior_mean, "_fit", lambda *args: fitted.append(args) or fit(*args))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    y = X @ np.ones(6) + 0.3 * rng.standard_normal(300)
    model = GPRobustRegressor(**FEW).fit(np.repeat(X, copies, axis=0), np.repeat(y, copies))
    assert model.prior_mean_ is None
    assert len(fitted) == 1
    (line,) = [text for text in caplog.messages if "prior mean by boosting not taken" in text]
    assert float(re.search(r"have (\d\.\d+) log density a row less", line)[1]) > 0.1
    assert line.endswith("over 60 groups of rows")


@pytest.mark.filterwarnings("ignore:the evidence was not maximised")
def test_the_default_compares_nothing_where_the_user_decides(monkeypatch):
    """Given kernels, engines and averages, rows on disk or too many, other likelihoods."""

    def unwanted(*_):
        raise AssertionError("boosting is compared")

    monkeypatch.setattr(prior_mean_selection, "cross_fitted", unwanted)
    X, y = labels(300)
    refuses("boosting is compared", GPClassifier(**FEW).fit, X, y, error=AssertionError)
    levels = np.digitize(X[:, 0] + X[:, 1], [0.7, 1.3])
    for model, target in (
        (GPClassifier(**FEW | {"inducing": "auto"}), y),
        (GPClassifier(**FEW, prior_mean=None), y),
        (GPClassifier(RBF(), **FEW | {"inducing": 20}), y),
        (GPClassifier(**FEW | {"inducing": "auto"}, hyperparameters="integrate"), y),
        (GPClassifier(**FEW | {"inducing": "auto"}, multi_class="joint"), levels),
        (GPClassifier(**FEW | {"inducing": "auto"}, monotone={0: 1}), y),
        (GPOrdinal(**FEW), levels),
        (GPPoissonRegressor(mean=0.0, link="exp", dispersion=np.inf, **FEW), levels),
    ):
        assert model.fit(X, target).prior_mean_ is None
    stored = zarr.array(np.tile(X, (6, 1)) + 1e-3 * np.arange(1800)[:, None], chunks=(500, 5))
    model = GPClassifier(random_state=0, optimize=Search(max_iter=1))
    assert model.fit(stored, np.tile(y, 6)).prior_mean_ is None
    # Copies of rows need memory.
    needed = []
    monkeypatch.setattr(prior_mean_selection, "fits", lambda nbytes: needed.append(nbytes))
    assert GPClassifier(**FEW).fit(X, y).prior_mean_ is None
    assert needed == [2.0 * X.nbytes]


def densities_of_line(log_density, score, weights, begin):
    """Log densities of observations at the most probable line of a score, and noise."""

    def loss(theta):
        return -np.sum(weights * log_density(theta[0] + theta[1] * score, *theta[2:]))

    options = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 5000, "maxfev": 5000}
    theta = minimize(loss, begin, method="Nelder-Mead", options=options).x
    return log_density(theta[0] + theta[1] * score, *theta[2:])


def scored(likelihood, y, score, tolerance, expected, offset=0.0, weights=None, learn=None):
    """Compare the log densities by lines of a score with others."""
    observed = Inputs(score[:, None]), y, Projector(likelihood, "ep"), np.zeros(len(y)), weights
    data = Data(*observed, learn=learn or {})
    densities = _by_line([data], data.X, np.arange(len(y)), score[:, None], offset, 0)
    # Lines have a latent deviation of .001.
    np.testing.assert_allclose(densities, expected, atol=tolerance)


def test_lines_of_classes_counts_and_numbers():
    X, y = labels(300)
    score, signs = 0.7 * (X[:, 0] - 0.4), 2.0 * y - 1.0
    expected = densities_of_line(lambda f: norm.logcdf(signs * f), score, 1.0, [0.0, 1.0])
    scored("probit", signs, score, 1e-4, expected)
    # Counts with weights and exposures.
    X, f, rng = thresholds()
    exposure, weights = rng.uniform(2.0, 4.0, 600), rng.uniform(0.8, 1.2, 600)
    y = rng.poisson(exposure * np.exp(0.5 * f)).astype(float)
    score = 0.4 * f + 0.2 * X[:, 4]
    density = densities_of_line(
        lambda f: poisson.logpmf(y, exposure * np.exp(f)), score, weights, [0.0, 1.0]
    )
    expected = density * weights / weights.mean()
    scored("poisson-exp", y, score, 1e-3, expected, np.log(exposure), weights)
    # Numbers learn the noise of the score.
    _, f, rng = thresholds(seed=2)
    y = 0.3 * (f + 0.5 * rng.standard_normal(600))
    score = f + 0.2 * rng.standard_normal(600)
    expected = densities_of_line(
        lambda f, log_scale: norm.logpdf(y, f, np.exp(log_scale)), score, 1.0, [0.0, 1.0, -1.0]
    )
    # The noise is searched to a hundredth.
    scored("gaussian", y, score, 0.05, expected, learn={"scale": (1e-3, 1e2)})


def data_of(classes):
    """Processes of labels, one for each class, or one for two classes."""
    labels = np.unique(classes)
    inputs = Inputs(np.zeros((len(classes), 1)))
    return [
        Data(inputs, np.where(classes == label, 1.0, -1.0), Projector("probit"), np.zeros(0))
        for label in (labels if labels.size > 2 else labels[1:])
    ]


@every_case("rare", [1, 6, 40])
@every_case("classes", [2, 3])
def test_rare_classes_are_among_some_rows(rare, classes):
    rng = np.random.default_rng(rare)
    y = rng.integers(0, classes - 1, 9000)
    y[rng.choice(9000, rare, replace=False)] = classes - 1
    rows = _some_rows(data_of(y), np.arange(9000), 500, np.random.default_rng(0))
    assert rows.size == 500
    assert (np.diff(rows) > 0).all()
    assert (y[rows] == classes - 1).sum() >= min(rare, 10)
    # Common classes keep their shares, and one without rare ones draws the rows it always did.
    assert (y[rows] == 0).mean() == pytest.approx((y == 0).mean(), abs=0.08)
    common = y % (classes - 1) if classes > 2 else rng.integers(0, 2, 9000)
    drawn = np.sort(np.random.default_rng(0).permutation(9000)[:500])
    found = _some_rows(data_of(common), np.arange(9000), 500, np.random.default_rng(0))
    np.testing.assert_array_equal(found, drawn)


@pytest.mark.filterwarnings("ignore:the evidence was not maximised")
def test_the_first_stage_sees_every_class(monkeypatch):
    """Three of 700 rows have the third class, and 500 rows drawn at random have none."""
    seen = []

    def noted(processes, *arguments, **options):
        seen.append([np.unique(data.y).size for data in processes])
        return fit_processes(processes, *arguments, **options)

    monkeypatch.setattr("qpruntime.estimators.base.fit_processes", noted)
    X, f, _ = thresholds(700, 4)
    y = (f > 0.0).astype(int)
    rng = np.random.default_rng(int(generator(0).integers(2**31)))
    rng.permutation(700)  # the rows that are compared
    drawn = rng.permutation(700)[:500]
    y[np.setdiff1d(np.arange(700), drawn)[:3]] = 2
    model = GPClassifier(**FEW).fit(X, y)
    assert len(seen) >= 4
    assert {count for counts in seen for count in counts} == {2}
    assert model.predict_proba(X[:3]).shape == (3, 3)


@every_case("smooth, compared", [(0.0, False), (3.0, True)])
def test_kernels_are_compared_if_the_process_adds_to_the_trees(smooth, compared):
    """Trees see bands at once, and a sine along a diagonal badly."""
    X, f, rng = thresholds(900, 6)
    wave = smooth * np.sin(7.0 * (X[:, 3] - X[:, 4]))
    y = f + wave + rng.standard_normal(900) > 0.0
    options = {"inducing": "judged", "random_state": 0}
    model = GPClassifier(**options).fit(X, y)
    assert model.prior_mean_ is not None
    tried = {re.sub(r",? ?\d+ inducing.*", "", stage.candidate) for stage in model.stages_}
    assert (len(tried - {"", "all rows, dense"}) > 1) == compared
    plain = GPClassifier(prior_mean=None, **options).fit(X, y)
    assert len({stage.candidate for stage in plain.stages_}) > 3
