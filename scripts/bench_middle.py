"""Defaults on tables of thousands of rows beside boosting, forests and linear models.

    python scripts/bench_middle.py                                # all sets: to a file of records
    python scripts/bench_middle.py --sets magic ring --rows 1000 4000 --seeds 0 1
    python scripts/bench_middle.py --report                       # the picture

Sets are those of `middle_sets`, models those of `middle_peers`. What is done is not done again:
ours until the code of qpruntime changes. Seconds are of one process's CPU. A seed cuts the rows,
and is that of the models. Of counts and numbers 90 % intervals and densities are kept as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance  # noqa: E402

import middle_intervals  # noqa: E402
import middle_report  # noqa: E402
import middle_sets  # noqa: E402
from bench_defaults import our_version  # noqa: E402
from middle_peers import LARGE, OURS, PEERS, PROCESSES, made  # noqa: E402
from records import Records  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "tables/results/bench_middle.jsonl"


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


def calibration_error(p: Any, y: Any, bins: int = 15) -> float:
    """Mean difference of probability and frequency in bins of equal width."""
    at = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(float(np.sum(p[at == k] - y[at == k]))) for k in range(bins)]
    return sum(gaps) / len(y)


def run(task: Task, data: middle_sets.Middle) -> dict[str, Any] | None:
    """Fit and judge one model; None if there is no such model."""
    model = made(task.model, data.kind, task.seed)
    if model is None:
        return None
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X, data.y)
        seconds, elapsed = time.process_time() - cpu, time.perf_counter() - wall
        loss, calibration = score(data.kind, model, data.X_new, data.y_new)
        said: dict[str, float | None] = {}
        if data.kind != "classes":
            said = middle_intervals.judged(task.model, model, data, task.seed)
    words = ""
    if task.model in OURS:
        words = f"{model.engine_}{', boosted mean' if model.prior_mean_ is not None else ''}"
    return {
        **task._asdict(), "kind": data.kind, "columns": data.X.shape[1], "n": len(data.y),
        "loss": loss, "calibration": calibration, "cpu": seconds, "elapsed": elapsed,
        "words": words, **said,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, or report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = [name for name in middle_sets.SETS if not name.endswith(("-all", "-5"))]
    parser.add_argument("--sets", nargs="+", default=chosen, choices=list(middle_sets.SETS))
    parser.add_argument("--rows", nargs="+", type=int, default=[4000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    models = [*OURS, *PEERS, *PROCESSES, *LARGE]
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    records = Records(options.records, Task)
    if options.report:
        return middle_report.write(list(records.records.values()), options.records.parent)
    for name in options.sets:
        for rows in options.rows:
            for seed in options.seeds:
                try:
                    data = middle_sets.load(name, rows, seed=seed)
                except middle_sets.Missing as error:
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


if __name__ == "__main__":
    sys.exit(main())
