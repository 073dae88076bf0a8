"""Means of the latent function from other models, with groups."""

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from scipy.special import logit, ndtr
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

from qpruntime import (
    GPClassifier,
    GPPoissonRegressor,
    GPRegressor,
    GPRobustRegressor,
    infer,
)
from qpruntime.estimators.classifier import coupling_of
from qpruntime.estimators.joint_classifier import exponents
from qpruntime.estimators.prior_mean import (
    CrossFitted,
    OfClasses,
    OfNumbers,
    OfRates,
    Target,
    _folds,
    cross_fitted,
)
from qpruntime.estimators.prior_mean_selection import (
    boosted_classes,
    boosted_numbers,
    boosted_rates,
)
from qpruntime.learning.fit import fit_processes
from qpruntime.learning.inputs import RowGroups
from qpruntime.learning.settings import generator
from qpruntime.likelihoods import get
from tests.tools.cases import every_case, refuses

KERNEL = ConstantKernel(0.7) * RBF(1.3)


def rows(n=90, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.8 * X[:, 1], rng


def seed_of(random_state):
    """The seed of the folds of a model of this random_state."""
    return int(copy.deepcopy(generator(random_state)).integers(2**31))


def fit_folds(model, X, target, likelihood, seen, offset=0.0, seed=0, more=None):
    """Cross-fit a model for one process of these observations, with the target's weights."""
    of_process = [(get(likelihood), seen)]
    weights = target.weights if likelihood != "poisson-exp" else None
    return cross_fitted(model, X, target, of_process, weights, None, offset, seed, more)


@every_case("method", ["ep", "qp"])
@every_case("inducing", [None, "rows"])
def test_the_posterior_is_that_of_the_prior_mean(method, inducing):
    X, f, rng = rows()
    y = f + rng.standard_normal(len(f)) > 0.0
    signs, new = np.where(y, 1.0, -1.0), X[:7] + 0.1
    given, kernel = LogisticRegression(), 0.1 * RBF(0.7)
    options = {} if inducing is None else {"inducing": X}
    model = GPClassifier(kernel, method=method, prior_mean=given, random_state=4, **options)
    model.set_params(optimize=False).fit(X, y)
    target = Target(y.astype(int), None, OfClasses(2, False), True, boosted_classes)
    mean = model.prior_mean_
    values = mean.of(fit_folds(given, X, target, "probit", signs, seed=seed_of(4))[1])
    power = {} if inducing is None else {"power": 0.5}
    post = infer(kernel(X), signs, "probit", method, mean=values[:, 0], **power)
    found = post.predict(kernel(new, X), kernel.diag(new), mean=mean.at(new)[:, 0])
    # What is not known of the mean comes on top.
    found = found[0], found[1] + mean.spread(new)[:, 0]
    assert (mean.spread(new) > 0.0).all()
    for one, other in zip(model.latent(new), found, strict=True):
        # The jitter on k(Z, Z) is 1e-8 of the variance.
        np.testing.assert_allclose(one, other, atol=1e-6 if inducing is None else 1e-5)
    assert np.abs(mean.at(new)).max() > 0.3
    assert not hasattr(given, "coef_")


def test_the_spread_is_the_variance_of_the_mean():
    """The jackknife of a mean of numbers: their variance over their number, on average."""
    ratios = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        y = rng.standard_normal(100)
        folds = [np.delete(y, np.arange(k, 100, 5)) for k in range(5)]
        models = tuple(DummyRegressor().fit(fold[:, None], fold) for fold in folds)
        two = np.array([2.0])
        mean = CrossFitted(models, two, np.zeros(1), OfNumbers(0.0, 1.0))
        spread = mean.spread(np.zeros((1, 1)))[0, 0]
        means = np.array([fold.mean() for fold in folds])
        assert spread == pytest.approx(4.0 * 0.8 * ((means - means.mean()) ** 2).sum(), rel=1e-12)
        ratios.append(spread / 4.0 * 100.0)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.25)


def test_intervals_hold_what_is_not_known_of_the_mean():
    X, f, rng = rows(200, 12)
    y = f + 0.5 * rng.standard_normal(200) > 0.0
    model = GPClassifier(0.1 * RBF(1.0), optimize=False, prior_mean=GaussianNB(), random_state=0)
    new = X[:20] + 0.05
    low, high = model.fit(X, y).predict_interval(new).T
    mean, variance = model.latent(new)
    spread = model.prior_mean_.spread(new)[:, 0]
    assert (variance > spread).all()
    reach = 1.6448536269514722 * np.sqrt(variance)
    np.testing.assert_allclose(low, ndtr(mean - reach), rtol=1e-9)
    np.testing.assert_allclose(high, ndtr(mean + reach), rtol=1e-9)
    # Probabilities are calibrated by the slope, and leave it out.
    p = ndtr(mean / np.sqrt(1.0 + variance - spread))
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], p, rtol=1e-9)


