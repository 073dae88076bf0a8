"""The default at 10^5 rows and more: seconds, memory, loss, and microseconds a prediction.

    python -m scripts.benchmarks scale --rows 100000 1000000  # each size in a process of its own
    python -m scripts.benchmarks scale --rows 1000000 --model lightgbm
    python -m scripts.reports pages                           # docs/bench-cost.md follows

Rows are drawn: twenty features, of which eight matter and four are sums of these. From a million
rows on they are a memory map in a folder for temporary files. The last record of a size counts.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from scripts.benchmarks.defaults import our_version
from scripts.benchmarks.peers.tuned import LARGE, made
from scripts.benchmarks.timing import Own, peak
from scripts.records import RESULTS, TOP

_AGAIN = [sys.executable, "-m", "scripts.benchmarks", "scale"]
# Rows to predict, and from how many rows on the others are on the disk.
_NEW, _MAPPED = 5000, 1_000_000


def drawn(n: int, folder: str) -> tuple[Any, Any, Any, Any]:
    """Return n rows and classes, and those to predict; drawing takes memory of another process."""
    if n >= _MAPPED:
        subprocess.run([*_AGAIN, "--draw", folder, "--rows", str(n)], check=True, cwd=TOP)
        X = np.load(Path(folder) / "X.npy", mmap_mode="r")
        y = np.load(Path(folder) / "y.npy")
    else:
        X, y = draw(n)
    return X[_NEW:], y[_NEW:], np.array(X[:_NEW]), y[:_NEW]


def draw(n: int) -> tuple[Any, Any]:
    """Return n rows and 5000 more, and their classes."""
    X, y = make_classification(
        n + _NEW, 20, n_informative=8, n_redundant=4, class_sep=0.7, flip_y=0.05,
        n_clusters_per_class=3, random_state=1,
    )  # fmt: skip
    order = np.random.default_rng(0).permutation(n + _NEW)
    return X[order], y[order]


def clocks() -> tuple[float, float]:
    """Seconds of CPU and of the wall."""
    return time.process_time(), time.perf_counter()


def one(n: int, name: str) -> dict[str, Any]:
    """Fit a model, on all cores if it can, and predict; kernels of ours have been compiled before.

    Of ours the first prediction is apart, and the memory that is its own.
    """
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        X, y, new, labels = drawn(n, folder)
        model = made(name, "classes", 0)
        if name == "lightgbm":
            model.model.set_params(n_jobs=cores)
        begun = clocks()
        with Own() as own:
            model.fit(X, y)
        cpu, wall = (b - a for a, b in zip(begun, clocks(), strict=True))
        held, calls = peak(), []
        for _ in range(2 if name == "default" else 1):
            before = time.process_time()
            p = model.predict_proba(new)
            calls.append((time.process_time() - before) / _NEW)
    loss = float(-np.log(p[np.arange(_NEW), labels]).mean())
    found = {"rows": n, "cores": cores, "cpu": cpu, "wall": wall, "bytes": held, "loss": loss}
    if name != "default":
        return {**found, "bytes": peak(), "model": name, "version": "peer", "later": calls[0]}
    return {
        **found, "version": our_version(), "own": own.most, "engine": model.engine_,
        "inducing": len(model.inducing_points_), "first": calls[0], "later": calls[1],
    }  # fmt: skip


OPTIONS = {
    "rows": {"default": [100_000, 300_000]},
    "model": {"choices": ("default", *LARGE), "default": "default"},
    "here": {"action": "store_true", "help": "in this process; prints one record"},
    "draw": {"type": Path, "help": "write rows to this folder, and nothing else"},
    "out": {"default": RESULTS / "scale.jsonl", "help": "where records go"},
}


def main(options: Namespace) -> None:
    """Measure sizes."""
    if options.draw:
        for name, values in zip("Xy", draw(options.rows[0]), strict=True):
            np.save(options.draw / f"{name}.npy", values)
        return
    if options.here:
        print(json.dumps(one(options.rows[0], options.model)))
        return
    for rows in options.rows:
        command = [*_AGAIN, "--here", "--rows", str(rows), "--model", options.model]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TOP)
        record = done.stdout.strip().splitlines()[-1]
        with options.out.open("a") as file:
            file.write(record + "\n")
        print(record, flush=True)
