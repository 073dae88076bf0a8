"""Times of imports, of sweeps and of inference, its memory, and the problem they are of."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.linalg.lapack import dpotrf

from qpruntime import likelihoods
from qpruntime._numba import plain
from qpruntime.inference.dense.cholesky_kernels import APPLY_PANEL, sweep
from qpruntime.inference.dense.solver import CholeskyFactor, DensePrior
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import Rules
from qpruntime.inference.sites import Sites
from qpruntime.projection.open import open_table
from qpruntime.projection.projector import Projector
from scripts.benchmarks.peers import gpy as peers
from scripts.benchmarks.timing import Row, best, grown, has, in_turns


def startup() -> list[Row]:
    """Imports and the first fit, each in a fresh process with a warm cache."""

    def process(code: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", code], check=True), 5)

    bare, numba = process("pass"), process("import numba")
    ours = process("from qpruntime import infer, open_table, project")
    fit = "from qpruntime import GPClassifier as G; G().fit([[0.],[1.],[2.],[3.]], [0,0,1,1])"
    with tempfile.TemporaryDirectory() as empty:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", fit], check=True, env={**os.environ, "NUMBA_CACHE_DIR": empty}
        )
        cold = time.perf_counter() - start
    return [
        ("import numba", numba - bare, "s"),
        ("import qpruntime, with infer, open_table, project", ours - bare, "s"),
        ("import qpruntime / import numba", (ours - bare) / (numba - bare), "x"),
        ("fresh process: import and first small fit", process(fit), "s"),
        ("the same with an empty cache: everything compiles", cold, "s"),
    ]


def memory() -> list[Row]:
    """Most memory that inference takes beside K, in units of one N x N array."""
    before = (
        "import warnings, numpy as np; from qpruntime import infer; n, order = 3000, sys.argv[1]; "
        "warnings.simplefilter('ignore'); infer(np.eye(99), np.ones(99), order=order); "
        "x = np.linspace(-9, 9, n); y = np.where(np.sin(3 * x) > 0, 1.0, -1.0); "
        "K = np.subtract.outer(x, x); K *= K; K *= -0.5; np.exp(K, out=K)"
    )
    rows: list[Row] = []
    for order in ("sequential", "random", "parallel"):
        found = grown(before, "infer(K, y, order=order, max_sweeps=2)", order) / 8 / 3000**2
        rows.append((f"N=3000: memory of infer beside K, {order}", found, "N^2"))
    return rows


def problem(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five features, two overlapping classes, a squared exponential covariance."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)
    square = (X**2).sum(1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)
    return X, np.where(f > 0.0, 1.0, -1.0), 4.0 * np.exp(-0.5 * distance / 4.0)


def sweeps(path: str) -> list[Row]:
    """One sweep and one refresh in units of a Cholesky factorisation."""
    rows: list[Row] = []
    mapped = {"qp, mapped table": ("qp", open_table(path))} if Path(path).is_file() else {}
    for n in (300, 500, 1000, 2000):
        _, y, K = problem(n)
        chol = cholesky(K)
        rows.append((f"N={n}: Cholesky", 1e3 * chol, "ms"))
        ways = {
            "ep": ("ep", None),
            "qp, shipped table": ("qp", None),
            **mapped,
            "qp, exact": ("qp", "exact"),
        }
        tasks = {name: Swept(K, y, Projector("probit", *way)) for name, way in ways.items()}
        repeat = {300: 60, 500: 40, 1000: 20, 2000: 6}[n]
        seconds = in_turns({k: task.seconds for k, task in tasks.items()}, repeat)
        for name, s in seconds.items():
            rows.append((f"N={n}: sweep, {name}", 1e3 * s, "ms"))
            rows.append((f"N={n}: sweep, {name} / Cholesky", s / chol, "x"))
            if name != "ep":
                rows.append((f"N={n}: sweep, {name} / ep", s / seconds["ep"], "x"))
        refresh = refreshed(K, Sites(tasks["ep"].tau, tasks["ep"].nu))
        rows.append((f"N={n}: refresh / Cholesky", refresh / chol, "x"))
        if has("GPy") and n in (500, 1000):
            rows.append(
                (f"N={n}: GPy sweep, ep / ours", peers.gpy_sweep(K, y) / seconds["ep"], "x")
            )
        counts = np.random.default_rng(n).poisson(np.exp(0.5 * y)).astype(float)
        for name, observed, mean in (("heaviside", y, 0.0), ("poisson", counts, 1.0)):
            pair = {m: Swept(K, observed, Projector(name, m), mean).seconds for m in ("ep", "qp")}
            turns = in_turns(pair, 11 if n < 2000 else 5)
            rows.append((f"N={n}: sweep, {name}, qp / ep", turns["qp"] / turns["ep"], "x"))
    return rows


class Swept:
    """One sequential sweep from the prior, again and again."""

    def __init__(
        self, K: np.ndarray, y: np.ndarray, projector: Projector, mean: float = 0.0
    ) -> None:
        self.K, self.y, self.projector, self.mean = K, y, projector, mean

    def seconds(self) -> float:
        """Run it, without the copies it needs, and leave the sites in `tau` and `nu`."""
        n = self.y.size
        covariance, self.tau, self.nu = self.K.copy(), np.zeros(n), np.zeros(n)
        concave = self.projector.likelihood.log_concave
        rules = Rules(self.projector.functions, self.projector.source, 1.0, concave)
        rules, observed, mean = plain(rules), (self.y, np.ones(n)), np.full(n, self.mean)
        record = np.zeros(3, dtype=np.int64), np.zeros(2)
        marginals = mean, np.ones(n), np.zeros(n)
        start = time.perf_counter()
        sweep(
            rules,
            observed,
            covariance,
            marginals,
            (self.tau, self.nu),
            1.0,
            record,
            APPLY_PANEL.handle,
        )
        return time.perf_counter() - start


def cholesky(K: np.ndarray) -> float:
    """Seconds of LAPACK's factorisation, without the copy of the matrix."""
    copies = [np.asfortranarray(K + np.eye(len(K))) for _ in range(6)]
    return best(lambda: dpotrf(copies.pop(), lower=1, overwrite_a=1), 5)


def refreshed(K: np.ndarray, sites: Sites) -> float:
    """Seconds to recompute the posterior covariance from the sites."""
    return best(lambda: CholeskyFactor(K, sites, np.zeros(len(K))).covariance(), 3)


def engine() -> list[Row]:
    """Inference to the fixed point, in each order."""
    rows: list[Row] = []
    _, y, K = problem(500)
    task = Problem(DensePrior(K, np.zeros(500)), y, Projector(likelihoods.get("probit"), "ep"))
    for order in ("sequential", "random", "parallel"):
        end = settle(task, order=order)
        seconds = best(lambda o=order: settle(task, order=o), 3)
        rows.append((f"N=500: to the fixed point, {order}", 1e3 * seconds, "ms"))
        rows.append((f"N=500: iterations, {order}", len(end.history), ""))
    return rows
