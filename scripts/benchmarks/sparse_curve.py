"""What M buys, and from how many rows on inducing points are faster than the dense engine.

    python -m scripts.benchmarks sparse_curve --sets m         # synthetic labels, M = 25 ... 400
    python -m scripts.benchmarks sparse_curve --sets dense     # N = 1000 ... 4000, both engines

CPU seconds on one core. What is found is kept in tables/results/sparse_curve.jsonl; what is there
is left out unless --again. docs/bench-cost.md quotes it.
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


OPTIONS = {
    "sets": {"choices": ("m", "dense"), "default": ["m", "dense"]},
    "kept": {"default": RESULTS / "sparse_curve.jsonl"},
    "again": {},
}


def main(options: Namespace) -> None:
    """Fit what is not kept."""
    records = Records(options.kept, "what rows inducing")
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
