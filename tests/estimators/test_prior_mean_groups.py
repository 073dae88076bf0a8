"""Cross-fitting of repeated rows: a row three times says what it says once."""

import numpy as np
import pytest
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.tree import DecisionTreeRegressor

from qpruntime import GPClassifier, GPPoissonRegressor, GPRegressor, GPRobustRegressor
from qpruntime.estimators.classifier import coupling_of
from qpruntime.estimators.joint_classifier import exponents
from qpruntime.estimators.prior_mean import (
    OfClasses,
    OfNumbers,
    Target,
    _folds,
    cross_fitted,
)
from qpruntime.estimators.prior_mean_selection import boosted_classes, boosted_numbers
from qpruntime.learning.inputs import RowGroups
from qpruntime.likelihoods import get
from tests.tools.cases import refuses


def noise(count, seed=0, features=4):
    """Labels that have nothing to do with the features."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, features)), rng.integers(0, 2, count), rng


@pytest.mark.parametrize(
    "given",
    ["auto", pytest.param(RandomForestClassifier(50, random_state=0), marks=pytest.mark.slow)],
)
def test_copies_of_noise_teach_nothing(given):
    """Of 150 rows three times new rows get log 2; by rows left out it was 1.155, by trees 5.1."""
    X, y, rng = noise(150)
    model = GPClassifier(prior_mean=given, random_state=0)
    model.fit(np.tile(X, (3, 1)), np.tile(y, 3))
    new, labels = rng.normal(size=(1000, 4)), rng.integers(0, 2, 1000)
    assert log_loss(labels, model.predict_proba(new)) < 0.70


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_scores_are_of_folds_without_the_group(classes, named):
    """A tree knows its rows by heart: a row's score comes of no row of its group."""
    X, y, rng = noise(60, 1)
    X, y = np.tile(X, (3, 1)), np.tile(y, 3)
    codes = np.tile(np.arange(60), 3)
    if named:  # rows that differ a little are a group because the user says so
        X = X + 1e-9 * rng.normal(size=X.shape)
    score = OfClasses(2, False) if classes else OfNumbers(0.0, 1.0)
    likelihood, seen = (get("probit"), 2.0 * y - 1.0) if classes else (get("laplace"), y * 1.0)
    start = boosted_classes if classes else boosted_numbers
    groups = RowGroups(X, codes if named else None)
    target = Target(y if classes else y * 1.0, None, score, classes, start, groups)
    if classes:
        tree = RandomForestClassifier(1, bootstrap=False, random_state=0)
    else:
        tree = DecisionTreeRegressor(random_state=0)
    _mean, scores = cross_fitted(tree, X, target, [(likelihood, seen)], None, None, 0.0, 0)
    told = score(tree.__class__(**tree.get_params()).fit(X, target.y), X)[:, 0] > score_middle(
        classes
    )
    assert (told == (y > 0)).all()  # by heart
    right = np.mean((scores[:, 0] > score_middle(classes)) == (y > 0))
    assert right < 0.7  # of folds by rows: more than .9


def test_folds_hold_each_class_in_its_share():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1000, 2000)
    y = (rng.random(2000) < 0.05).astype(int)
    groups = RowGroups(None, codes)
    parts = _folds(Target(y, None, OfClasses(2, False), True, boosted_classes), groups, 0)
    assert sorted(np.concatenate([held_out for _, held_out in parts])) == list(range(2000))
    for learnt_from, held_out in parts:
        assert not np.isin(codes[held_out], codes[learnt_from]).any()
        assert len(held_out) + len(learnt_from) == 2000
        assert y[held_out].sum() == pytest.approx(y.sum() / 5, rel=0.25)


def score_middle(classes):
    return 0.0 if classes else 0.5


def test_boosting_stops_where_other_groups_say():
    """Copies among the rows that judge would let it go on to its last iteration."""
    X, y, _ = noise(250, 2)
    X, y = np.tile(X, (4, 1)), np.tile(y, 4)
    target = Target(y, None, OfClasses(2, False), True, boosted_classes)
    mean, _ = cross_fitted(
        boosted_classes(0), X, target, [(get("probit"), 2.0 * y - 1.0)], None, None, 0.0, 0
    )
    assert max(model.n_iter_ for model in mean.estimators) < 40
    leaking = HistGradientBoostingClassifier(early_stopping=True, random_state=0).fit(X, y)
    assert leaking.n_iter_ == 100


