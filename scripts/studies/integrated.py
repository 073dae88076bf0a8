"""Hyper-parameters at their mode and integrated, on the sets of Table 1 and its folds.

    python -m scripts.studies integrated --data DIRECTORY --rounds 1
    python -m scripts.studies integrated --report

Every model of a fold has the same kernel, a variance times a squared exponential. "mode" is the
maximum of the evidence, "map" that under the prior of "integrate", so that the gain of the prior
and that of integrating are apart; "corrected", of two folds, weights nodes by the corrected
evidence. With `--ard` every feature has a length-scale of its own. Each finished fold is a line.
"""

import time
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from qpruntime import GPClassifier, GPPoissonRegressor, Integrate, Search
from scripts.benchmarks.data.paper import NAMES, load
from scripts.benchmarks.data.protocol import Task, folds
from scripts.records import RESULTS, Records
from scripts.reports.integrated import BINS, sets
from scripts.studies.folds import Fold, start_kernel

ONE_THREAD = True
OPTIONS = {
    "data": {},
    "sets": {"default": list(NAMES), "choices": NAMES},
    "rounds": {"default": 1, "help": "of 10 folds, and ten splits of Mining"},
    "kept": {"default": RESULTS / "integrated.jsonl"},
    "ard": {"action": "store_true", "help": "a length-scale for each feature"},
    "report": {},
}
#: Deviations of the logarithms in the prior of "integrate": of length-scales, of the rest.
_LENGTHS, _OTHERS = 1.5, 3.0
# Folds whose nodes are weighted by the corrected evidence too, which takes longest.
_CORRECTED = 2


def main(options: Namespace) -> None:
    """Fit what is missing, round by round, and print the table."""
    kept = Records(options.kept, Task)
    if not options.report:
        data = {name: load(name, options.data) for name in options.sets}
        # Fold by fold, so that a run that is stopped has as many of every set.
        for number in range(10 * options.rounds):
            for name, (X, y) in data.items():
                task = _task(name, number, options.ard)
                if task is not None and task not in kept:
                    kept.add(study(task, X, y))
    print(sets(kept.records.values()))


def _task(name: str, number: int, ard: bool) -> Task | None:
    """The fit of a number: one of ten folds of a round, of Mining a split."""
    block = "ard" if ard else "integrated"
    if name == "mining":
        return None if ard else Task(name, block, number, 0)
    return Task(name, block, *divmod(number, folds(name)))


def study(task: Task, X: Any, y: Any) -> dict[str, Any]:
    """All models of one fold."""
    fold = Fold(task, X, y)
    ard = task.block == "ard"
    own: dict[str, Any] = {}
    models: dict[str, dict[str, Any]] = {
        "mode": {},
        "map": {"optimize": Search(priors=_priors(fold.X, ard))},
        "integrate": {"hyperparameters": Integrate()},
    }
    if not ard and task.round + task.fold < _CORRECTED:
        models["corrected"] = {"hyperparameters": Integrate(evidence="corrected")}
    for name, options in models.items():
        begun = time.process_time()
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            own[name] = _fitted(fold, ard, options)
        own[name]["cpu"] = round(time.process_time() - begun, 2)
    return {**task._asdict(), "n_test": len(fold.y_test), "of": own}


def _priors(X: Any, ard: bool) -> dict[str, Any]:
    """The prior of "integrate", as users would write it down."""
    lengths: Any = ("log-normal", _middle(X), _LENGTHS)
    if not ard:
        return {"k1__constant_value": ("log-normal", 1.0, _OTHERS), "k2__length_scale": lengths}
    each = [_middle(column[:, None]) for column in X.T]
    # One prior of all features: their median.
    root = np.sqrt(np.isfinite(each).sum())
    lengths = ("log-normal", float(root * np.nanmedian(each)), _LENGTHS)
    return {"k1__constant_value": ("log-normal", 1.0, _OTHERS), "k2__length_scale": lengths}


def _middle(X: Any) -> float:
    apart = pdist(X)
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size else float("nan")


def _fitted(fold: Fold, ard: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Loss, errors and calibration of one model."""
    kernel = start_kernel(fold.X.shape[1], ard)
    if fold.counts:
        counts = GPPoissonRegressor(
            kernel, method="ep", mean=1.0, link="square", dispersion=np.inf, **options
        ).fit(fold.X, fold.y)
        logs = counts.predict_log_pmf(fold.X_test, fold.y_test.astype(int))
        low, high = counts.predict_quantiles(fold.X_test, [0.05, 0.95]).T
        inside = (low <= fold.y_test) & (fold.y_test <= high)
        found = {"loss": -float(logs.sum()), "covered": int(inside.sum())}
        return {**found, **_nodes(counts)}
    model = GPClassifier(kernel, method="ep", random_state=0, **options).fit(fold.X, fold.y)
    p = model.predict_log_proba(fold.X_test)
    hit = fold.y_test > 0.0
    logs = np.where(hit, p[:, 1], p[:, 0])
    share = np.exp(p[:, 1])
    bins = np.minimum((share * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, share - hit, BINS)
    wrong = int((model.predict(fold.X_test) != fold.y_test).sum())
    found = {"loss": -float(logs.sum()), "wrong": wrong, "gaps": [round(g, 4) for g in gaps]}
    return {**found, **_nodes(model)}


def _nodes(model: Any) -> dict[str, Any]:
    one = getattr(model, "integrated_", None)
    if one is None:
        return {}
    k = None if not np.isfinite(one.pareto_k) else round(one.pareto_k, 3)
    return {
        "design": one.design,
        "nodes": len(one.weights),
        "k": k,
        "effective": round(one.effective, 1),
        "evaluations": one.evaluations,
    }
