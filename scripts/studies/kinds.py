"""Kinds of y beside the models that people use for them, on sets that packages ship, held out.

    python -m scripts.studies kinds --kept tables/results/kinds.jsonl
    python -m scripts.studies kinds --kept tables/results/kinds.jsonl --report
    python -m scripts.studies kinds --sets "engel (positive)" "randhie (counts)"

Needs lifelines, scikit-survival, statsmodels, mord and gpboost. Five folds of at most 600 rows
each; raw features, standardised for peers alone. Times: concordance of medians, and mean log
density of events, or log probability of being censored so late. Levels, shares of counts and
positive numbers: mean log probability or density.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime import GPOrdinal, GPRegressor
from scripts.records import RESULTS, Records
from scripts.reports.kinds import kinds as table
from scripts.studies import kinds_models as models
from scripts.studies.held_out import fill, parts

OPTIONS = {
    "kept": {"default": RESULTS / "kinds.jsonl"},
    "report": {},
    "sets": {"default": None, "help": "only these"},
}
_ROWS = 600


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, "set model fold")
    for name, (load, judges) in () if options.report else SETS.items():
        if not options.sets or name in options.sets:
            X, y = load()
            fill(kept, name, parts(X, y), judges, {"rows": len(X)})
    print(table(kept.records.values()))


def _some(X: Any, y: Any) -> tuple[Any, Any]:
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    return np.asarray(X, dtype=float)[rows], np.asarray(y, dtype=float)[rows]


def _rossi() -> tuple[Any, Any]:
    from lifelines.datasets import load_rossi

    frame = load_rossi()
    return _some(frame.drop(columns=["week", "arrest"]), frame[["week", "arrest"]])


def _gbsg() -> tuple[Any, Any]:
    from lifelines.datasets import load_gbsg2

    frame = load_gbsg2()
    own = frame.drop(columns=["time", "cens"])
    own = own.assign(
        horTh=own.horTh == "yes", menostat=own.menostat == "Post", tgrade=own.tgrade.str.len()
    )
    return _some(own, frame[["time", "cens"]])


def _lung() -> tuple[Any, Any]:
    from lifelines.datasets import load_lung

    frame = load_lung().drop(columns=["inst", "meal.cal"]).dropna()
    return _some(frame.drop(columns=["time", "status"]), frame[["time", "status"]])


def _veterans() -> tuple[Any, Any]:
    import pandas
    from sksurv.datasets import load_veterans_lung_cancer

    X, y = load_veterans_lung_cancer()
    X = pandas.get_dummies(X, drop_first=True)
    return _some(X, np.column_stack([y["Survival_in_days"], y["Status"]]))


def _anes() -> tuple[Any, Any]:
    from statsmodels.datasets import anes96

    frame = anes96.load_pandas().data
    return _some(frame[["logpopul", "selfLR", "age", "educ", "income"]], frame["PID"])


def randhie() -> tuple[Any, Any]:
    """Visits to a doctor."""
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    return _some(frame.drop(columns=["mdvis"]), frame["mdvis"])


def _engel() -> tuple[Any, Any]:
    from statsmodels.datasets import engel

    frame = engel.load_pandas().data
    return _some(frame[["income"]], frame["foodexp"])


_BOTH = "GPSurvival, Weibull, linear plus Matérn kernel"
_TIMES = {
    "GPSurvival, Weibull": models.survival("weibull"),
    "GPSurvival, log-logistic": models.survival("log-logistic"),
    "lifelines WeibullAFTFitter": models.lifelines("WeibullAFTFitter"),
    "lifelines LogLogisticAFTFitter": models.lifelines("LogLogisticAFTFitter"),
    "lifelines CoxPHFitter": models.lifelines("CoxPHFitter"),
    "scikit-survival RandomSurvivalForest": models.forest,
}
SETS: dict[str, tuple[Callable[[], tuple[Any, Any]], dict[str, models.Judge]]] = {
    "veterans (times)": (_veterans, _TIMES),
    "lung (times)": (_lung, {**_TIMES, _BOTH: models.linear(True)}),
    "rossi (times)": (
        _rossi,
        {
            **_TIMES,
            "GPSurvival, Weibull, linear kernel": models.linear(False),
            _BOTH: models.linear(True),
        },
    ),
    "gbsg2 (times)": (_gbsg, {**_TIMES, _BOTH: models.linear(True)}),
    "anes96 (7 levels)": (
        _anes,
        {
            "GPOrdinal": models.plain(GPOrdinal()),
            "mord LogisticAT": models.mord,
            "GPOrdinal, linear plus Matérn, priors": models.smooth_and_line(GPOrdinal()),
        },
    ),
    "randhie (counts)": (
        randhie,
        {
            "GPRegressor, zero-inflated": models.plain(GPRegressor(likelihood="zero-inflated")),
            "GPRegressor, negative-binomial": models.plain(
                GPRegressor(likelihood="negative-binomial")
            ),
            "statsmodels ZeroInflatedNegativeBinomialP": models.inflated,
            "GPRegressor, hurdle": models.plain(GPRegressor(likelihood="hurdle")),
            "statsmodels HurdleCountModel, negbin": models.hurdle,
            "gpboost GPModel, negative binomial": models.gpboost("negative_binomial"),
            "GPRegressor, negative-binomial, linear plus Matérn, priors": models.smooth_and_line(
                GPRegressor(likelihood="negative-binomial")
            ),
        },
    ),
    "engel (positive)": (
        _engel,
        {
            "GPRegressor, gamma": models.plain(GPRegressor(likelihood="gamma")),
            "statsmodels GLM Gamma": models.glm,
            "gpboost GPModel, gamma": models.gpboost("gamma"),
            "GPRegressor, gamma, linear plus Matérn, priors": models.smooth_and_line(
                GPRegressor(likelihood="gamma")
            ),
        },
    ),
}
