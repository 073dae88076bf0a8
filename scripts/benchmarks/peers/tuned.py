"""Models beside ours on tables of thousands of rows, tuned on the rows that they are fitted to.

Boosting is scikit-learn's and CatBoost's, where that is installed; forests are calibrated; linear
models are scaled and choose their penalty. For counts and numbers also GPBoost's Gaussian
processes, where these are installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import HuberRegressor, LogisticRegressionCV, PoissonRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor
from scripts.benchmarks.data.registry import KINDS
from scripts.benchmarks.peers.gpboost import Vecchia
from scripts.benchmarks.peers.svgp import SVGP
from scripts.benchmarks.timing import has

#: Boosting may be the prior mean of the default above 1500 rows.
OURS = ("default", "without boosting")
PEERS = ("boosting", "catboost", "forest", "linear")
PROCESSES = ("gpboost",)
#: Of all the rows of large tables only.
LARGE = ("lightgbm", "svgp")

_GRID = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [8, 31]}
_OWN = {"classes": GPClassifier, "counts": GPPoissonRegressor, "numbers": GPRobustRegressor}


def made(model: str, kind: str, seed: int) -> Any:
    """Return a model that is not fitted, None if there is none of this kind or it is missing."""
    if model in OURS:
        mean = None if model == "without boosting" else "auto"
        return _OWN[kind](random_state=seed, prior_mean=mean)
    make, library, kinds = _MAKERS[model]
    return make(kind, seed) if kind in kinds and has(library) else None


def _boosting(kind: str, seed: int) -> Any:
    options: dict[str, Any] = {"early_stopping": True, "random_state": seed, "max_iter": 500}
    if kind == "classes":
        model: Any = HistGradientBoostingClassifier(**options)
        return GridSearchCV(model, _GRID, cv=3, scoring="neg_log_loss")
    loss = "poisson" if kind == "counts" else "absolute_error"
    scoring = "neg_mean_poisson_deviance" if kind == "counts" else "neg_mean_absolute_error"
    model = HistGradientBoostingRegressor(loss=loss, **options)
    return GridSearchCV(model, _GRID, cv=3, scoring=scoring)


class _Stopped:
    """CatBoost or LightGBM that ends where a tenth of the rows says."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self._seed = model, seed

    def fit(self, X: Any, y: Any) -> _Stopped:
        """Fit to nine tenths of the rows."""
        order = np.random.default_rng(self._seed).permutation(len(y))
        judged, rest = order[: len(y) // 10], order[len(y) // 10 :]
        self.model.fit(X[rest], y[rest], eval_set=(X[judged], y[judged]))
        return self

    def predict(self, X: Any) -> Any:
        """What the model predicts."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes."""
        return self.model.predict_proba(X)


def _catboost(kind: str, seed: int) -> Any:
    from catboost import CatBoostClassifier, CatBoostRegressor

    options: dict[str, Any] = {
        "iterations": 2000,
        "random_seed": seed,
        "verbose": False,
        "thread_count": 1,
        "early_stopping_rounds": 50,
        "allow_writing_files": False,
    }
    if kind == "classes":
        return _Stopped(CatBoostClassifier(**options), seed)
    loss = "Poisson" if kind == "counts" else "MAE"
    model = CatBoostRegressor(loss_function=loss, **options)
    return _Stopped(_Counts(model) if kind == "counts" else model, seed)


def _lightgbm(kind: str, seed: int) -> Any:
    from lightgbm import LGBMClassifier

    options: dict[str, Any] = {"n_estimators": 2000, "early_stopping_round": 50, "n_jobs": 1}
    return _Stopped(LGBMClassifier(random_state=seed, verbose=-1, **options), seed)


class _Counts:
    """CatBoost's Poisson loss predicts logarithms of rates."""

    def __init__(self, model: Any) -> None:
        self._model, self.fit = model, model.fit

    def predict(self, X: Any) -> Any:
        return self._model.predict(X, prediction_type="Exponent")


def _forest(kind: str, seed: int) -> Any:
    options: dict[str, Any] = {"n_estimators": 200, "min_samples_leaf": 2, "random_state": seed}
    if kind == "classes":
        return CalibratedClassifierCV(RandomForestClassifier(**options), method="sigmoid", cv=5)
    return RandomForestRegressor(**options)


def _linear(kind: str, seed: int) -> Any:
    if kind == "classes":
        penalties = LogisticRegressionCV(
            Cs=np.logspace(-3, 2, 6).tolist(), cv=3, scoring="neg_log_loss", max_iter=500
        )
        return make_pipeline(StandardScaler(), penalties)
    if kind == "counts":
        model: Any = GridSearchCV(
            PoissonRegressor(max_iter=500),
            {"alpha": [1e-3, 1e-1, 1.0]},
            cv=3,
            scoring="neg_mean_poisson_deviance",
        )
        return make_pipeline(StandardScaler(), model)
    return make_pipeline(
        StandardScaler(), GridSearchCV(HuberRegressor(max_iter=500), {"alpha": [1e-3, 1.0]}, cv=3)
    )


_NUMERIC, _CLASSES = ("counts", "numbers"), ("classes",)
#: What makes a peer, the library that it needs, and its kinds.
_MAKERS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "boosting": (_boosting, "sklearn", KINDS),
    "catboost": (_catboost, "catboost", KINDS),
    "forest": (_forest, "sklearn", KINDS),
    "linear": (_linear, "sklearn", KINDS),
    "gpboost": (Vecchia, "gpboost", _NUMERIC),
    "lightgbm": (_lightgbm, "lightgbm", _CLASSES),
    "svgp": (lambda _, seed: SVGP(seed), "gpytorch", _CLASSES),
}
