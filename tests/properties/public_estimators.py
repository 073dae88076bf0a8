"""The public estimators, each with small data: add a name here to try all properties on it."""

from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

from qpruntime import (
    GPClassifier,
    GPOrdinal,
    GPPoissonRegressor,
    GPPreference,
    GPRegressor,
    GPRobustRegressor,
    GPSurvival,
)
from qpruntime.effects import EffectsModel, Fixed, Groups
from qpruntime.forecasting import GPForecaster

__all__ = ["CASES", "ELSEWHERE", "Case", "Data"]


@dataclass(frozen=True)
class Data:
    """Arguments of `fit`, and the features at which to predict.

    `rows` are arguments with one entry for each observation, `rest` all others. Features are a
    frame wherever they are. Its numbers are multiples of 1/8, which single precision and integers
    (after multiplication by 8) hold exactly.
    """

    rows: dict
    new: pd.DataFrame
    rest: dict = field(default_factory=dict)

    def __len__(self):
        return len(next(iter(self.rows.values())))

    @property
    def X(self):
        return self.arguments()["X"]

    def arguments(self):
        return self.rows | self.rest

    def take(self, rows):
        taken = {
            name: value.iloc[rows].reset_index(drop=True) if hasattr(value, "iloc") else value[rows]
            for name, value in self.rows.items()
        }
        return replace(self, rows=taken)

    def given(self, **changed):
        """Return the data with some arguments replaced, or added to those of observations."""
        rest = {name: changed.pop(name) for name in list(changed) if name in self.rest}
        return replace(self, rows=self.rows | changed, rest=self.rest | rest)

    def on_features(self, change):
        """Return the data with features changed, both those of the fit and the new ones."""
        return replace(self.given(X=change(self.X)), new=change(self.new))


def _distribution(model, X):
    return np.column_stack([model.predict(X), model.predict_quantiles(X)])


def _reverse_columns(found):
    return found[:, ::-1]


def _same(found):
    return found


@dataclass(frozen=True)
class Case:
    """One estimator, how it is made, its data, and which properties it does not have."""

    name: str
    make: Any  # returns an estimator that is not fitted
    data: Any  # returns its data
    predict: Any  # numbers of a fitted model at new features, one row for each
    target: str = "y"  # argument of `fit` that holds observations
    renamed: Any = None  # pairs of data with other labels, and how predictions become those before
    shifts: tuple = ()  # origins of observations, beside units: (0,) for positive ones, without any
    missing: str = "refused"  # or "left out": observations that are missing
    gaps: bool = True  # whether features may be missing; else they are refused
    #: What a fit to observations that are all equal does, by their value: "refused", or how far
    #: expectations at the features of the fit may be from it, which a prior may pull away.
    alike: dict = field(default_factory=dict)
    doubled: float = 1e-9  # how far a weight of 2 may be from the row twice, as `rtol`
    lacks: dict = field(default_factory=dict)  # properties that do not apply, with reasons
    broken: dict = field(default_factory=dict)  # properties that fail, with what is wrong
    rtol: float = 1e-9  # between fits that should agree: solutions of the same tolerance

    def fit(self, data):
        return self.make().fit(**data.arguments())

    def numbers(self, data):
        return self.predict(self.fit(data), data.new)


# --- Data: two features in eighths, and observations of every kind from one smooth function.

ROWS = 32


def _features(rows, seed):
    X = np.random.default_rng(seed).normal(size=(rows, 2)) * [1.0, 2.0]
    return pd.DataFrame(np.round(8.0 * X) / 8.0, columns=["a", "b"])


@cache
def _plain():
    X = _features(ROWS, 0)
    noise = np.random.default_rng(1).normal(size=ROWS)
    return X, np.sin(X["a"].to_numpy()) + 0.3 * X["b"].to_numpy() + 0.3 * noise, _features(5, 2)


def _observed(observe):
    X, f, new = _plain()
    return Data({"X": X, "y": observe(f)}, new)


def _survival():
    X, f, new = _plain()
    return Data({"X": X, "y": np.exp(f), "event": np.arange(ROWS) % 4 != 0}, new)


