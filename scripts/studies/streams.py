"""Rows that come in parts, beside all rows at once: sites of their own, or one tied site.

    python -m scripts.studies streams            # what is not kept yet, in tables/results
    python -m scripts.studies streams --sets labels-20000

The kernel is that of the draw and inducing inputs are centres of the first part, so that only the
parts differ. "shuffled" parts are fair samples, "sorted" ones come by the first feature, the first
part being a sample nevertheless. Kept are the drift of the evidence in nats, of predictions at new
points (means in posterior standard deviations, root mean square; ratios of variances: median, 5 and
95 %), of their negative log density, and CPU seconds in those of all rows at once, in turns.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import ConvergenceWarning, infer_sparse
from qpruntime.projection.projector import project_arrays
from scripts.benchmarks.data.drawn import LENGTHS, counts, synthetic
from scripts.records import RESULTS, Records

INDUCING = 100
SITES = ("own", "tied")


class Problem(NamedTuple):
    """Rows, rows to judge by, and what is told of them."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    kernel: Any
    options: dict[str, Any]


#: Sizes of parts by data and order.
PARTS = {
    "labels-20000": {"shuffled": (200, 1000, 5000), "sorted": (200, 1000, 5000)},
    "counts-2000": {"shuffled": (200, 500), "sorted": (200,)},
    "outliers-1000": {"shuffled": (200,), "sorted": (200,)},
    "labels-100000": {"shuffled": (1000, 10_000), "sorted": (10_000,)},
}


def problem(data: str) -> Problem:
    """Draw the rows of one data set."""
    kind, n = data.split("-")
    if kind == "labels":
        split, shape = synthetic(int(n)), ConstantKernel(4.0) * RBF(LENGTHS)
        options: dict[str, Any] = {"likelihood": "probit"}
    elif kind == "counts":
        split, _, _ = counts(int(n))
        shape, options = ConstantKernel(0.64) * RBF(LENGTHS[:2]), {"likelihood": "poisson-exp"}
    else:
        rng = np.random.default_rng(1)
        split, shape = synthetic(int(n)), ConstantKernel(4.0) * RBF(LENGTHS)
        f = [np.sin(X[:, 0]) + 0.5 * X[:, 1] for X in (split.X, split.X_test)]
        y, y_test = (a + 0.3 * rng.standard_t(4.0, a.size) for a in f)
        split = split._replace(y=y, y_test=y_test)
        options = {"likelihood": "student-t(nu=4, scale=0.3)"}
    return Problem(*split, shape, options)


def nll(given: Problem, mean: np.ndarray, variance: np.ndarray) -> float:
    """Mean negative log density of new observations."""
    likelihood, std = given.options["likelihood"], np.sqrt(variance)
    return -float(np.mean(project_arrays(likelihood, mean, std, given.y_test, "ep").log_z))


def in_parts(given: Problem, order: str, size: int, sites: str, Z: np.ndarray) -> Any:
    """Posterior of rows in parts, the first of which is always a fair sample."""
    rows = np.arange(len(given.y))
    if order == "sorted":
        rows[size:] = rows[size:][np.argsort(given.X[size:, 0], kind="stable")]
    first, *others = (rows[start : start + size] for start in range(0, rows.size, size))
    post = infer_sparse(given.X[first], given.y[first], given.kernel, Z, **given.options)
    for some in others:
        post = post.extend(given.X[some], given.y[some], sites=sites)
    return post


def study(data: str, records: Records[Any]) -> None:
    """Keep what is missing of one data set."""
    given = problem(data)
    few = given.X[:50], given.y[:50]  # opens tables and kernels
    begun = infer_sparse(*few, given.kernel, given.X[:5], **given.options)
    begun.extend(*few, sites="tied")
    for order, sizes in PARTS[data].items():
        for size in sizes:
            wanted = [sites for sites in SITES if (data, order, size, sites) not in records]
            if not wanted:
                continue
            centres = MiniBatchKMeans(min(INDUCING, size // 2), random_state=0, n_init=1)
            Z = centres.fit(given.X[:size]).cluster_centers_
            full = np.inf
            for _ in range(2):
                start = time.process_time()
                whole = infer_sparse(given.X, given.y, given.kernel, Z, **given.options)
                full = min(full, time.process_time() - start)
            mean, variance = whole.predict(given.X_test)
            for sites in wanted:
                start = time.process_time()
                post = in_parts(given, order, size, sites, Z)
                spent = time.process_time() - start
                m, v = post.predict(given.X_test)
                low, middle, high = np.quantile(v / variance, [0.05, 0.5, 0.95])
                key = data, order, size, sites
                records.keep(
                    key,
                    {
                        "whole": whole.log_evidence,
                        "evidence": post.log_evidence - whole.log_evidence,
                        "means": float(np.sqrt(np.mean((m - mean) ** 2 / variance))),
                        "variances": [float(middle), float(low), float(high)],
                        "nll": nll(given, m, v) - nll(given, mean, variance),
                        "time": spent / full,
                        "seconds": full,
                    },
                )
                print(records.records[key], flush=True)


OPTIONS = {
    "sets": {"default": list(PARTS), "choices": PARTS},
    "kept": {"default": RESULTS / "study_streams.jsonl"},
}


def main(options: Namespace) -> None:
    """Study what is not kept yet."""
    records = Records(options.kept, "data order size sites")
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for data in options.sets:
            study(data, records)
