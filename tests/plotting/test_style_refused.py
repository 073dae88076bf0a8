"""What is refused when something is drawn: with words, and without a figure left behind."""

import sys

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression

from qpruntime import GPClassifier, InputError, TableError
from qpruntime.bayesopt import Optimizer
from qpruntime.plotting import (
    BoundaryDisplay,
    CalibrationDisplay,
    ForecastDisplay,
    FunctionDisplay,
    ProgressDisplay,
    RatioDisplay,
)
from tests.tools.cases import every_case, refuses


@every_case(
    ("options", "words"),
    [
        ({"feature": 2}, "X has 2 columns: there is no feature 2"),
        ({"feature": "age"}, "X has no column 'age'"),
        ({"feature": 0.5}, "feature must be a whole number"),
        ({"at": [1.0]}, r"at must have shape \(2,\)"),
        ({"at": [1.0, np.nan]}, r"at\[1\] is nan"),
        ({"quantity": "rate"}, "quantity='rate' needs an estimator with predict_count"),
        ({"quantity": "mean"}, r"quantity must be one of \('latent'"),
        ({"level": 1.0}, "level must be below 1, got 1: 0.9 is"),
        ({"level": 0.0}, "level must be positive"),
        ({"limits": (2.0, 1.0)}, "limits must be a pair low < high"),
        ({"limits": (1.0,)}, r"limits must have shape \(2,\)"),
        ({"grid": 1}, "grid must be a whole number of at least 2"),
        ({"exposure": 2.0}, "exposure is for counts"),
        ({"ax": np.array([1, 2])}, "ax must be one Axes of matplotlib"),
    ],
)
def test_functions(labels, closed, options, words):
    refuses(words, FunctionDisplay.from_estimator, *labels, **options)
    assert closed() == []


@every_case(
    ("options", "words"),
    [
        ({"features": (0, 0)}, "features must be two columns"),
        ({"features": (0,)}, "features must be two columns"),
        ({"features": 1}, "features must be two columns, got 1"),
        ({"limits": ((0, 1),)}, "limits must be two pairs"),
        ({"limits": 3.0}, "limits must be two pairs"),
        ({"level": "wide"}, "level must be"),
        ({"show": "variance"}, "show must be one of"),
    ],
)
def test_boundaries(labels, closed, options, words):
    refuses(words, BoundaryDisplay.from_estimator, *labels, **options)
    assert closed() == []


def test_rows_of_other_shapes(labels, line, closed):
    model, X, y = labels
    with pytest.raises(InputError, match=r"y must have shape \(40,\) like X, got \(39,\)"):
        FunctionDisplay.from_estimator(model, X, y[1:])
    refuses(r"one column is X\[:, None\]", FunctionDisplay.from_estimator, model, X[:, 0], y)
    with pytest.raises(InputError, match="a map takes two features, X has one column"):
        BoundaryDisplay.from_estimator(line[0], line[1], line[2])
    refuses("a series has one column, X has 2", ForecastDisplay.from_estimator, model, X, y)
    with pytest.raises(InputError, match=r"later must be two arrays \(X, y\), got 3"):
        ForecastDisplay.from_estimator(*line, later=3)
    with pytest.raises(InputError, match=r"y must have shape \(30,\) like X, got \(3,\)"):
        ForecastDisplay.from_estimator(*line, later=(line[1], line[2][:3]))
    refuses("until must be finite and above", ForecastDisplay.from_estimator, *line, until=0.0)
    assert closed() == []


def test_models_that_cannot_be_drawn(labels, closed):
    model, X, y = labels
    with pytest.raises(InputError, match="has no intervals to draw: fit GPClassifier"):
        FunctionDisplay.from_estimator(LinearRegression(), X, np.arange(40.0))
    several = np.arange(40) % 3
    three = GPClassifier(optimize=False).fit(X, several)
    with pytest.raises(InputError, match="bands are drawn of two classes, the model has 3"):
        FunctionDisplay.from_estimator(three, X, several)
    refuses("two classes is needed", BoundaryDisplay.from_estimator, three, X, several)
    with pytest.raises(NotFittedError):
        FunctionDisplay.from_estimator(GPClassifier(), X, y)
    with pytest.raises(InputError, match='show="width" takes an estimator with predict_interval'):
        BoundaryDisplay.from_estimator(LogisticRegression().fit(X, y), X, y, show="width")
    refuses("of 3 classes name one", CalibrationDisplay.from_estimator, three, X, several)
    with pytest.raises(InputError, match="positive='left' is not among the classes"):
        CalibrationDisplay.from_estimator(model, X, y, positive="left")
    with pytest.raises(InputError, match="a fitted classifier with predict_proba is needed"):
        CalibrationDisplay.from_estimator(LinearRegression(), X, y)
    assert closed() == []


@every_case(
    ("y", "p", "options", "words"),
    [
        ([0, 1], [0.5], {}, r"y must have shape \(1,\)"),
        ([0, 1], [0.5, 1.5], {}, "probabilities must be from 0 to 1, got 1.5"),
        ([0, 2], [0.5, 0.5], {}, "y must be 0 or 1"),
        ([], [], {}, "N at least 1"),
        ([0, 1], [0.5, np.nan], {}, r"probability\[1\] is nan"),
        ([0, 1], [0.5, 0.5], {"n_bins": 0}, "n_bins must be a whole number of at least 1"),
        ([0, 1], [0.5, 0.5], {"strategy": "equal"}, "strategy must be one of"),
    ],
)
def test_predictions(closed, y, p, options, words):
    refuses(words, CalibrationDisplay.from_predictions, y, p, **options)
    assert closed() == []


def test_tables_and_optimisers(closed):
    refuses("no table 'no-such'", RatioDisplay.from_table, "no-such", error=TableError)
    refuses("labels must be -1 or", RatioDisplay.from_table, "probit-compact", 3)
    with pytest.raises(InputError, match="mu_range must be a pair low < high"):
        RatioDisplay.from_table("probit-compact", mu_range=(1.0, 1.0))
    refuses("optimizer must be an Optimizer, got 3", ProgressDisplay.from_optimizer, 3)
    with pytest.raises(InputError, match="tell one evaluation first"):
        ProgressDisplay.from_optimizer(Optimizer([(0.0, 1.0)], random_state=0))
    assert closed() == []


def test_without_matplotlib(line, monkeypatch):
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"run pip install '\.\[plot\]' in a checkout"):
        FunctionDisplay.from_estimator(*line, grid=5)