class Score(ClassifierMixin, BaseEstimator):
    """Its decision function is the first column, fitted or not."""

    def fit(self, X, y, sample_weight=None):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X[:, 0]


class Rate(BaseEstimator):
    """Predicts the exponential of the first column."""

    def fit(self, X, y, sample_weight=None):
        return self

    def predict(self, X):
        return np.exp(X[:, 0])


def test_slopes_are_those_of_logistic_and_poisson_regression():
    X, _, rng = rows(1500, 3)
    y = (1.7 * X[:, 0] - 0.4 + rng.logistic(size=1500) > 0.0).astype(int)
    weights = rng.uniform(0.5, 2.0, 1500)
    target = Target(y, weights, OfClasses(2, True), True, boosted_classes)
    mean, scores = fit_folds(Score(), X, target, "logistic", 2.0 * y - 1.0)
    other = LogisticRegression(C=np.inf, tol=1e-10).fit(X[:, :1], y, weights)
    assert mean.slope[0] == pytest.approx(other.coef_[0, 0], rel=3e-4)
    assert mean.shift[0] == pytest.approx(other.intercept_[0], abs=5e-4)
    np.testing.assert_allclose(mean.of(scores)[:, 0], mean.at(X)[:, 0], rtol=1e-12)
    X, _, rng = rows(1500, 4)
    exposure = rng.uniform(0.2, 30.0, 1500)
    y = rng.poisson(exposure * np.exp(0.6 * X[:, 0] + 0.3)).astype(float)
    target = Target(y / exposure, exposure, OfRates("exp", 1e-3), False, boosted_rates)
    mean, _ = fit_folds(Rate(), X, target, "poisson-exp", y, np.log(exposure))
    other = PoissonRegressor(alpha=0.0, tol=1e-10, max_iter=1000)
    other.fit(X[:, :1], y / exposure, sample_weight=exposure)
    assert mean.slope[0] == pytest.approx(other.coef_[0], rel=3e-4)
    assert mean.shift[0] == pytest.approx(other.intercept_, abs=5e-4)


def test_counts_with_exposures_and_numbers():
    X, f, rng = rows(70, 5)
    exposure = rng.uniform(0.5, 20.0, 70)
    y = rng.poisson(exposure * np.exp(0.5 * f))
    for link in ("exp", "square"):
        options = {"link": link, "dispersion": np.inf, "optimize": False, "random_state": 1}
        model = GPPoissonRegressor(0.05 * RBF(1.0), prior_mean=PoissonRegressor(), **options)
        rate = model.fit(X, y, exposure=exposure).predict(X)
        # The process is nearly off: what is left is the regression, with its slope.
        other = PoissonRegressor().fit(X, y / exposure, sample_weight=exposure).predict(X)
        assert np.abs(np.log(rate / other)).mean() < 0.35
        count = model.predict(X, exposure=exposure)
        np.testing.assert_allclose(count, exposure * rate, rtol=1e-9)
    numbers = 1e4 + 300.0 * (f + 0.1 * rng.standard_t(3, size=70))
    options = {"optimize": False, "random_state": 1}
    model = GPRobustRegressor(1e-6 * RBF(1.0), prior_mean=LinearRegression(), **options)
    found = model.fit(X, numbers).predict(X)
    line = LinearRegression().fit(X, numbers).predict(X)
    # The line has a slope, which the evidence finds beside a process; the five differ a little.
    slope, shift = np.polyfit(line, found, 1)
    assert 0.5 < slope < 1.1
    assert np.abs(found - slope * line - shift).max() < 0.1 * numbers.std()


@every_case("likelihood", ["logistic", "heaviside"])
def test_other_likelihoods_take_the_mean(likelihood):
    X, f, _ = rows(60, 13)
    y = f > 0.3
    options = {"likelihood": likelihood, "optimize": False, "random_state": 0}
    model = GPClassifier(0.3 * RBF(1.0), prior_mean=GaussianNB(), **options).fit(X, y)
    assert model.prior_mean_.slope[0] > 0.0
    assert model.score(X, y) > 0.85


