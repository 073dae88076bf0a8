"""What maximising the corrected evidence in place of EP's does to hyper-parameters and predictions.

On splits of Table 1's data sets: the optimum of either over the logarithms of variance and
length-scale from the same start, EP's predictions at both, and the seconds. The gradient is EP's
own and central differences of the sums over pairs at warm-started fixed points. One JSON line for
each split; what is there is not done again. docs/corrections.md is made of the records:

    python -m scripts.studies evidence --data DIRECTORY
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import Kernel
from threadpoolctl import threadpool_limits

from qpruntime import ConvergenceWarning, NumericalError, Posterior, infer
from qpruntime.inference.posterior import Sites
from scripts.benchmarks.data.paper import NAMES, load
from scripts.benchmarks.data.protocol import Task, folds
from scripts.records import RESULTS, Records
from scripts.studies.folds import Fold, start_kernel

Array = NDArray[np.float64]

#: Steps of the differences, in logarithms; and how far sites settle for them.
_STEP, _TOL = 3e-3, 1e-8
#: Iterations at most.
_MOST = 60


class Evidence:
    """Negative log evidence of EP, or the corrected one, as a function of the log parameters."""

    def __init__(self, fold: Fold, kernel: Kernel, corrected: bool) -> None:
        self.fold, self.kernel, self.corrected = fold, kernel, corrected
        self.sites: Sites | None = None
        self.evaluations = 0

    def posterior(self, K: Array) -> Posterior:
        """EP's, from the sites before."""
        fold = self.fold
        options: dict[str, Any] = {"mean": fold.mean, "tol": _TOL, "max_sweeps": 300}
        post = infer(K, fold.y, fold.likelihood, "ep", sites=self.sites, **options)
        self.sites = post.sites
        return post

    def shift(self, theta: Array) -> float:
        """What is added to EP's evidence."""
        post = self.posterior(self.kernel.clone_with_theta(theta)(self.fold.X))
        return post.corrected_evidence().value - post.log_evidence

    def __call__(self, theta: Array) -> tuple[float, Array]:
        self.evaluations += 1
        try:
            K, dK = self.kernel.clone_with_theta(theta)(self.fold.X, eval_gradient=True)
            post = self.posterior(K)
            value, slope = post.log_evidence, np.asarray(post.evidence_gradient(dK))
            if self.corrected:
                value = post.corrected_evidence().value
                for i, step in enumerate(_STEP * np.eye(theta.size)):
                    rise = self.shift(theta + step) - self.shift(theta - step)
                    slope[i] += rise / (2.0 * _STEP)
        except NumericalError:
            self.sites = None
            return 1e10, np.zeros_like(theta)
        return -value, -slope


def study(task: Task, X: Array, y: Array) -> dict[str, Any]:
    """Both optima of one split."""
    fold = Fold(task, X, y)
    kernel = start_kernel(fold.X.shape[1])
    record: dict[str, Any] = {**task._asdict(), "n": len(fold.y), "of": {}}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name in ("ep", "corrected"):
            start = time.perf_counter()
            function = Evidence(fold, kernel, name == "corrected")
            found = minimize(
                function,
                kernel.theta,
                jac=True,
                method="L-BFGS-B",
                bounds=kernel.bounds,
                options={"maxiter": _MOST, "ftol": 1e-7},
            )
            best = kernel.clone_with_theta(found.x)
            post = function.posterior(best(fold.X))
            scores = fold.score(best, post)
            record["of"][name] = {
                "theta": found.x.tolist(),
                "ntll": scores["ntll"],
                "te": scores["te"],
                "evidence": post.log_evidence,
                "corrected": post.corrected_evidence().value,
                "spread": post.corrected_evidence().spread,
                "evaluations": function.evaluations,
                "seconds": time.perf_counter() - start,
            }
    return record


OPTIONS = {
    "data": {"required": True},
    "sets": {"default": list(NAMES), "choices": NAMES},
    "seeds": {"default": 5, "help": "splits of every set; one from 400 rows on"},
    "kept": {"default": RESULTS / "evidence.jsonl"},
}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, Task)
    for data in options.sets:
        X, y = load(data, options.data)
        for split in range(options.seeds if len(y) < 400 else 1):
            count = folds(data)
            task = Task(data, "evidence", split // count, split % count)
            if task not in records:
                records.add(study(task, X, y))
                done = records.records[task]["of"]
                print(data, split, {k: [round(t, 2) for t in v["theta"]] for k, v in done.items()})
