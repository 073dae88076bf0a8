"""Notice that boosting predicts better, against scikit-learn and SciPy; rows of rare classes."""

from __future__ import annotations

import logging
import re

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm, poisson
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import KFold, StratifiedKFold

from qpruntime import GPClassifier, GPOrdinal, GPPoissonRegressor, GPRegressor
from qpruntime.estimators import prior_mean_selection
from qpruntime.estimators.prior_mean_selection import _some_rows
from qpruntime.learning.fit import fit_processes
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.options import Search
from qpruntime.learning.settings import Data, generator
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case

NOTICE = re.compile(
    r"boosting predicts (\d+) rows that were left out better than this fit, by (-?\d\.\d+) log "
    r'density a row \(standard error (\d\.\d+)\); prior_mean="auto" can use it'
)
# Model selection for few rows, with short searches.
FEW = {"inducing": "judged", "random_state": 0, "optimize": Search(max_iter=1)}


@pytest.fixture
def few(monkeypatch, caplog):
    """Let the notice apply to a hundred rows, and return what the logger has recorded."""
    monkeypatch.setattr(prior_mean_selection, "DENSE_ROW_LIMIT", 100)
    caplog.set_level(logging.DEBUG, "qpruntime")
    return caplog


def notices(caplog):
    return [found for text in caplog.messages if (found := NOTICE.search(text))]


