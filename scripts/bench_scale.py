"""The default at 10^5 rows and more: seconds, memory, loss, and microseconds a prediction.

    python scripts/bench_scale.py --rows 100000 1000000   # each size in a process of its own
    python scripts/write_pages.py                         # docs/default-at-scale.md follows

Rows are drawn: twenty features, of which eight matter and four are sums of these. From a million
rows on they are a memory map in a folder for temporary files. The last record of a size counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

from bench_defaults import our_version
from qpruntime import GPClassifier

RECORDS = Path(__file__).resolve().parents[1] / "tables" / "results" / "scale.jsonl"
# Rows to predict, and from how many rows on the others are on the disk.
_NEW, _MAPPED = 5000, 1_000_000


def drawn(n: int, folder: str) -> tuple[Any, Any, Any, Any]:
    """Return n rows and classes, and those to predict; drawing takes memory of another process."""
    if n >= _MAPPED:
        subprocess.run([sys.executable, __file__, "--draw", folder, "--rows", str(n)], check=True)
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


def peak() -> float:
    """Bytes that this process has held at most."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def clocks() -> tuple[float, float]:
    """Seconds of CPU and of the wall."""
    return time.process_time(), time.perf_counter()


def one(n: int) -> dict[str, Any]:
    """Fit and predict; the kernels have been compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        X, y, new, labels = drawn(n, folder)
        begun = clocks()
        model = GPClassifier(random_state=0).fit(X, y)
        cpu, wall = (b - a for a, b in zip(begun, clocks(), strict=True))
        held = peak()
        calls = []
        for _ in range(2):
            before = time.process_time()
            p = model.predict_proba(new)
            calls.append((time.process_time() - before) / _NEW)
    loss = float(-np.log(p[np.arange(_NEW), labels]).mean())
    return {
        "rows": n, "version": our_version(), "cores": len(os.sched_getaffinity(0)), "cpu": cpu,
        "wall": wall, "bytes": held, "loss": loss, "inducing": len(model.inducing_points_),
        "engine": model.engine_, "first": calls[0], "later": calls[1],
    }  # fmt: skip


def kept() -> list[dict[str, Any]]:
    """The last record of every size."""
    lines = RECORDS.read_text().splitlines()
    found = {record["rows"]: record for record in map(json.loads, lines)}
    return [found[rows] for rows in sorted(found)]


def page() -> str:
    """The table of docs/default-at-scale.md."""
    heads = (
        "rows", "inducing points", "elapsed, two cores", "CPU", "memory at most", "log loss",
        "a prediction, first", "later",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for r in kept():
        rows = f"{r['rows']:,}".replace(",", " ") + ", mapped" * (r["rows"] >= _MAPPED)
        near = " and nearest rows" * (r["engine"] == "inducing+nearest")
        cells = (
            rows, f"{r['inducing']}{near}", f"{r['wall']:.0f} s", f"{r['cpu']:.0f} s",
            f"{r['bytes'] / 1e9:.2f} GB", f"{r['loss']:.4f}", f"{1e6 * r['first']:.0f} µs",
            f"{1e6 * r['later']:.0f} µs",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--here", action="store_true", help="in this process; prints one record")
    parser.add_argument("--draw", type=Path, help="write rows to this folder, and nothing else")
    options = parser.parse_args(arguments)
    if options.draw:
        for name, values in zip("Xy", draw(options.rows[0]), strict=True):
            np.save(options.draw / f"{name}.npy", values)
        return 0
    if options.here:
        print(json.dumps(one(options.rows[0])))
        return 0
    for rows in options.rows:
        command = [sys.executable, __file__, "--here", "--rows", str(rows)]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        record = line.strip().splitlines()[-1]
        with RECORDS.open("a") as file:
            file.write(record + "\n")
        print(record, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