def test_what_learns_rows_by_heart_is_not_believed():
    X, f, rng = rows(300, 6)
    y = f + 1.5 * rng.standard_normal(300) > 0.0
    heart = KNeighborsClassifier(1)
    model = GPClassifier(prior_mean=heart, random_state=0).fit(X[:200], y[:200])
    assert heart.fit(X[:200], y[:200]).score(X[:200], y[:200]) == 1.0
    p = model.predict_proba(X[200:])[:, 1]
    loss = -np.log(np.where(y[200:], p, 1.0 - p)).mean()
    plain = GPClassifier(random_state=0).fit(X[:200], y[:200]).predict_proba(X[200:])[:, 1]
    assert loss < -np.log(np.where(y[200:], plain, 1.0 - plain)).mean() + 0.05


def steps(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 12))
    some = sum((X[:, k] > 0.5) * 2.0 for k in range(4)) - 4.0
    return X, some + 2.0 * (X[:, 4] > 0.8) + 0.5 * rng.standard_normal(n) > 0.0


def test_boosting_is_taken_where_it_pays_and_left_where_it_does_not():
    X, y = steps(800, 1)
    told = GPClassifier(inducing="judged", random_state=0).fit(X[:400], y[:400])
    assert told.prior_mean_ is not None
    assert len(told.prior_mean_.estimators) == 5
    plain = GPClassifier(inducing="judged", prior_mean=None, random_state=0).fit(X[:400], y[:400])
    assert plain.prior_mean_ is None
    losses = [
        -np.log(np.where(y[400:], p, 1.0 - p)).mean()
        for p in (one.predict_proba(X[400:])[:, 1] for one in (told, plain))
    ]
    assert losses[0] < losses[1] - 0.05
    assert told.score(X[400:], y[400:]) > 0.8
    X, f, rng = rows(260, 8)
    y = f + 0.3 * rng.standard_normal(260) > 0.0
    told = GPClassifier(inducing="judged", random_state=0).fit(X, y)
    assert told.prior_mean_ is None
    plain = GPClassifier(inducing="judged", prior_mean=None, random_state=0).fit(X, y)
    np.testing.assert_array_equal(told.predict_proba(X[:9]), plain.predict_proba(X[:9]))


@pytest.mark.slow
@every_case("thresholds", [True, False])
def test_auto_trains_all_rows_once(thresholds, monkeypatch):
    n, calls = 700, []

    def counted(processes, *arguments, **options):
        calls.append(len(processes[0].y))
        return fit_processes(processes, *arguments, **options)

    monkeypatch.setattr("qpruntime.estimators.base.fit_processes", counted)
    X, y = steps(n, 2)
    if not thresholds:
        y = np.sin(6.0 * X[:, 0]) + 2.0 * (X[:, 1] - X[:, 2]) > 0.0
    model = GPClassifier(inducing="judged", random_state=0).fit(X, y)
    assert (model.prior_mean_ is not None) == thresholds
    assert calls.count(n) == 1
    assert sorted(calls)[-2] == 500