def _comparisons():
    items, _, new = _plain()
    items = items[:8]
    rng = np.random.default_rng(3)
    pairs = np.array([rng.choice(8, 2, replace=False) for _ in range(ROWS)])
    gain = np.diff(-items["a"].to_numpy()[pairs], axis=1)[:, 0] + rng.normal(size=ROWS)
    return Data({"pairs": pairs, "scores": (gain > 0.0).astype(float)}, new, {"X": items})


def _grouped(observe):
    X, f, new = _plain()
    groups = np.arange(ROWS) % 4
    y = observe(f + np.array([0.6, -0.5, 0.1, -0.4])[groups])
    return Data({"X": X.assign(g=groups), "y": y}, new.assign(g=np.arange(5) % 4))


def _series(observe):
    X, f, new = _plain()
    return Data({"y": observe(f), "X": X, "index": np.arange(ROWS)}, new)


def _counts(f):
    return np.random.default_rng(4).poisson(np.exp(0.5 + 0.7 * f))


# --- Labels of another name.


def _relabelled(data, words):
    y = data.rows["y"]
    return data.given(y=np.array(words)[np.searchsorted(np.unique(y), y)])


def _renamed_classes(data):
    words = ["ant", "bee", "cat"][: np.unique(data.rows["y"]).size]
    return [
        (_relabelled(data, words), _same),
        (_relabelled(data, words[::-1]), _reverse_columns),
        (data.given(y=-7 * data.rows["y"]), _reverse_columns),
    ]


def _renamed_items(data):
    order = np.random.default_rng(5).permutation(len(data.X))
    items = data.X.iloc[order].reset_index(drop=True)
    pairs = np.argsort(order)[data.rows["pairs"]]
    swapped = data.given(pairs=data.rows["pairs"][:, ::-1], scores=1.0 - data.rows["scores"])
    return [(data.given(X=items, pairs=pairs), _same), (swapped, _same)]


def _renamed_groups(data):
    def named(names):
        return data.on_features(lambda X: X.assign(g=np.array(names)[X["g"]]))

    return [(named(["d", "b", "a", "c"]), _same), (named([50, 10, 40, -20]), _same)]


# --- The table.

_OPTIONS = {"optimize": False, "tol": 1e-11, "max_sweeps": 400}
_NO_LABELS = {"labels": "observations are numbers, not labels"}
_BY_NAME = {"arrays": "terms name their columns"}
_NO_UNIT = {"unit of y": "observations are labels or counts, which have no unit"}
_NO_WEIGHTS = {
    "weights": "fit takes no weights: a step is observed once",
    "weight 0": "fit takes no weights: a step is observed once",
}
#: A rate that 32 zeros leave plausible is about three events in them, 3 / 32.
_COUNTS_ALIKE = {0: 0.1, 1: 0.2}
#: Searches that round differently end within their own tolerance of the maximum.
_LEARNT = 1e-6
#: EP approximates the square of a likelihood by one site and two equal likelihoods by two, which
#: differ by EP's own error where the likelihood is not Gaussian: 2e-4 to 4e-3 here. Weights that
#: are ignored differ by 5e-2 at least.
_TWO_SITES = 8e-3

_LABELS = {
    "predict": lambda model, X: model.predict_proba(X),
    "renamed": _renamed_classes,
    "alike": {0: "refused", 1: "refused"},
}
_GROUPS = {"predict": _distribution, "renamed": _renamed_groups, "gaps": False, "rtol": _LEARNT}
_SERIES = {
    "predict": lambda model, X: np.column_stack(
        [model.predict(len(X), X), model.predict_quantiles(len(X), X=X)]
    ),
    **{"missing": "left out", "gaps": False, "rtol": _LEARNT},
}
_REALS = {"predict": _distribution, "shifts": (0.0, 1e6), "alike": {0: 1e-12, 3.5: 1e-9}}


def _effects(family):
    terms = [Fixed("a"), Fixed("b"), Groups("g")]
    return EffectsModel(terms, family, integrate="mode", correction=None)


def _forecaster(family):
    return GPForecaster(
        (), trend="level", noise=False, family=family, integrate="mode", cycle=False,
        drift=False, outliers=False,
    )  # fmt: skip


