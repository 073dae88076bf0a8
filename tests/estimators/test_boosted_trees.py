"""Boosted trees as arrays, against scikit-learn's own predictions."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

import qpruntime
from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor
from qpruntime._sealed_file import DamagedFile
from qpruntime.estimators.boosted_trees import BoostedTrees, CodedColumns, as_arrays
from tests.estimators.test_prior_mean_selection import FEW, thresholds
from tests.tools.cases import every_case, refuses


def rows(n=600):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    f = X[:, 0] * X[:, 1]
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, f, rng


def models():
    X, f, rng = rows()
    classes, regressor = HistGradientBoostingClassifier, HistGradientBoostingRegressor
    return (
        (classes(max_iter=30), X, f > 0.0),
        (classes(max_iter=30), X, np.digitize(f, [-0.5, 0.5])),
        (classes(max_iter=3, max_leaf_nodes=200, min_samples_leaf=1), X, f > 0.0),
        (regressor(loss="poisson", max_iter=30), X, rng.poisson(np.exp(0.3 * f))),
        (regressor(loss="absolute_error", max_iter=30), X, 1e6 + f),
        (regressor(loss="squared_error", max_iter=30), X, f),
        (classes(max_iter=30, min_samples_leaf=600), X, f > 0.0),  # leaves alone
    )


def test_predictions_have_the_bits_of_scikit_learn():
    for model, X, y in models():
        trees = as_arrays(model.fit(X, y))
        assert isinstance(trees, BoostedTrees)
        new = np.concatenate([X, np.full((1, 4), np.inf), np.full((1, 4), np.nan)])[::-1]
        for each in (trees, copy.deepcopy(trees), pickle.loads(pickle.dumps(trees))):
            if trees.classes_ is None:
                np.testing.assert_array_equal(each.predict(new), model.predict(new))
            else:
                np.testing.assert_array_equal(each.predict_proba(new), model.predict_proba(new))


def test_arrays_that_would_be_walked_without_end_are_refused():
    model, X, y = models()[0]
    trees = as_arrays(model.fit(X, y))
    assert trees.value.size > 100
    ends = {
        "roots": trees.roots + trees.value.size,
        "children": trees.children + trees.value.size,
        "feature": trees.feature + 4,
        "threshold": trees.threshold[1:],
        "value": trees.value.astype(int),
    }
    back = trees.children.copy()
    back[0, 1] = -1
    for name, array in [*ends.items(), ("children", back)]:
        refuses("no fit has made", replace, trees, error=DamagedFile, **{name: array})
    refuses("trees of 4 columns, and 3", trees.predict_proba, X[:, :3], error=DamagedFile)
    # A node that leads back ends the walk, as a leaf does.
    loop = trees.children.copy()
    loop[3] = [0, 1]
    assert np.isfinite(replace(trees, children=loop).predict_proba(X)).all()


@pytest.mark.filterwarnings("ignore:the evidence was not maximised")
@every_case(
    "model, observed",
    [
        (GPClassifier, lambda f, rng: np.digitize(f, [-1.0, 1.0])),
        (GPRobustRegressor, lambda f, rng: 10.0 * f + rng.standard_normal(f.size)),
        (GPPoissonRegressor, lambda f, rng: rng.poisson(np.exp(0.6 * f + 1.0))),
    ],
)
def test_models_with_boosting_are_saved(model, observed, tmp_path):
    X, f, rng = thresholds(400)
    # Levels of a category, which trees see as one column.
    X = np.column_stack([X, np.digitize(X[:, [1]], [0.3, 0.7]) == np.arange(3)])
    model = model(**FEW).fit(X, observed(f, rng))
    assert [trees.n_features_in_ for trees in model.prior_mean_.estimators] == [6] * 5
    model.save(tmp_path / "model")
    again = qpruntime.load(tmp_path / "model")
    assert isinstance(again.prior_mean_.estimators[0], BoostedTrees)
    assert not isinstance(model.prior_mean_.estimators[0], BoostedTrees)
    predict = "predict_proba" if isinstance(model, GPClassifier) else "predict"
    np.testing.assert_array_equal(getattr(again, predict)(X), getattr(model, predict)(X))
    np.testing.assert_array_equal(again.prior_mean_.spread(X), model.prior_mean_.spread(X))


def test_other_models_stay_as_they_are():
    X, f, _ = rows(200)
    levels = np.column_stack([np.digitize(X[:, :1], [0.0]), X[:, 1:]])
    regressor = HistGradientBoostingRegressor
    for model in (
        regressor(loss="gamma", max_iter=2).fit(X, np.exp(f)),
        regressor(max_iter=2, categorical_features=[0]).fit(levels, levels[:, 0]),
        LogisticRegression().fit(np.nan_to_num(X), f > 0.0),
    ):
        assert as_arrays(model) is model
    later = regressor(max_iter=2).fit(X, f)
    assert isinstance(as_arrays(later), BoostedTrees)
    del later._predictors
    assert as_arrays(later) is later


def test_levels_that_exclude_each_other_become_one_column():
    rng = np.random.default_rng(1)
    levels = rng.integers(0, 4, 500)
    one_hot = (levels[:, None] == np.arange(4)).astype(float)
    others = rng.normal(size=(500, 2))
    flags = (rng.random((500, 3)) < 0.5).astype(float)
    X = np.column_stack([others[:, :1], one_hot, flags, others[:, 1:], one_hot[:, 1:]])
    columns = CodedColumns.of(X)
    np.testing.assert_array_equal(columns.first, [1, 9])
    np.testing.assert_array_equal(columns.end, [5, 12])
    expected = np.column_stack([others[:, :1], flags, others[:, 1:], levels + 1.0, levels])
    np.testing.assert_array_equal(columns(X), expected)
    odd = np.tile(X[levels == 2][:1], (3, 1))
    odd[0, 1], odd[1, 1], odd[2, 1:5] = 1.0, np.nan, 0.0
    np.testing.assert_array_equal(columns(odd)[:, -2], [1.0, np.nan, 0.0])
    # Flags that exclude each other by chance or not at all stay.
    for share in (0.5, 0.004):
        flags = (np.random.default_rng(2).random((500, 30)) < share).astype(float)
        columns = CodedColumns.of(flags)
        assert columns.first.size == 0
        assert columns(flags) is flags