def test_several_classes_pipelines_weights_and_pickles():
    X, f, rng = rows(150, 9)
    y = np.digitize(f + 0.3 * rng.standard_normal(150), [-0.7, 0.7])
    own = make_pipeline(StandardScaler(), LogisticRegression())
    model = GPClassifier(prior_mean=own, random_state=0, kernel=0.1 * RBF(1.0), optimize=False)
    model.fit(X, y, sample_weight=rng.uniform(0.5, 1.5, 150))
    assert model.prior_mean_.slope.shape == (3,)
    assert model.score(X, y) > 0.6
    twin = clone(model).fit(X, y, sample_weight=np.ones(150))
    again = clone(model).fit(X, y)
    np.testing.assert_allclose(twin.predict_proba(X), again.predict_proba(X), rtol=1e-9)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_proba(X), model.predict_proba(X))
    # Whether rows are predicted one by one or at once.
    single = np.concatenate([model.predict_proba(X[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(single, model.predict_proba(X[:5]), rtol=1e-9)


def test_decision_functions_and_rows_in_parts():
    X, f, rng = rows(200, 10)
    y = f + 0.5 * rng.standard_normal(200) > 0.0
    model = GPClassifier(0.3 * RBF(1.0), optimize=False, prior_mean=LinearSVC(), inducing=20)
    model.set_params(random_state=0).partial_fit(X[:100], y[:100])
    before = model.prior_mean_
    model.partial_fit(X[100:], y[100:])
    assert model.prior_mean_ is before
    # All rows at once, under the model's prior mean.
    values, kernel = model.prior_mean_.at(X)[:, 0], model.kernel_
    post = infer(kernel(X), np.where(y, 1.0, -1.0), "probit", "qp", mean=values)
    whole = post.predict(kernel(X[:9], X), kernel.diag(X[:9]), mean=values[:9])[0]
    np.testing.assert_allclose(model.latent(X[:9])[0], whole, atol=0.15)


class Fails(BaseEstimator):
    def fit(self, X, y):
        raise RuntimeError("no such thing")


def test_other_refusals():
    X, f, rng = rows(40)
    model = GPClassifier(KERNEL, optimize=False).fit(X, f > 0.0)
    before = dict(vars(model))
    with pytest.raises(RuntimeError, match="no such thing"):
        model.set_params(prior_mean=Fails()).fit(X, f > 0.0)
    after = vars(model)
    assert [k for k in before | after if before.get(k) is not after.get(k)] == ["prior_mean"]
    model.set_params(prior_mean=KNeighborsClassifier(2))
    weights = rng.uniform(0.5, 1.0, 40)
    words = "KNeighborsClassifier takes no sample_weight"
    refuses(words, model.fit, X, f > 0.0, sample_weight=weights)
    refuses("needs 20 rows or more to be cross-fitted, got 19", model.fit, X[:19], f[:19] > 0.0)
    rare = np.arange(40) == 3
    refuses("a class with one", model.set_params(prior_mean=GaussianNB()).fit, X, rare)
    counts = GPPoissonRegressor(mean=0.3, prior_mean=DummyRegressor())
    refuses("give one of the two", counts.fit, X, np.ones(40))
    assert GPClassifier(inducing="judged").fit(X, rare).prior_mean_ is None
    for given in ("boosting", LogisticRegression, 3.0):
        model.set_params(prior_mean=given)
        refuses("an estimator of scikit-learn", model.fit, X, f > 0.0)
    model.set_params(prior_mean=LinearRegression())
    refuses("must have predict_proba or decision_function", model.fit, X, f > 0.0)


def test_scores_are_latent_values():
    X, f, _ = rows(60)
    y = (f > 0.0).astype(int)
    boosted = HistGradientBoostingClassifier(max_iter=5).fit(X, y)
    p = boosted.predict_proba(X)[:, 1]
    np.testing.assert_allclose(ndtr(OfClasses(2, False)(boosted, X)[:, 0]), p, rtol=1e-9)
    np.testing.assert_allclose(OfClasses(2, True)(boosted, X)[:, 0], logit(p), rtol=1e-9)
    # A class that a fold has not seen.
    some = LogisticRegression().fit(X, 2 * y)
    scores = OfClasses(3, False)(some, X)
    assert scores.shape == (60, 3)
    assert (scores[:, 1] < -4.0).all()
    line = LinearRegression().fit(X, f)
    found = OfNumbers(2.0, 4.0)(line, X)[:, 0]
    np.testing.assert_allclose(found, (line.predict(X) - 2.0) / 4.0, rtol=1e-12)
    assert boosted_numbers(3).random_state == 3


@every_case("rows, leaves", [(200, 31), (50_000, 31), (100_000, 62), (322_346, 199), (10**6, 255)])
def test_trees_have_leaves_in_proportion_to_many_rows(rows, leaves):
    target = Target(np.zeros(rows), None, OfClasses(2, False), True, boosted_classes)
    trees = target.boosting(7)
    assert (trees.max_leaf_nodes, trees.random_state, trees.early_stopping) == (leaves, 7, True)
    numbers = replace(target, default=boosted_numbers).boosting(0)
    assert (numbers.max_leaf_nodes, numbers.loss) == (leaves, "absolute_error")


def test_trees_of_folds_that_pass_go_on():
    """Trees of two leaves need more than the first 100 steps here."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(2000, 2))
    y = np.sin(40.0 * X[:, 0]) + X[:, 1] + 0.05 * rng.standard_normal(2000)
    target = Target(y, None, OfNumbers(0.0, 1.0), False, boosted_numbers)
    trees = target.boosting(0).set_params(max_leaf_nodes=2)
    told = []
    given = target, "gaussian", y, 0.0, 0
    mean, _ = fit_folds(trees, X, *given, lambda *of_folds: told.append(of_folds))
    short, scores = fit_folds(trees, X, *given)
    held_out, first = told[0]
    np.testing.assert_array_equal(first, scores[held_out])
    assert [rows.size for rows, _ in told] == [400, 800, 1200, 1600, 2000]
    rows, last = told[-1]
    np.testing.assert_array_equal(rows, np.arange(2000))
    # Trees of earlier folds have gone on, those of this one not yet.
    is_last = (last == scores)[:, 0]
    assert is_last.sum() == 400
    assert not is_last[held_out].any()
    assert [model.n_iter_ for model in short.estimators] == [100] * 5
    assert all(100 < model.n_iter_ <= 600 for model in mean.estimators)
    # Without rows that could judge, trees end where they were.
    alone = replace(given[0], groups=RowGroups(X, np.arange(2000) // 1000))
    mean, _ = fit_folds(trees, X, alone, *given[1:], lambda *_: None)
    assert [model.n_iter_ for model in mean.estimators] == [100] * 2


@every_case("rows, folds", [(50_000, 5), (50_001, 3)])
def test_many_rows_are_cross_fitted_in_three_folds(rows, folds):
    """Every row is predicted by the mean of the numbers of the other folds."""
    X, y = np.arange(float(rows))[:, None], np.repeat([-1.0, 1.0], [rows // 5, rows - rows // 5])
    target = Target(y, None, OfNumbers(0.0, 1.0), False, boosted_numbers)
    mean, scores = fit_folds(DummyRegressor(), X, target, "gaussian", y, seed=1)
    assert len(mean.estimators) == folds
    parts = KFold(folds, shuffle=True, random_state=1).split(X)
    for fold, (train, left_out) in zip(mean.estimators, parts, strict=True):
        np.testing.assert_allclose(fold.constant_, y[train].mean(), rtol=1e-12)
        np.testing.assert_allclose(scores[left_out, 0], y[train].mean(), rtol=1e-12)


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
    likelihood, seen = ("probit", 2.0 * y - 1.0) if classes else ("laplace", y * 1.0)
    start = boosted_classes if classes else boosted_numbers
    groups = RowGroups(X, codes if named else None)
    target = Target(y if classes else y * 1.0, None, score, classes, start, groups)
    if classes:
        tree, middle = RandomForestClassifier(1, bootstrap=False, random_state=0), 0.0
    else:
        tree, middle = DecisionTreeRegressor(random_state=0), 0.5
    _mean, scores = fit_folds(tree, X, target, likelihood, seen)
    by_heart = score(clone(tree).fit(X, target.y), X)[:, 0] > middle
    assert (by_heart == (y > 0)).all()
    right = np.mean((scores[:, 0] > middle) == (y > 0))
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


def test_boosting_stops_where_other_groups_say():
    """Copies among the rows that judge would let it go on to its last iteration."""
    X, y, _ = noise(250, 2)
    X, y = np.tile(X, (4, 1)), np.tile(y, 4)
    target = Target(y, None, OfClasses(2, False), True, boosted_classes)
    mean, _ = fit_folds(boosted_classes(0), X, target, "probit", 2.0 * y - 1.0)
    assert max(model.n_iter_ for model in mean.estimators) < 40
    leaking = HistGradientBoostingClassifier(early_stopping=True, random_state=0).fit(X, y)
    assert leaking.n_iter_ == 100


def test_copies_are_no_further_rows_that_judge():
    """Rows four times have the coupling and the exponent of rows once."""
    rng = np.random.default_rng(3)
    p = 1.0 / (1.0 + np.exp(-2.0 * rng.normal(size=(120, 4)) + 1.0))
    shares = (p / (1.0 - p) ** 0.5).cumsum(axis=1)
    codes = (rng.random((120, 1)) * shares[:, -1:] > shares).sum(axis=1)

    class Groups(RowGroups):
        def left_out(self, posterior, rows=None):
            return posterior.log_p if rows is None else posterior.log_p[rows]

    def coupling(copies):
        true = codes[:, None] == np.arange(4)
        columns = np.log(np.where(true, p, 1.0 - p)).T
        said = [SimpleNamespace(log_p=np.tile(one, copies)) for one in columns]
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


@every_case(
    ("groups", "words"),
    [
        (np.arange(39), r"shape \(40,\), a label for each row of X; got \(39,\)"),
        (np.array([None] + ["a"] * 39), "missing labels"),
        (np.array([np.nan] + [1.0] * 39, dtype=object), "missing labels"),
        (np.array(["a", 1] * 20, dtype=object), "of one type"),
        (np.array(["one"] * 40, dtype=object), "two rows of each class"),
    ],
)
def test_groups_that_are_none(groups, words):
    X, y, _ = noise(40, 6, 2)
    model = GPClassifier(prior_mean=RandomForestClassifier(5, random_state=0), optimize=False)
    refuses(words, model.fit, X, y, groups=groups)
