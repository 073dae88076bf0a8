"""Defaults on tables of thousands of rows beside boosting, forests and linear models.

    python -m scripts.benchmarks middle                           # all sets: to a file of records
    python -m scripts.benchmarks middle --sets magic ring --rows 1000 4000 --seeds 2
    python -m scripts.benchmarks middle --report                  # tables of what is kept

Sets are those of `data.middle`, models those of `peers.tuned`. What is done is not done again:
ours until the code of qpruntime changes. Seconds are of one process's CPU. A seed cuts the rows,
and is that of the models. Of counts and numbers 90 % intervals and densities are kept as well.
"""

import sys
import time
import warnings
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance

from scripts.benchmarks import intervals
from scripts.benchmarks.data import middle as sets
from scripts.benchmarks.data.registry import DataError
from scripts.benchmarks.defaults import our_version
from scripts.benchmarks.metrics import calibration_error
from scripts.benchmarks.peers.tuned import LARGE, OURS, PEERS, PROCESSES, made
from scripts.command_line import Failure
from scripts.records import RESULTS, Records
from scripts.reports import middle as report

ONE_THREAD = True


class Task(NamedTuple):
    """One fit."""

    set: str
    rows: int
    seed: int
    model: str
    version: str


def score(kind: str, model: Any, X: Any, y: Any) -> tuple[float, float | None]:
    """Log loss, mean Poisson deviance or mean absolute error; of classes the calibration error."""
    if kind == "classes":
        p = model.predict_proba(X)
        return float(log_loss(y, p)), calibration_error(p[:, 1], y)
    found = model.predict(X)
    if kind == "counts":
        return float(mean_poisson_deviance(y, np.maximum(found, 1e-9))), None
    return float(mean_absolute_error(y, found)), None


def run(task: Task, data: sets.Middle) -> dict[str, Any] | None:
    """Fit and judge one model; None if there is no such model."""
    model = made(task.model, data.kind, task.seed)
    if model is None:
        return None
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(action="ignore"):
        model.fit(data.X, data.y)
        seconds, elapsed = time.process_time() - cpu, time.perf_counter() - wall
        loss, calibration = score(data.kind, model, data.X_new, data.y_new)
        said: dict[str, float | None] = {}
        if data.kind != "classes":
            said = intervals.judged(task.model, model, data, task.seed)
    words = ""
    if task.model in OURS:
        words = f"{model.engine_}{', boosting' if model.prior_mean_ is not None else ''}"
    return {
        **task._asdict(), "kind": data.kind, "columns": data.X.shape[1], "n": len(data.y),
        "loss": loss, "calibration": calibration, "cpu": seconds, "elapsed": elapsed,
        "words": words, **said,
    }  # fmt: skip


_MODELS = (*OURS, *PEERS, *PROCESSES, *LARGE)
OPTIONS = {
    "sets": {
        "choices": sets.names(),
        "default": [name for name in sets.names() if not name.endswith(("-all", "-5"))],
    },
    "rows": {"default": [4000]},
    "seeds": {"default": 1},
    "first": {},
    "models": {"choices": _MODELS, "default": _MODELS},
    "kept": {"default": RESULTS / "bench_middle.jsonl"},
    "report": {},
}


def main(options: Namespace) -> int:
    """Run what is missing, or report."""
    records = Records(options.kept, Task)
    if options.report:
        if not (rows := report.means(records.records.values())):
            raise Failure("no set has been fitted by all models")
        print(report.sets(rows), report.intervals(rows), sep="\n\n")
        return 0
    for name in options.sets:
        for rows in options.rows:
            for seed in range(options.first, options.first + options.seeds):
                try:
                    data = sets.load(name, rows, seed=seed)
                except DataError as error:
                    print(f"{name} is left out: {error}", file=sys.stderr)
                    continue
                for model in options.models:
                    # Intervals are later than the first records of peers.
                    peer = "peer" if data.kind == "classes" else "peer, intervals"
                    own = our_version() if model in OURS else peer
                    task = Task(name, rows, seed, model, own)
                    if task in records or (record := run(task, data)) is None:
                        continue
                    records.add(record)
                    print(
                        f"{name:10} {record['n']:6} {seed} {model:13} {record['loss']:.4f} "
                        f"{record['cpu']:6.1f} s {record['words']}",
                        flush=True,
                    )
    return 0
