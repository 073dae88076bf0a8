"""Measure fits by inducing points beside GPyTorch's SVGP and GPBoost, on one core.

    python -m scripts.benchmarks sparse --sets synthetic-10000-200 --python PYTHON --packages DIR

PYTHON has torch, gpytorch and gpboost; DIR has the data (`data.drawn`). CPU seconds from raw data,
every stage in; both start from the same inducing inputs and parameters, one after the other in one
run, so that ratios count on a busy machine too. What is found is kept in
tables/results/bench_sparse.jsonl; a row that is there is left out unless --again.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, infer_sparse
from qpruntime.learning.inducing_points import clusters
from qpruntime.learning.sparse import objective
from scripts.benchmarks.data.drawn import Split, flights, synthetic
from scripts.benchmarks.metrics import judge
from scripts.records import RESULTS, TOP, Records
from scripts.reports import speed as report

ONE_THREAD = True
RATES = (0.003, 0.01, 0.03)
# Places on the way of our own fit whose posterior is judged.
_LOOKS = 10
# Peers that end by themselves are ended after so many times the seconds of a case.
_MOST = 20.0
# Set, rows, inducing inputs: CPU seconds of SVGP at each rate, as the prototype was measured.
CASES = {
    ("synthetic", 10_000, 200): 45.0,
    ("synthetic", 100_000, 200): 90.0,
    ("synthetic", 100_000, 500): 100.0,
    ("flights", 100_000, 200): 70.0,
}


def own(data: Split, Z: np.ndarray) -> dict[str, Any]:
    """Our fit: (seconds, NLL, calibration error) on the way, and at its end."""
    dims, places = data.X.shape[1], []
    kernel = ConstantKernel(1.0, (1e-4, 1e4)) * RBF(np.full(dims, 2.0), (1e-2, 1e3))
    evaluate = objective.EvidenceSearch.evaluate
    looked = 0.0

    def traced(self: Any, place: Any) -> Any:
        found = evaluate(self, place)
        places.append((time.process_time() - begun, place))
        return found

    model = GPClassifier(kernel, inducing=Z, n_jobs=1, random_state=0)
    objective.EvidenceSearch.evaluate = traced  # type: ignore[method-assign]
    try:
        begun = time.process_time()
        model.fit(data.X, data.y)
        spent = time.process_time() - begun
    finally:
        objective.EvidenceSearch.evaluate = evaluate  # type: ignore[method-assign]
    last = [spent, *judge(*model.latent(data.X_test), data.y_test)]
    # What settling in double precision at the end has cost, which any earlier end would cost too.
    looked = spent - places[-1][0]
    path = []
    for k in np.unique(np.linspace(2, len(places) - 1, _LOOKS).astype(int)):
        at, place = places[k]
        post = infer_sparse(
            data.X, data.y, kernel.clone_with_theta(place.theta), place.Z, method="ep", tol=1e-3
        )
        path.append([at + looked, *judge(*post.predict(data.X_test), data.y_test)])
    return {"path": [*path, last], "evaluations": len(places), "kernel": repr(model.kernel_)}


def peer(python: str, name: str, data: Split, Z: np.ndarray, seconds: float) -> dict[str, Any]:
    """A peer's best run: of SVGP that of the rate whose end is lowest."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, Z=Z, **data._asdict())
        for rate in RATES if name == "svgp" else (0.0,):
            command = [python, "-m", "scripts.benchmarks.peers.elsewhere", name, str(path)]
            command += map(str, (rate, seconds, _MOST * seconds))
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=7200, cwd=TOP
            )
            if done.returncode == -signal.SIGXCPU:
                return {"path": [], "ended": f"not done in {_MOST * seconds:.0f} s"}
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            found.append({"rate": rate, **json.loads(done.stdout.splitlines()[-1])})
    return min(found, key=lambda run: run["path"][-1][1]) | {"runs": found}


OPTIONS = {
    "sets": {"choices": ["-".join(map(str, case)) for case in CASES]},
    "python": {"help": "interpreter with torch, gpytorch, gpboost"},
    "models": {"choices": ("svgp", "fitc", "vecchia"), "default": ["svgp"], "help": "of peers"},
    "packages": {"help": "folder of the data"},
    "kept": {"default": RESULTS / "bench_sparse.jsonl"},
    "again": {},
}


def main(options: Namespace) -> None:
    """Measure what is not kept, and compare."""
    records = Records(options.kept, "case peer")
    warm = synthetic(400)
    own(warm, clusters(warm.X, 20, np.random.default_rng(0)))  # kernels compile
    for case, seconds in CASES.items():
        title, files = "-".join(map(str, case)), case[0] == "flights"
        if title not in (options.sets or [title]) or (files and not options.packages):
            continue
        data = flights(options.packages, case[1]) if files else synthetic(case[1])
        Z = clusters(data.X, case[2], np.random.default_rng(0))
        for name in ["own", *(options.models if options.python else ())]:
            if (title, name) in records and not options.again:
                continue
            found = own(data, Z) if name == "own" else peer(options.python, name, data, Z, seconds)
            records.keep((title, name), found)
    print(report.peers(records.records.values()))
