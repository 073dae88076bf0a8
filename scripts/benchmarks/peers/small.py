"""What scikit-learn's models make of raw data, for ``benchmarks defaults``.

Linear models and Gaussian processes get standardised features, as their users are told to; trees
need none. Everything is at its default but for what stands here. Each function takes training
features, targets and exposures (or None) and test features, and returns predictions:
log probabilities (T, K); mean and log density's parameters (T,); or rates (T,).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Array = NDArray[Any]
#: Log probabilities, means or rates, and for numbers the standard deviation where there is one.
Prediction = tuple[Array, Array | None]
Peer = Callable[[Array, Array, Array | None, Array], Prediction]

_TREES = 300
_BOUNDS = (1e-5, 1e5)


def _scaled(model: BaseEstimator) -> Any:
    return make_pipeline(StandardScaler(), model)


def _starts(p: int) -> list[Any]:
    """Two first length-scales for standardised features: 1, and their distance."""
    return [
        ConstantKernel(1.0, _BOUNDS) * RBF(length, _BOUNDS)
        for length in dict.fromkeys((1.0, float(np.sqrt(p))))
    ]


def _classifier(model: Any, least: float = 1e-15) -> Peer:
    """Probabilities below `least` are raised to it before they are scaled to sum to 1."""

    def peer(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
        proba = np.clip(model.fit(X, y).predict_proba(X_test), least, None)
        return np.log(proba / proba.sum(axis=1, keepdims=True)), None

    return peer


def _gp_classifier(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
    """The better evidence of two starts, as it is for several classes together."""
    pipelines = [_scaled(GaussianProcessClassifier(k)).fit(X, y) for k in _starts(X.shape[1])]
    best = max(pipelines, key=lambda p: p[-1].log_marginal_likelihood_value_)
    return np.log(np.clip(best.predict_proba(X_test), 1e-15, None)), None


def _regressor(model: Any) -> Peer:
    def peer(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
        return model.fit(X, y).predict(X_test), None

    return peer


def _huber(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
    """In units of y's own spread, without which its optimiser stops early."""
    middle, unit = float(np.median(y)), float(np.std(y)) or 1.0
    model = _scaled(HuberRegressor(max_iter=2000)).fit(X, (y - middle) / unit)
    return middle + unit * model.predict(X_test), None


def _gp_regressor(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
    pipelines = [
        _scaled(GaussianProcessRegressor(k + WhiteKernel(0.1, _BOUNDS), normalize_y=True)).fit(X, y)
        for k in _starts(X.shape[1])
    ]
    best = max(pipelines, key=lambda p: p[-1].log_marginal_likelihood_value_)
    mean, std = best.predict(X_test, return_std=True)
    return mean, std


def _rate(model: Any, weight: str) -> Peer:
    """Counts by exposure, weighted with it: the same score equations as with an offset."""

    def peer(X: Array, y: Array, exposure: Array | None, X_test: Array) -> Prediction:
        looked = np.ones(len(y)) if exposure is None else exposure
        # In units of the mean, as penalties and tolerances know no units.
        unit = looked.mean()
        model.fit(X, y / looked * unit, **{weight: looked / unit})
        return model.predict(X_test) / unit, None

    return peer


def _poisson() -> Any:
    """A log-linear model, its penalty by 5-fold cross-validation; the default is far too strong."""
    search = GridSearchCV(
        PoissonRegressor(max_iter=1000),
        {"alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]},
        scoring="neg_mean_poisson_deviance",
    )
    return make_pipeline(StandardScaler(), search)


#: Constant predictions, to tell what there is to learn; not among those to beat.
BASELINE = "constant"

# Half a vote of the forest: no tree for a class is less than one, not impossible.
PEERS: dict[str, dict[str, Callable[[], Peer]]] = {
    "classes": {
        BASELINE: lambda: _classifier(DummyClassifier(strategy="prior")),
        "logistic": lambda: _classifier(_scaled(LogisticRegression(max_iter=5000))),
        "sklearn GP": lambda: _gp_classifier,
        "forest": lambda: _classifier(RandomForestClassifier(_TREES, random_state=0), 0.5 / _TREES),
        "boosting": lambda: _classifier(HistGradientBoostingClassifier(random_state=0)),
    },
    "numbers": {
        BASELINE: lambda: _regressor(DummyRegressor(strategy="median")),
        "ridge": lambda: _regressor(_scaled(RidgeCV(np.logspace(-4, 4, 17)))),
        "Huber": lambda: _huber,
        "sklearn GP": lambda: _gp_regressor,
        "forest": lambda: _regressor(RandomForestRegressor(_TREES, random_state=0)),
        "boosting": lambda: _regressor(HistGradientBoostingRegressor(random_state=0)),
    },
    "counts": {
        BASELINE: lambda: _rate(DummyRegressor(), "sample_weight"),
        "log-linear": lambda: _rate(_poisson(), "gridsearchcv__sample_weight"),
        "forest": lambda: _rate(
            RandomForestRegressor(_TREES, random_state=0, min_samples_leaf=3), "sample_weight"
        ),
        "boosting": lambda: _rate(
            HistGradientBoostingRegressor(loss="poisson", random_state=0), "sample_weight"
        ),
    },
}
