"""Measure fits by inducing points by size: seconds and memory of a fit, products of an evaluation.

    python -m scripts.benchmarks sparse_size --products
    python -m scripts.benchmarks sparse_size --rows 1000000 --inducing 200
    python -m scripts.benchmarks sparse_size --rows 10000000 --zarr FOLDER
    python -m scripts.benchmarks sparse_size --rows 1000000 --workers 1 2

An evaluation is gather, sweep and gradient, on one core; a product is one of (N, M) and (M, M) by
dgemm, in the same process and interleaved, so that ratios count on a busy machine too. Rows are
drawn as in `data.drawn.synthetic`, and times of fits are elapsed ones, on all cores. With --zarr
they are drawn once into that folder, and read from there as the fit goes: run it twice, for the
memory that is told has been taken at any time. --kept FILE keeps the records. --workers has passes
over all rows timed on clusters of this machine, to the same bits.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits

from qpruntime import GPClassifier
from qpruntime.execution.executors import Threads
from qpruntime.inference.sparse.data import Held
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.projection.projector import Projector
from scripts.benchmarks import sparse_workers
from scripts.benchmarks.data.drawn import Split, stored, synthetic
from scripts.benchmarks.timing import best, peak

# Rows of an evaluation, and of a product.
_ROWS, _BLOCK = 65_536, 4096
PARTS = ("gather", "sweep", "gradient", "evaluation")


def products(size: int, dtype: str, power: float, rounds: int = 5) -> tuple[float, ...]:
    """Medians of gather, sweep, gradient and all three, in products of (N, M) and (M, M)."""
    X, y = sparse_workers.drawn(_ROWS)
    kernel, Z = ConstantKernel(2.0) * RBF(np.full(5, 2.0)), X[:size].copy()
    rule = PowerProjector(Projector("probit", "ep"), power)
    engine = Engine(Held(X, y), rule, kernel, Z, dtype=dtype, executor=Threads(1))
    engine.sweep()
    engine.sweep()
    rng = np.random.default_rng(1)
    some, square = rng.standard_normal((_BLOCK, size)), rng.standard_normal((size, size))
    parts = (partial(engine.move, kernel, Z), engine.sweep, partial(engine.evaluate, 0))

    def multiply() -> None:
        for _ in range(_ROWS // _BLOCK):
            some @ square

    found = []
    with threadpool_limits(1):
        for _ in range(rounds):
            unit, *seconds = (best(call, 1, time.process_time) for call in (multiply, *parts))
            found.append([part / unit for part in (*seconds, sum(seconds))])
    return tuple(np.median(found, axis=0))


def fit(data: Split, size: int, method: str) -> dict[str, Any]:
    """Seconds, memory and negative log density of one fit of the default kernel."""
    warm = synthetic(400)
    GPClassifier(inducing=20, method=method, random_state=0).fit(warm.X, warm.y)
    before, rows = peak() / 2**20, data.X.shape[0]
    used, start = time.process_time(), time.perf_counter()
    model = GPClassifier(inducing=size, method=method, random_state=0, verbose=1)
    model.fit(data.X, data.y)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    chance = model.predict_proba(data.X_test)[:, 1]
    loss = -np.mean(np.log(np.where(data.y_test > 0, chance, 1.0 - chance)))
    found = {"rows": rows, "inducing": size, "method": method, "seconds": seconds, "cpu": used}
    found |= {"nll": float(loss), "before": before, "peak": peak() / 2**20}
    print(
        f"{rows} rows, M = {size}, {method}: {seconds:.1f} s, {used:.1f} s of CPU, test NLL "
        f"{loss:.4f}, {before:.0f} MB at most before and {found['peak']:.0f} MB after, "
        f"{model.posterior_.converged=}"
    )
    return found


OPTIONS = {
    "products": {"action": "store_true", "help": "of an evaluation"},
    "rows": {"default": []},
    "inducing": {},
    "method": {"default": "qp"},
    "zarr": {"type": Path, "metavar": "DIRECTORY", "help": "folder the rows are read from"},
    "workers": {
        "nargs": "+",
        "help": "sizes of local clusters: passes over --rows are timed, no fit",
    },
    "kept": {"help": "append what was measured of rows to this file"},
}


def main(options: Namespace) -> None:
    """Measure what is asked for."""
    found: list[dict[str, Any]] = []
    for size in (200, 500) if options.products else ():
        for dtype in ("float64", "float32"):
            row = dict(zip(PARTS, products(size, dtype, 0.5), strict=True))
            found.append({"inducing": size, "dtype": dtype, **row})
            print(f"M = {size}, {dtype}:", *(f"{k} {v:.2f}" for k, v in row.items()), flush=True)
    if options.workers:
        rows = (options.rows or [100_000])[0]
        found = sparse_workers.measured(options.workers, rows, options.inducing)
        print(sparse_workers.words(found))
    elif options.rows:
        found = []
        for rows in options.rows:
            data = stored(options.zarr, rows) if options.zarr else synthetic(rows)
            fitted = fit(data, options.inducing, options.method)
            found.append(fitted | {"zarr": options.zarr is not None})
    if options.kept:
        with options.kept.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