def thresholds(n=600, seed=0):
    """Features, and a function of narrow bands and steps, which trees see at once."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 5))
    bands = np.where(np.floor(8.0 * X[:, 0]) % 2.0, 2.0, -2.0)
    return X, bands + np.where(X[:, 1] > 0.7, 2.0, -2.0) * (X[:, 2] > 0.3), rng


def densities_of_line(log_density, score, weights, begin):
    """Log densities of observations at the most probable line of a score, and noise."""

    def loss(theta):
        return -np.sum(weights * log_density(theta[0] + theta[1] * score, *theta[2:]))

    options = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 5000, "maxfev": 5000}
    theta = minimize(loss, begin, method="Nelder-Mead", options=options).x
    return log_density(theta[0] + theta[1] * score, *theta[2:])


def check(caplog, gain, tolerance=2e-4):
    """Compare what the logger has recorded with gains of rows."""
    error = gain.std() / np.sqrt(gain.size)
    assert gain.mean() > 2.0 * error
    ((rows, mean, printed),) = [found.groups() for found in notices(caplog)]
    assert int(rows) == gain.size
    # Numbers are printed to four digits; lines have a latent deviation of .001.
    assert float(mean) == pytest.approx(gain.mean(), abs=tolerance)
    assert float(printed) == pytest.approx(error, abs=tolerance)


def test_the_notice_of_classes(few):
    X, f, rng = thresholds()
    y = (f + rng.standard_normal(600) > 0.0).astype(int)
    model = GPClassifier(**FEW).fit(X, y)
    learnt, left_out = next(StratifiedKFold(3, shuffle=True, random_state=0).split(X, y))
    trees = HistGradientBoostingClassifier(early_stopping=True, random_state=0)
    p = trees.fit(X[learnt], y[learnt]).predict_proba(X[left_out])[:, 1].clip(1e-5, 1 - 1e-5)
    signs = 2.0 * y[left_out] - 1.0
    density = densities_of_line(lambda f: norm.logcdf(signs * f), norm.ppf(p), 1.0, [0.0, 1.0])
    check(few, density - model.posterior_.loo(left_out))


def test_the_notice_of_counts_with_weights_and_exposures(few):
    X, f, rng = thresholds()
    exposure, weights = rng.uniform(2.0, 4.0, 600), rng.uniform(0.8, 1.2, 600)
    y = rng.poisson(exposure * np.exp(0.5 * f))
    model = GPPoissonRegressor(link="exp", dispersion=np.inf, **FEW)
    model.fit(X, y, exposure=exposure, sample_weight=weights)
    learnt, left_out = next(KFold(3, shuffle=True, random_state=0).split(X))
    trees = HistGradientBoostingRegressor(loss="poisson", early_stopping=True, random_state=0)
    trees.fit(X[learnt], (y / exposure)[learnt], (weights * exposure)[learnt])
    score, counts, looked = np.log(trees.predict(X[left_out])), y[left_out], exposure[left_out]
    density = densities_of_line(
        lambda f: poisson.logpmf(counts, looked * np.exp(f)), score, weights[left_out], [0.0, 1.0]
    )
    share = weights[left_out] / weights[left_out].mean()
    check(few, share * (density - model.posterior_.loo(left_out)))


def test_the_notice_of_numbers_learns_the_noise_of_boosting(few):
    X, f, rng = thresholds(seed=2)
    y = 50.0 + 10.0 * (f + 0.5 * rng.standard_normal(600))
    model = GPRegressor(**FEW).fit(X, y)
    unit = model.parameters_["scale"] / model.likelihood_.parameters["scale"]
    learnt, left_out = next(KFold(3, shuffle=True, random_state=0).split(X))
    trees = HistGradientBoostingRegressor(
        loss="absolute_error", early_stopping=True, random_state=0
    )
    score, seen = trees.fit(X[learnt], y[learnt]).predict(X[left_out]), y[left_out]
    density = densities_of_line(
        lambda f, log_scale: norm.logpdf(seen, f, np.exp(log_scale)), score, 1.0, [0.0, 1.0, 2.0]
    )
    # The posterior's densities are of y in another unit.
    gain = density + np.log(unit) - model.posterior_.loo(left_out)
    # The noise is searched to a hundredth.
    check(few, gain, 5e-4)


def test_nothing_is_said_of_smooth_functions_few_rows_and_silent_loggers(few, monkeypatch):
    X, _, rng = thresholds()
    rows = X, np.sin(3.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(600) > 0.5
    GPClassifier(**FEW).fit(*rows)
    assert not notices(few)

    def unwanted(*_):
        raise AssertionError("boosting is compared")

    monkeypatch.setattr(prior_mean_selection, "_gains_of_boosting", unwanted)
    few.set_level(logging.WARNING, "qpruntime")
    GPClassifier(**FEW).fit(*rows)
    few.set_level(logging.DEBUG, "qpruntime")
    GPClassifier(**FEW).fit(X[:100], rows[1][:100])
    # A likelihood without y = f + noise, and a given mean, exclude prior_mean=.
    GPOrdinal(**FEW).fit(X[:200], rng.integers(0, 3, 200))
    GPPoissonRegressor(mean=0.0, link="exp", dispersion=np.inf, **FEW).fit(
        X[:200], rng.poisson(1.0, 200)
    )
    GPClassifier(RBF(), inducing=20, random_state=0).fit(*rows)
    assert not [record for record in few.records if "not compared" in record.getMessage()]
    # A failure is no failure of the fit.
    model = GPClassifier(**FEW).fit(*rows)
    assert [record for record in few.records if "not compared" in record.getMessage()]
    assert model.score(*rows) > 0.6


def test_the_notice_changes_no_bits(few):
    X, f, rng = thresholds()
    y = f + rng.standard_normal(600) > 0.0
    fits, states = [], []
    for level in (logging.INFO, logging.ERROR):
        few.set_level(level, "qpruntime")
        state = np.random.RandomState(3)
        model = GPClassifier(**FEW | {"random_state": state}).fit(X, y)
        fits.append(model.predict_proba(X))
        states.append(state.get_state()[1])
    assert len(notices(few)) == 1
    np.testing.assert_array_equal(*fits)
    np.testing.assert_array_equal(*states)


def test_the_notice_of_frames_with_levels_missing_values_and_groups(few):
    """Copies of noise in one group teach nothing; steps that survive gaps are seen."""
    X, f, rng = thresholds(1000)
    frame = pd.DataFrame(X).rename(columns=str)
    frame["level"] = pd.Categorical(rng.choice(["low", "high"], 1000))
    frame.loc[rng.random(1000) < 0.1, "4"] = np.nan
    y = 1.5 * f + 2.0 * (frame["level"] == "high") + rng.standard_normal(1000) > 0.0
    model = GPClassifier(**FEW)
    model.fit(frame, y, sample_weight=rng.uniform(0.5, 2.0, 1000), groups=np.arange(1000) // 2)
    ((rows, *_),) = [found.groups() for found in notices(few)]
    assert int(rows) == 167  # a third of the groups
    few.clear()
    twice = np.tile(np.arange(200), 3)
    model.fit(frame.iloc[twice], rng.random(200)[twice] < 0.5)
    assert not notices(few)
    model.fit(X, y, groups=np.arange(1000) % 30)  # ten groups judge, which is too few
    assert not notices(few)
    assert not [text for text in few.messages if "not compared" in text]


# --- Rows of the first stage


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
    model = GPClassifier(prior_mean="auto", random_state=0, optimize=Search(max_iter=1)).fit(X, y)
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
    model = GPClassifier(prior_mean="auto", **options).fit(X, y)
    assert model.prior_mean_ is not None
    tried = {re.sub(r",? ?\d+ inducing.*", "", stage.candidate) for stage in model.stages_}
    assert (len(tried - {"", "all rows, dense"}) > 1) == compared
    assert len({stage.candidate for stage in GPClassifier(**options).fit(X, y).stages_}) > 3
