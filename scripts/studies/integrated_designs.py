"""Designs of hyper-parameters compared: effective draws an evaluation, and errors of predictions.

    python -m scripts.studies integrated_designs --data DIRECTORY --kept designs.jsonl

The truth of a problem is a long chain, or for two parameters a fine grid. "slice" samples one
coordinate after the other, in the coordinates in which the mode has unit curvature.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from typing import Any

import numpy as np

from qpruntime import GPClassifier, GPRegressor, Integrate
from qpruntime.learning.hyper_integration import integrate as designs
from qpruntime.learning.hyper_integration.nuts import Chain
from scripts.benchmarks.data.paper import load
from scripts.benchmarks.data.protocol import Task
from scripts.records import RESULTS, Records
from scripts.reports.integrated import designs as table
from scripts.studies.folds import Fold, start_kernel

ONE_THREAD = True
OPTIONS = {"data": {}, "kept": {"default": RESULTS / "integrated_designs.jsonl"}, "report": {}}
#: Sets, and whether every feature has a length-scale of its own.
PROBLEMS = (
    ("crabs", False),
    ("ionosphere", False),
    ("normal noise", False),
    ("normal noise", True),
    ("crabs", True),
    ("glass", True),
)
WAYS: dict[str, Any] = {
    "truth": Integrate("nuts", n=600),
    "grid": Integrate("grid"),
    "composite": Integrate("composite"),
    "importance": Integrate("importance", n=64),
    "importance, 256": Integrate("importance", n=256),
    "nuts": Integrate("nuts", n=64),
    "slice": Integrate("nuts", n=64),
}


def main(options: Namespace) -> None:
    """Fit what is missing, and print the table."""
    kept = Records(options.kept, "problem way")
    if not options.report:
        for name, ard in PROBLEMS:
            problem = f"{name}, by feature" if ard else name
            X, y, new, model = _model(name, ard, options.data)
            truth: Any = kept.records.get((problem, "truth"), {}).get("said")
            for way, how in WAYS.items():
                if (problem, way) in kept or (way == "grid" and ard):
                    continue
                if way == "composite" and X.shape[1] > 7:
                    continue
                record = _fitted(way, model.set_params(hyperparameters=how), X, y, new)
                if way == "truth":
                    truth = record["said"]
                else:
                    gap = np.array(record.pop("said")) - np.array(truth)
                    record["error"] = float(np.sqrt(np.mean(gap**2)))
                kept.keep((problem, way), record)
    print(table(list(kept.records.values())))


def _model(name: str, ard: bool, directory: Any) -> tuple[Any, Any, Any, Any]:
    """Rows, new rows and the model of a problem."""
    if name == "normal noise":
        rng = np.random.default_rng(0)
        X = rng.uniform(-2.0, 2.0, (60, 4))
        y = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.4 * rng.standard_normal(60)
        kernel = start_kernel(4, ard)
        own = GPRegressor(kernel, method="ep", random_state=0)
        return X[:40], y[:40], X[40:], own
    fold = Fold(Task(name, "integrated", 0, 0), *load(name, directory))
    kernel = start_kernel(fold.X.shape[1], ard)
    return fold.X, fold.y, fold.X_test, GPClassifier(kernel, method="ep", random_state=0)


def _fitted(way: str, model: Any, X: Any, y: Any, new: Any) -> dict[str, Any]:
    plain, begun = designs.nuts, time.process_time()
    if way == "slice":
        designs.nuts = _slices  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(action="ignore"):
            model.fit(X, y)
    finally:
        designs.nuts = plain
    one = model.integrated_
    regression = isinstance(model, GPRegressor)
    said = model.predict_quantiles(new, 0.9) if regression else model.predict_proba(new)[:, 1]
    return {
        "parameters": len(one.names),
        "rows": len(X),
        "evaluations": one.evaluations,
        "effective": round(one.effective, 1),
        "k": None if np.isnan(one.pareto_k) else round(one.pareto_k, 2),
        "nodes": len(one.weights),
        "cpu": round(time.process_time() - begun, 1),
        "said": [round(float(s), 6) for s in said],
    }


def _slices(slope: Any, z: Any, n: int, warm: int, rng: Any, step: float = 2.0) -> Any:
    """A chain by slices of one coordinate after the other (Neal 2003), in place of `nuts`."""
    z, kept = z.copy(), []
    value = slope(z)[0]
    for _ in range(warm + n):
        for k in range(z.size):
            level = value - rng.exponential()
            low = z[k] - step * rng.uniform()
            high = low + step

            def at(x: float, k: int = k) -> float:
                other = z.copy()
                other[k] = x
                found = slope(other)
                return -np.inf if found is None else float(found[0])

            while at(low) > level:
                low -= step
            while at(high) > level:
                high += step
            while True:
                x = rng.uniform(low, high)
                own = at(x)
                if own > level:
                    break
                low, high = (x, high) if x < z[k] else (low, x)
            z[k], value = x, own
        kept.append(z.copy())
    return Chain(np.array(kept[warm:]), 0, step)
