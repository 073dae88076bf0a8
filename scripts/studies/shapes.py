"""What trees see: sums over single features and arc-sine kernels, beside Matérn and the default.

    python -m scripts.studies shapes                     # what is not kept yet, in tables/results
    python -m scripts.studies shapes --sets churn --rows 1000

Kernels have one length-scale for all features, of standardised features or their ranks, and are
learnt by EP's evidence: on 500 rows, then on all. "features" and "ranks" add to a Matérn kernel of
all features the mean of those of each. Kept are log losses of new rows and leave-one-out means.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import ndtr, ndtri
from sklearn.metrics import log_loss

from qpruntime import GPClassifier, QPError, infer
from qpruntime.learning.rank_transform import Warp
from scripts.benchmarks.data import middle
from scripts.benchmarks.defaults import our_version
from scripts.records import RESULTS, Records

ONE_THREAD = True
#: Sets by which shapes may be chosen.
SETS = ("churn", "phoneme", "magic", "spambase")
_FIRST, _NEW, _JITTER = 500, 4000, 1e-8
_FEW, _MORE = 18, 8


Kernel = Callable[[Any, Any, Any], Any]


def _rough(A: Any, B: Any, length: float) -> Any:
    return np.exp(-cdist(A, B) / length)


def _smooth(A: Any, B: Any, length: float) -> Any:
    r = np.sqrt(3.0) * cdist(A, B) / length
    return (1.0 + r) * np.exp(-r)


def _all(base: Kernel) -> Kernel:
    def kernel(A: Any, B: Any, t: Any) -> Any:
        return np.exp(2.0 * t[0]) * base(A, B, np.exp(t[1]) * np.sqrt(A.shape[1]))

    return kernel


def _with_sum(base: Kernel) -> Kernel:
    whole = _all(base)

    def kernel(A: Any, B: Any, t: Any) -> Any:
        each = [base(A[:, [j]], B[:, [j]], np.exp(t[3])) for j in range(A.shape[1])]
        return whole(A, B, t) + np.exp(2.0 * t[2]) * np.mean(each, axis=0)

    return kernel


def _arc_sine(A: Any, B: Any, t: Any) -> Any:
    """Covariance of a layer of endless width (Williams 1998, 11)."""
    scale, offset = np.exp(-2.0 * t[1]) / A.shape[1], np.exp(t[2])
    inner = 2.0 * (A @ B.T * scale + offset)
    own = [1.0 + 2.0 * ((X * X).sum(axis=1) * scale + offset) for X in (A, B)]
    ratio = inner / np.sqrt(own[0][:, None] * own[1])
    return np.exp(2.0 * t[0]) * 2.0 / np.pi * np.arcsin(np.clip(ratio, -1.0, 1.0))


#: Kernel, and log parameters to begin with.
SHAPES: dict[str, tuple[Kernel, list[float]]] = {
    "Matérn 1/2": (_all(_rough), [0.5, 0.0]),
    "Matérn 1/2 and sum": (_with_sum(_rough), [0.5, 0.0, 0.5, 0.0]),
    "Matérn 3/2": (_all(_smooth), [0.5, 0.0]),
    "Matérn 3/2 and sum": (_with_sum(_smooth), [0.5, 0.0, 0.5, 0.0]),
    "arc-sine": (_arc_sine, [0.5, -1.0, 0.0]),
}


def learnt(kernel: Kernel, begin: list[float], X: Any, y: Any) -> tuple[Any, Any]:
    """Return log parameters of highest evidence, under a wide prior about the start; and EP's."""
    mean = float(ndtri(np.mean(y > 0.0)))

    def posterior(t: Any, n: int) -> Any:
        K = kernel(X[:n], X[:n], t) + _JITTER * np.eye(n)
        return infer(K, y[:n], "probit", "ep", mean=mean, tol=1e-3)

    def cost(t: Any, n: int) -> float:
        try:
            return -posterior(t, n).log_evidence + float(np.sum((t - begin) ** 2)) / 8.0
        except QPError:
            return 1e6

    found = np.asarray(begin)
    for n, calls in ((min(_FIRST, len(y)), _FEW), (len(y), _MORE)):
        simplex = np.vstack([found, *(found + 0.25 * np.eye(len(begin)))])
        options = {"maxfev": calls * len(begin), "fatol": 0.1, "initial_simplex": simplex}
        found = minimize(cost, found, (n,), "Nelder-Mead", options=options).x
    return found, posterior(found, len(y))


def run(name: str, n: int, seed: int, shape: str, inputs: str) -> dict[str, Any]:
    """Learn one shape, or the default."""
    data = middle.load(name, n, seed=seed)
    assert data is not None
    labels = np.unique(data.y)
    y = np.where(np.asarray(data.y) == labels[1], 1.0, -1.0)
    X_new, new = data.X_new[:_NEW], np.asarray(data.y_new[:_NEW]) == labels[1]
    begun = time.process_time()
    with warnings.catch_warnings(action="ignore"):
        if shape == "default":
            model = GPClassifier(random_state=seed).fit(data.X, y)
            p, post = model.predict_proba(X_new)[:, 1], model.posterior_
        else:
            view = Warp.of(data.X) if inputs == "ranks" else lambda X: X
            rows, points = view(data.X), view(X_new)
            some = np.ptp(rows, axis=0) > 0.0
            middle_of, spread = rows[:, some].mean(axis=0), rows[:, some].std(axis=0)
            rows, points = ((Z[:, some] - middle_of) / spread for Z in (rows, points))
            kernel, begin = SHAPES[shape]
            t, post = learnt(kernel, begin, rows, y)
            own = np.array([kernel(point[None], point[None], t)[0, 0] for point in points])
            mean, variance = post.predict(kernel(points, rows, t), own)
            p = ndtr(mean / np.sqrt(1.0 + variance))
    return {
        "loss": float(log_loss(new, p)), "loo": float(-post.loo().mean()),
        "evidence": post.log_evidence, "cpu": time.process_time() - begun, "version": our_version(),
    }  # fmt: skip


OPTIONS = {
    "sets": {"default": SETS, "choices": middle.names("classes")},
    "rows": {"default": [1000]},
    "seeds": {"default": 1},
    "kept": {"default": RESULTS / "shapes.jsonl"},
}


def main(options: Namespace) -> None:
    """Run what is not kept yet."""
    records = Records(options.kept, "set rows seed shape inputs")
    shapes = [("default", "features"), *((s, i) for i in ("features", "ranks") for s in SHAPES)]
    plan = product(options.sets, options.rows, range(options.seeds), shapes)
    for name, rows, seed, (shape, inputs) in plan:
        key = name, rows, seed, shape, inputs
        if key not in records:
            records.keep(key, run(*key))
        found = records.records[key]
        print(
            f"{name:<10} {rows:>6} {seed} {shape:<20} {inputs:<9} "
            f"loss {found['loss']:.4f}  left out {found['loo']:.4f}  "
            f"evidence {found['evidence']:.1f}  {found['cpu']:.0f} s",
            flush=True,
        )