def test_copies_are_no_further_rows_that_judge():
    """Rows four times have the coupling and the exponent of rows once."""
    rng = np.random.default_rng(3)
    p = 1.0 / (1.0 + np.exp(-2.0 * rng.normal(size=(120, 4)) + 1.0))
    shares = (p / (1.0 - p) ** 0.5).cumsum(axis=1)
    codes = (rng.random((120, 1)) * shares[:, -1:] > shares).sum(axis=1)

    class Said:
        def __init__(self, log_p):
            self.log_p = log_p

    class Groups(RowGroups):
        def left_out(self, posterior, rows=None):
            return posterior.log_p if rows is None else posterior.log_p[rows]

    def coupling(copies):
        true = codes[:, None] == np.arange(4)
        said = [Said(np.tile(one, copies)) for one in np.log(np.where(true, p, 1.0 - p)).T]
        groups = Groups(None, np.tile(np.arange(120), copies))
        return coupling_of(said, np.tile(codes, copies), None, groups)

    # The price of b, two nats a unit, counts for less beside four times the rows.
    assert 0.0 < coupling(1) <= coupling(4) < coupling(1) + 0.07
    log_p = np.log(p / p.sum(axis=1, keepdims=True))
    once = exponents(log_p, codes)[1]
    four = exponents(np.tile(log_p, (4, 1)), np.tile(codes, 4), np.tile(np.arange(120), 4))[1]
    assert abs(np.log(four / once)) < 0.08
    assert exponents(np.tile(log_p, (4, 1)), np.tile(codes, 4))[1] != four


@pytest.mark.parametrize("seed", range(3))
def test_copies_leave_coupling_and_exponent(seed):
    """Classes of pure noise: rows twice had a coupling of 1, and joint ones an exponent of 5."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    two, labels = np.tile(X, (2, 1)), np.tile(y, 2)
    assert GPClassifier().fit(two, labels).coupling_ <= 0.2
    assert GPClassifier(multi_class="joint").fit(two, labels).exponent_ <= 1.1


@pytest.mark.slow
def test_every_estimator_takes_groups():
    X, y, rng = noise(40, 5, 2)
    groups = np.repeat([f"subject {k}" for k in range(20)], 2)
    tree = DecisionTreeRegressor(max_depth=2, random_state=0)
    for model, seen in (
        (GPClassifier(prior_mean=RandomForestClassifier(5, random_state=0)), y),
        (GPRegressor(prior_mean=tree), rng.normal(size=40)),
        (GPRobustRegressor(prior_mean=tree), rng.normal(size=40)),
        (GPPoissonRegressor(prior_mean=tree), rng.poisson(3.0, 40)),
    ):
        model.set_params(optimize=False, random_state=0)
        named = model.fit(X, seen, groups=groups).prior_mean_.at(X)
        assert (named != model.fit(X, seen).prior_mean_.at(X)).any()
        with sklearn.config_context(enable_metadata_routing=True):
            model.set_fit_request(groups=True)
        assert model.get_metadata_routing().fit.requests["groups"] is True
        weights = np.ones(40)
        weights[:2] = 0.0
        again = model.fit(X, seen, sample_weight=weights, groups=groups).prior_mean_.at(X)
        alone = model.fit(X[2:], seen[2:], groups=groups[2:]).prior_mean_.at(X)
        # Means of one number are found to 1e-6.
        np.testing.assert_allclose(again, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.arange(39), r"shape \(40,\), a label for each row of X; got \(39,\)"),
        ([None] + ["a"] * 39, "missing labels"),
        ([np.nan] + [1.0] * 39, "missing labels"),
        (["a", 1] * 20, "of one type"),
        (["one"] * 40, "two rows of each class"),
    ],
)
def test_groups_that_are_none(groups, words):
    X, y, _ = noise(40, 6, 2)
    model = GPClassifier(prior_mean=RandomForestClassifier(5, random_state=0), optimize=False)
    given = groups if isinstance(groups, np.ndarray) else np.array(groups, dtype=object)
    refuses(words, model.fit, X, y, groups=given)