_three = partial(_observed, lambda f: np.digitize(f, [-0.5, 0.5]))
_real = partial(_observed, lambda f: f)
CASES = [
    Case(
        "classifier", lambda: GPClassifier(**_OPTIONS),
        partial(_observed, lambda f: (f > 0.0).astype(int)),
        **_LABELS, doubled=_TWO_SITES, lacks=_NO_UNIT,
    ),
    Case(
        "classifier-one-vs-rest", lambda: GPClassifier(**_OPTIONS), _three,
        **_LABELS, doubled=_TWO_SITES, lacks=_NO_UNIT,
    ),
    Case(
        "classifier-joint", lambda: GPClassifier(multi_class="joint", **_OPTIONS), _three,
        **_LABELS,
        lacks=_NO_UNIT | {"weights": "joint classes take weights of 0 and 1 alone, and say so"},
    ),
    Case(
        "regressor-gaussian", lambda: GPRegressor(**_OPTIONS), _real, **_REALS, lacks=_NO_LABELS
    ),
    Case(
        "regressor-gamma", lambda: GPRegressor(likelihood="gamma", **_OPTIONS),
        partial(_observed, np.exp), _distribution, shifts=(0.0,),
        alike={0: "refused", 3.5: 0.2}, doubled=_TWO_SITES,
        lacks=_NO_LABELS,
    ),
    Case(
        "robust", lambda: GPRobustRegressor(**_OPTIONS), _real,
        **_REALS, doubled=_TWO_SITES, lacks=_NO_LABELS,
    ),
    Case(
        "poisson", lambda: GPPoissonRegressor(**_OPTIONS), partial(_observed, _counts),
        lambda m, X: np.column_stack([m.predict(X), m.predict_log_pmf(X, np.full(len(X), 2))]),
        alike=_COUNTS_ALIKE, doubled=_TWO_SITES, lacks=_NO_LABELS | _NO_UNIT,
    ),
    Case(
        "ordinal", lambda: GPOrdinal(**_OPTIONS), _three,
        **_LABELS, doubled=_TWO_SITES, lacks=_NO_UNIT,
    ),
    Case(
        "survival", lambda: GPSurvival(**_OPTIONS), _survival,
        _distribution, shifts=(0.0,), alike={0: "refused", 3.5: 1.0}, doubled=_TWO_SITES,
        lacks=_NO_LABELS,
    ),
    Case(
        "preference", lambda: GPPreference(**_OPTIONS), _comparisons,
        lambda model, X: np.column_stack(model.utility(X)),
        target="scores", renamed=_renamed_items, doubled=_TWO_SITES, gaps=False,
        lacks=_NO_UNIT | {"all equal": "scores that are all equal still say which items won"},
    ),
    Case(
        "effects-gaussian", lambda: _effects("gaussian"), partial(_grouped, lambda f: f),
        **_GROUPS, shifts=(0.0, 1e6), alike={0: 1e-9, 3.5: 1e-6}, lacks=_BY_NAME,
    ),
    Case(
        "effects-poisson", lambda: _effects("poisson"), partial(_grouped, _counts),
        **_GROUPS, alike=_COUNTS_ALIKE, lacks=_BY_NAME | _NO_UNIT,
    ),
    Case(
        "forecaster-gaussian", lambda: _forecaster("gaussian"), partial(_series, lambda f: f),
        **_SERIES, shifts=(0.0, 1e6), alike={0: 1e-9, 3.5: 1e-6}, lacks=_NO_LABELS | _NO_WEIGHTS,
    ),
    Case(
        "forecaster-poisson", lambda: _forecaster("poisson"), partial(_series, _counts),
        **_SERIES, alike=_COUNTS_ALIKE, lacks=_NO_LABELS | _NO_UNIT | _NO_WEIGHTS,
    ),
]  # fmt: skip

#: Public estimators without properties here, and why.
ELSEWHERE = {
    "GPPanelForecaster": "a panel fits a GPForecaster to each series, and has tests of its own",
    "DeepGPClassifier": "needs an extra; its fit is by stochastic gradients",
    "DeepGPRegressor": "needs an extra; its fit is by stochastic gradients",
}
