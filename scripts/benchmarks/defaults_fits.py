"""One fit of `defaults`: ours or a peer's, to one fold of one set, and its scores.

Nothing here reads or writes files.
"""

import hashlib
import time
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.gaussian_process import kernels
from sklearn.metrics import mean_poisson_deviance
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor
from scripts.benchmarks.data.small import RawSet
from scripts.benchmarks.peers import small as peers

FOLDS = 5
OURS = "ours"
_MODELS = {"classes": GPClassifier, "numbers": GPRobustRegressor, "counts": GPPoissonRegressor}

Array = NDArray[Any]


class Task(NamedTuple):
    """What identifies one fit; `data` and `version` are hashes."""

    set: str
    data: str
    fold: int
    model: str
    version: str


def folds(raw: RawSet) -> list[tuple[Array, Array]]:
    """Training and test rows of the shuffled folds, classes in their shares."""
    splitter = StratifiedKFold if raw.kind == "classes" else KFold
    return list(splitter(FOLDS, shuffle=True, random_state=0).split(raw.X, raw.y))


def digest(raw: RawSet) -> str:
    """Hash of a set and its folds."""
    found = hashlib.sha256()
    for array in (raw.X, raw.y, raw.exposure, *(test for _, test in folds(raw))):
        found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:12]


def run(task: Task, raw: RawSet) -> dict[str, Any]:
    """Fit one model to one fold; what it raises is kept as its result."""
    train, test = folds(raw)[task.fold]
    looked, looked_test = (
        (None, None) if raw.exposure is None else (raw.exposure[train], raw.exposure[test])
    )
    record: dict[str, Any] = {**task._asdict(), "rows": len(test)}
    # Threads of boosting spin while they wait: on a busy machine ten times as long.
    with threadpool_limits(1), warnings.catch_warnings(record=True, action="always") as caught:
        try:
            if task.model == OURS:
                warm_up(raw.kind)
                found, more = ours(raw, train, test)
                record |= more
                peer_like = found
            else:
                peer = peers.PEERS[raw.kind][task.model]()
                start = time.perf_counter()
                peer_like = peer(raw.X[train], raw.y[train], looked, raw.X[test])
                record["seconds"] = time.perf_counter() - start
            record |= score(raw, train, test, peer_like, looked_test)
        except Exception as error:  # a failure is a result
            record["error"] = f"{type(error).__name__}: {error}"
    if task.model == OURS:
        record["warnings"] = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    return record


def score(
    raw: RawSet, train: Array, test: Array, prediction: peers.Prediction, exposure: Array | None
) -> dict[str, float]:
    """Means over the test rows: the `loss` that models are compared by, and others."""
    value, std = prediction
    y = raw.y[test]
    if raw.kind == "classes":
        return {
            "loss": float(-value[np.arange(len(y)), y].mean()),
            "error_rate": float((value.argmax(axis=1) != y).mean()),
        }
    if raw.kind == "numbers":
        found = {"loss": float(np.abs(y - value).mean())}
        if std is not None:
            found["log_density"] = float(norm.logpdf(y, value, std).mean())
        return found
    looked = np.ones(len(y)) if exposure is None else exposure
    seen = np.ones(len(train)) if raw.exposure is None else raw.exposure[train]
    # Deviance is infinite where a model says never: half an event in all it has seen is the least.
    return {"loss": float(mean_poisson_deviance(y, looked * np.maximum(value, 0.5 / seen.sum())))}


def ours(raw: RawSet, train: Array, test: Array) -> tuple[Any, dict[str, Any]]:
    """Predictions of our estimator, and what is to be known of its fit.

    Beside it, for its time, a fit with a kernel that a user gives, to scaled features.
    """
    X, X_test, y = raw.X[train], raw.X[test], raw.y[train]
    scaler = StandardScaler().fit(X)
    more = {} if raw.exposure is None else {"exposure": raw.exposure[train]}
    start = time.perf_counter()
    model = _MODELS[raw.kind]().fit(X, y, **more)
    middle = time.perf_counter()
    bounds = (1e-6, 1e10), (1e-4, 1e5)
    given = kernels.ConstantKernel(1.0, bounds[0]) * kernels.RBF(X.shape[1] ** 0.5, bounds[1])
    _MODELS[raw.kind](given).fit(scaler.transform(raw.X[train]), y, **more)
    end = time.perf_counter()
    optima = model.optimum_ if isinstance(model.optimum_, tuple) else (model.optimum_,)
    record: dict[str, Any] = {
        "seconds": middle - start,
        "explicit_seconds": end - middle,
        "kernel": str(model.kernel_),
        "iterations": [o.n_iterations for o in optima if o],
        "evaluations": [o.n_evaluations for o in optima if o],
    }
    if raw.kind == "classes":
        return (model.predict_log_proba(X_test), None), record
    if raw.kind == "numbers":
        record["log_density"] = float(model.predict_log_density(X_test, raw.y[test]).mean())
        return (model.predict(X_test), None), record
    looked = None if raw.exposure is None else raw.exposure[test]
    pmf = model.predict_log_pmf(X_test, raw.y[test].astype(int), looked)
    record["log_density"] = float(pmf.mean())
    return (model.predict(X_test), None), record


@cache
def warm_up(kind: str) -> None:
    """Load compiled code, which is not to be timed."""
    X = np.linspace(0.0, 1.0, 12)[:, None]
    with warnings.catch_warnings(action="ignore"):
        for kernel in (None, kernels.ConstantKernel() * kernels.RBF()):
            _MODELS[kind](kernel).fit(X, np.arange(12) % 2)
