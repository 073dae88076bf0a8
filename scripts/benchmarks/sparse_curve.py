"""What M buys, and from how many rows on inducing points are faster than the dense engine.

    python -m scripts.benchmarks sparse_curve --sets m         # synthetic labels, M = 25 ... 400
    python -m scripts.benchmarks sparse_curve --sets dense     # N = 1000 ... 4000, both engines
    python -m scripts.benchmarks sparse_curve --report         # tables/results/sparse_m.png

CPU seconds on one core. What is found is kept in tables/results/sparse_curve.jsonl; what is there
is left out unless --again. The tables of docs/rows-measured.md are made of it.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import numpy as np
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier
from scripts.benchmarks.data.drawn import LENGTHS, TEST, Split, latent, synthetic
from scripts.benchmarks.metrics import judge
from scripts.records import RESULTS, Records
from scripts.reports.figures import canvas

ONE_THREAD = True
ROWS, SIZES = 10_000, (25, 50, 100, 200, 400)
# Rows of the comparison with the dense engine, and inducing points there.
DENSE, POINTS = (1000, 2000, 4000), 100


def kernel(dims: int) -> Any:
    """As `bench_sparse` has it: variance 1, length-scales 2."""
    return ConstantKernel(1.0, (1e-4, 1e4)) * RBF(np.full(dims, 2.0), (1e-2, 1e3))


def fitted(data: Split, inducing: int | None) -> dict[str, Any]:
    """One fit: CPU seconds, evidence, and the test rows' negative log probability."""
    begun = time.process_time()
    model = GPClassifier(
        kernel(data.X.shape[1]), inducing=inducing, n_jobs=1, random_state=0, method="ep"
    ).fit(data.X, data.y)
    spent = time.process_time() - begun
    nll, gap = judge(*model.latent(data.X_test), data.y_test)
    evidence = float(model.log_marginal_likelihood_value_)
    return {"seconds": spent, "evidence": evidence, "nll": nll, "calibration": gap}


def least(n: int) -> float:
    """Negative log probability under the function that the labels were drawn from."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + TEST, LENGTHS.size))
    rng.random(len(X))  # the order of `synthetic`: noise first
    f, y = latent(X, rng)[n:], synthetic(n).y_test
    return float(-np.mean(log_ndtr(y * f)))


def draw(kept: dict[Any, dict[str, Any]]) -> None:
    """Draw test rows and evidence against M, and seconds."""
    found = sorted((key.inducing, r) for key, r in kept.items() if key.what == "m")
    m = [size for size, _ in found]
    with canvas(RESULTS / "sparse_m.png", (8.0, 3.2), 110, (1, 2)) as (left, right):
        left.plot(m, [r["nll"] for _, r in found], "o-", color="C0")
        least = found[0][1]["least"]
        left.axhline(least, color="0.6", linestyle=":")
        left.annotate("the true function", (m[0], least), (0, 4), textcoords="offset points")
        words = "negative log probability, test rows"
        left.set(xlabel="inducing points M", ylabel=words, xscale="log")
        right.plot(m, [r["evidence"] / ROWS for _, r in found], "s-", color="C1")
        right.set(xlabel="inducing points M", ylabel="log evidence per row", xscale="log")
        times = right.twinx()
        times.plot(m, [r["seconds"] for _, r in found], "^--", color="0.4")
        times.set(ylabel="CPU seconds (dashed)", ylim=(0.0, None))
        for axes in (left, right):
            axes.set_xticks(m, [str(size) for size in m])
            axes.minorticks_off()


OPTIONS = {
    "sets": {"choices": ("m", "dense"), "default": ["m", "dense"]},
    "kept": {"default": RESULTS / "sparse_curve.jsonl"},
    "again": {},
    "report": {"help": "draw what is kept, and do nothing else"},
}


def main(options: Namespace) -> None:
    """Fit what is not kept, or draw."""
    records = Records(options.kept, "what rows inducing")
    if options.report:
        draw(records.records)
        return
    plan = [("m", ROWS, m) for m in SIZES]
    plan += [("dense", n, m) for n in DENSE for m in (POINTS, 0)]
    plan = [key for key in plan if key[0] in options.sets]
    if plan:
        fitted(synthetic(300), 20)  # kernels compile
        fitted(synthetic(200), None)
    for what, rows, inducing in plan:
        key = what, rows, inducing
        if key in records and not options.again:
            continue
        found = fitted(synthetic(rows), inducing or None)
        if what == "m":
            found["least"] = least(rows)
        records.keep(key, found)
        print(key, found, flush=True)
