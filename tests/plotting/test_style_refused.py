"""What is refused when something is drawn: with words, and without a figure left behind."""

import sys

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression

from qpruntime import GPClassifier, TableError
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

BOUNDARY, CALIBRATION = BoundaryDisplay.from_estimator, CalibrationDisplay.from_estimator
FORECAST, FUNCTION = ForecastDisplay.from_estimator, FunctionDisplay.from_estimator


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
    refuses(words, FUNCTION, *labels, **options)
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
    refuses(words, BOUNDARY, *labels, **options)
    assert closed() == []


def test_rows_of_other_shapes(labels, line, closed):
    model, X, y = labels
    short, pair = r"y must have shape \(40,\) like X, got \(39,\)", (line[1], line[2][:3])
    refuses(short, FUNCTION, model, X, y[1:])
    refuses(r"one column is X\[:, None\]", FUNCTION, model, X[:, 0], y)
    refuses("a map takes two features, X has one column", BOUNDARY, *line)
    refuses("a series has one column, X has 2", FORECAST, model, X, y)
    refuses(r"later must be two arrays \(X, y\), got 3", FORECAST, *line, later=3)
    refuses(r"y must have shape \(30,\) like X, got \(3,\)", FORECAST, *line, later=pair)
    refuses("until must be finite and above", FORECAST, *line, until=0.0)
    assert closed() == []


def test_models_that_cannot_be_drawn(labels, closed):
    model, X, y = labels
    several, no_intervals = np.arange(40) % 3, LogisticRegression().fit(X, y)
    three, unfitted = GPClassifier(optimize=False).fit(X, several), GPClassifier()
    words = "has no intervals to draw: fit GPClassifier"
    refuses(words, FUNCTION, LinearRegression(), X, np.arange(40.0))
    refuses("bands are drawn of two classes, the model has 3", FUNCTION, three, X, several)
    refuses("two classes is needed", BOUNDARY, three, X, several)
    refuses("not fitted", FUNCTION, unfitted, X, y, error=NotFittedError)
    words = 'show="width" takes an estimator with predict_interval'
    refuses(words, BOUNDARY, no_intervals, X, y, show="width")
    refuses("of 3 classes name one", CALIBRATION, three, X, several)
    refuses("positive='left' is not among the classes", CALIBRATION, model, X, y, positive="left")
    words = "a fitted classifier with predict_proba is needed"
    refuses(words, CALIBRATION, LinearRegression(), X, y)
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
    table, untold = RatioDisplay.from_table, Optimizer([(0.0, 1.0)], random_state=0)
    refuses("no table 'no-such'", table, "no-such", error=TableError)
    refuses("labels must be -1 or", table, "probit-compact", 3)
    refuses("mu_range must be a pair low < high", table, "probit-compact", mu_range=(1.0, 1.0))
    refuses("optimizer must be an Optimizer, got 3", ProgressDisplay.from_optimizer, 3)
    refuses("tell one evaluation first", ProgressDisplay.from_optimizer, untold)
    assert closed() == []


def test_without_matplotlib(line, monkeypatch):
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    refuses(r"run pip install '\.\[plot\]' in a checkout", FUNCTION, *line, grid=5)
