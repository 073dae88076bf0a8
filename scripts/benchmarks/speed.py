"""Measure everything docs/measurements.md states about speed, in one run, as a table or as JSON.

Peers (scikit-learn, GPy, GPBoost) are measured beside it where they are installed; times are the
best of several, ratios come from the same run.

    python -m scripts.benchmarks speed --sets sweep fit
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from scipy.linalg.lapack import dpotrf

from qpruntime import Posterior, infer, likelihoods
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.dense.sweep import sweep
from qpruntime.inference.fixed_point import settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Rules
from qpruntime.inference.sites import Sites
from qpruntime.jit import kernel, plain
from qpruntime.projection.kernel import compact_ratio
from qpruntime.projection.opening import open_table
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.splines import bilinear
from scripts.benchmarks.peers import speed as peers

Row = tuple[str, float, str]

#: Libraries that need not be installed, and the sections they are measured in.
PEERS = {"GPy": ("sweep", "fit"), "gpboost": ("fit",)}


def best(function: Callable[[], object], repeat: int = 5) -> float:
    """Shortest of `repeat` runs, in seconds, after one to warm up."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def has(module: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(module) is not None


def problem(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five features, two overlapping classes, a squared exponential covariance."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(n)
    square = (X**2).sum(1)
    distance = np.maximum(square[:, None] + square - 2.0 * X @ X.T, 0.0)
    return X, np.where(f > 0.0, 1.0, -1.0), 4.0 * np.exp(-0.5 * distance / 4.0)


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
    code = (
        "import sys, warnings, numpy as np; from qpruntime import infer; n, order = 3000, "
        "sys.argv[1]; warnings.simplefilter('ignore'); "
        "infer(np.eye(99), np.ones(99), order=order); "
        "k = lambda w: int(open('/proc/self/status').read().split(w)[1].split()[0]) * 1024; "
        "x = np.linspace(-9, 9, n); y = np.where(np.sin(3 * x) > 0, 1.0, -1.0); "
        "K = np.subtract.outer(x, x); K *= K; K *= -0.5; np.exp(K, out=K); "
        "open('/proc/self/clear_refs', 'w').write('5'); before = k('VmRSS:'); "
        "infer(K, y, order=order, max_sweeps=2); print((k('VmHWM:') - before) / 8 / n**2)"
    )
    rows: list[Row] = []
    for order in ("sequential", "random", "parallel"):
        run = [sys.executable, "-c", code, order]
        found = subprocess.run(run, check=True, capture_output=True, text=True).stdout
        rows.append((f"N=3000: memory of infer beside K, {order}", float(found), "N^2"))
    return rows


@kernel
def four_loads(values, row, column, t, u, out):
    """The least a bilinear lookup can do: indices and weights are given."""
    for n in range(out.size):
        i, j = row[n], column[n]
        low = values[i, j] + u[n] * (values[i, j + 1] - values[i, j])
        high = values[i + 1, j] + u[n] * (values[i + 1, j + 1] - values[i + 1, j])
        out[n] = low + t[n] * (high - low)


@kernel
def many_lookups(lookup_values, axes, mu, log10_sigma, out):
    """Lookups alone, without the moments of the tilted density."""
    for n in range(out.size):
        out[n] = bilinear(lookup_values, axes, 0, mu[n], log10_sigma[n])[0]


def projection() -> list[Row]:
    """One site: moments and quadrature."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    mu, log10_sigma = rng.uniform(-10, 10, 20000), rng.uniform(-1, 1, 20000)
    y = rng.choice([-1.0, 1.0], 20000)
    for method, table, scale, unit in (("ep", None, 1e9, "ns"), ("qp", "exact", 1e6, "us")):
        seconds = best(
            lambda m=method, t=table: project_arrays("probit", mu, 10**log10_sigma, y, m, t), 3
        )
        rows.append((f"one site, {method} {table or ''}".strip(), seconds / mu.size * scale, unit))
    return rows


def table(path: str | None) -> list[Row]:
    """A grid: open it, and look up random arguments beside the bare memory accesses."""
    if path is None or not Path(path).exists():
        return []
    code = (
        "import resource, time; from qpruntime.projection.opening import open_table; "
        "k = lambda: int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize(); "
        f"a = k(); t = time.perf_counter(); open_table({path!r}); "
        "print(time.perf_counter() - t, (k() - a) / 1e6)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    opened, grown = (float(v) for v in run.stdout.split())
    grid = open_table(path)
    rng = np.random.default_rng(2)
    n = 2_000_000
    mu, log10_sigma, out = rng.uniform(-10, 10, n), rng.uniform(-1, 1, n), np.empty(n)
    t, u = (mu + 10.0) * 1000.0, (log10_sigma + 1.0) * 1000.0
    i = np.minimum(t.astype(np.int64), grid.values.shape[1] - 2)
    j = np.minimum(u.astype(np.int64), grid.values.shape[2] - 2)
    bare = best(lambda: four_loads(grid.values[0], i, j, t - i, u - j, out))
    ours = best(lambda: many_lookups(grid.values, grid.axes(), mu, log10_sigma, out))
    return [
        ("open_table", 1e3 * opened, "ms"),
        ("open_table, resident growth", grown, "MB"),
        ("grid: bare four loads", bare / n * 1e9, "ns"),
        ("grid: lookup", ours / n * 1e9, "ns"),
        ("grid: lookup / bare four loads", ours / bare, "x"),
    ]


@kernel
def compact_lookups(coordinates, values, axes, mu, sigma, y, theta, out):
    """Coordinates and spline, without the moments of the tilted density."""
    for n in range(out.size):
        out[n] = compact_ratio(coordinates, values, axes, mu[n], sigma[n], y[n], theta)


@kernel
def grid_lookups(values, axes, mu, sigma, y, out):
    """The same work for a grid: the logarithm, the mirror, the lookup."""
    for n in range(out.size):
        out[n] = bilinear(values, axes, 0, mu[n] * y[n], np.log10(sigma[n]))[0]


def quietest(function: Callable[..., object], *columns: np.ndarray) -> float:
    """Nanoseconds per row, the best of many runs over 20 000 other rows each.

    Half a millisecond each: short enough to fall between two interruptions on a busy machine, and
    never over the same rows soon, so that a grid does not get into the cache.
    """
    size = 20_000
    function(*(column[:size] for column in columns))
    times = []
    for _ in range(3):
        for start in range(0, len(columns[0]), size):
            part = [column[start : start + size] for column in columns]
            begin = time.perf_counter()
            function(*part)
            times.append(time.perf_counter() - begin)
    return min(times) / size * 1e9


def worst(table: object, name: str, mu: np.ndarray, sigma: np.ndarray, y: np.ndarray) -> float:
    """Largest relative error of sigma* against quadrature."""
    truth = project_arrays(name, mu, sigma, y, table="exact").std
    return float(np.abs(project_arrays(name, mu, sigma, y, table=table).std / truth - 1.0).max())


def lookups(path: str | None) -> list[Row]:
    """Compact tables beside the grid: bytes, errors on both sides of its edges, nanoseconds."""
    rng = np.random.default_rng(3)
    n, few = 1_000_000, 20_000
    mu, sigma, out = rng.uniform(-10, 10, n), 10 ** rng.uniform(-1, 1, n), np.empty(20_000)
    far = rng.normal(size=few) * 300.0, 10 ** rng.uniform(1, 3, few)
    sign = rng.choice([-1.0, 1.0], n)
    counts = {"counts 0 to 50": (0, 51), "counts 1 to 500": (1, 501)}
    cases = {"probit": ("probit", sign), "heaviside": ("heaviside", sign)}
    for words, ends in counts.items():
        cases[f"poisson, {words}"] = ("poisson", rng.integers(*ends, n).astype(float))
    rows: list[Row] = []
    for words, (name, y) in cases.items():
        compact = open_table(f"{name}-compact")
        _, _, _, values, axes, coordinates = compact.source()
        theta = compact.likelihood.theta
        rows += [
            (
                f"{words}: lookup",
                quietest(
                    lambda m, s, labels, v=values, a=axes, c=coordinates, t=theta: compact_lookups(
                        c, v, a, m, s, labels, t, out
                    ),
                    mu,
                    sigma,
                    y,
                ),
                "ns",
            ),
            (f"{words}: size", values.nbytes / 1e3, "KB"),
            (
                f"{words}: error inside the grid",
                worst(None, name, mu[:few], sigma[:few], y[:few]),
                "",
            ),
            (f"{words}: error, sigma 10 to 1000", worst(None, name, *far, y[:few]), ""),
        ]
    if path is not None and Path(path).exists():
        grid = open_table(path)
        values, axes = grid.values, grid.axes()
        seconds = quietest(
            lambda m, s, y: grid_lookups(values, axes, m, s, y, out), mu, sigma, sign
        )
        rows += [
            ("probit, grid: lookup", seconds, "ns"),
            ("probit, grid: size", grid.values.nbytes / 1e3, "KB"),
            (
                "probit, grid: error inside the grid",
                worst(grid, "probit", mu[:few], sigma[:few], sign[:few]),
                "",
            ),
            ("probit, grid: error, sigma 10 to 1000", worst(grid, "probit", *far, sign[:few]), ""),
            ("probit: lookup / grid: lookup", rows[0][1] / seconds, "x"),
        ]
    return rows


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
        sweep(rules, observed, covariance, marginals, (self.tau, self.nu), 1.0, record)
        return time.perf_counter() - start


def cholesky(K: np.ndarray) -> float:
    """Seconds of LAPACK's factorisation, without the copy of the matrix."""
    copies = [np.asfortranarray(K + np.eye(len(K))) for _ in range(6)]
    return best(lambda: dpotrf(copies.pop(), lower=1, overwrite_a=1), 5)


def refreshed(K: np.ndarray, sites: Sites) -> float:
    """Seconds to recompute the posterior covariance from the sites."""
    return best(lambda: Factor(K, sites, np.zeros(len(K))).covariance(), 3)


def fits() -> list[Row]:
    """Whole fits with two hyper-parameters, from the same start, taking turns."""
    from sklearn.gaussian_process import GaussianProcessClassifier

    from qpruntime import GPClassifier

    kernel_ = peers.kernel()
    rows: list[Row] = []
    for n in (200, 500, 1000):
        X, y, _ = problem(n)
        models = {
            "ep": partial(GPClassifier(kernel_, method="ep").fit, X, y),
            "qp": partial(GPClassifier(kernel_, method="qp").fit, X, y),
            "scikit-learn (Laplace)": partial(GaussianProcessClassifier(kernel_).fit, X, y),
        }
        if has("gpboost"):
            models["GPBoost (Laplace)"] = partial(peers.gpboost_fit, X, y)
        seconds = in_turns(models, {200: 20, 500: 5, 1000: 2}[n])
        rows += [(f"N={n}: fit, {name}", s, "s") for name, s in seconds.items()]
        rows += [
            (f"N={n}: fit, ep / {name}", seconds["ep"] / s, "x")
            for name, s in seconds.items()
            if "Laplace" in name
        ]
        if has("GPy") and n <= 500:
            theirs, evidence = peers.gpy_fit(X, y)
            ours = GPClassifier(kernel_, method="ep").fit(X, y).optimum_.value
            rows.append((f"N={n}: fit, GPy (nested EP) / ep", theirs / seconds["ep"], "x"))
            rows.append((f"N={n}: log evidence, GPy - ep", evidence - ours, ""))
    return rows


def weights() -> list[Row]:
    """Fits and sites with sample weights beside those without, taking turns."""
    from qpruntime import GPClassifier

    kernel_ = peers.kernel()
    rows: list[Row] = []
    X, y, K = problem(80)
    given = np.random.default_rng(0).uniform(0.5, 2.0, 80)
    start = time.perf_counter()
    GPClassifier(kernel_).fit(X, y)
    first = time.perf_counter()
    GPClassifier(kernel_).fit(X, y, sample_weight=given)
    rows.append(("N=80: first fit", first - start, "s"))
    rows.append(("N=80: first weighted fit, after it", time.perf_counter() - first, "s"))
    models = {
        "fit": partial(GPClassifier(kernel_).fit, X, y),
        "weighted fit": partial(GPClassifier(kernel_).fit, X, y, sample_weight=given),
    }
    seconds = in_turns(models, 20)
    rows += [(f"N=80: {name}", s, "s") for name, s in seconds.items()]
    rows.append(("N=80: weighted fit / fit", seconds["weighted fit"] / seconds["fit"], "x"))
    observed = {"probit": y, "logistic": y, "poisson": np.abs(np.round(3.0 * X[:, 0]))}
    observed |= {"poisson-exp": observed["poisson"], "laplace": X[:, 0], "student-t": X[:, 0]}
    for name, values in observed.items():
        for method in ("ep", "qp"):
            run = partial(infer, K, values, name, mean=0.5, method=method)
            seconds = in_turns({"plain": run, "weighted": partial(run, weights=given)}, 5)
            ratio = seconds["weighted"] / seconds["plain"]
            rows.append((f"N=80: infer, {name}, {method}, weighted / plain", ratio, "x"))
    return rows


def in_turns(functions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Shortest of `repeat` runs of each, one after the other, so that noise hits all alike.

    A function that returns a float has taken its own time.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeat + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            own = function()
            if turn:
                taken = own if isinstance(own, float) else time.perf_counter() - start
                times[name].append(taken)
    return {name: min(seconds) for name, seconds in times.items()}


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


def corrections() -> list[Row]:
    """What corrected evidence, means and variances cost beside EP itself, and new points."""
    from qpruntime import GPClassifier

    rows: list[Row] = []
    for n in (300, 1000):
        _, y, K = problem(n)
        run = partial(infer, K, y, method="ep")

        def essentials(run: Callable[[], Posterior] = run) -> float:
            post = run()
            start = time.perf_counter()
            post.corrected_evidence()
            assert post._corrected.response is not None
            return time.perf_counter() - start

        def everything(run: Callable[[], Posterior] = run) -> float:
            post = run()
            start = time.perf_counter()
            post.corrected_evidence()
            post.marginals()
            return time.perf_counter() - start

        names = ("evidence, response and means", "all corrections")
        seconds = in_turns(
            {"infer": run, **dict(zip(names, (essentials, everything), strict=True))}, 5
        )
        rows.append((f"N={n}: infer, ep", seconds["infer"], "s"))
        rows += [
            (f"N={n}: {name} / infer", seconds[name] / seconds["infer"], "x") for name in names
        ]
    _, y, K = problem(1500)
    post = infer(K[:500, :500], y[:500], method="ep")
    new = K[500:, :500], K[500:, 500:].diagonal()
    post.corrected_evidence()
    rows.append(("N=500: marginals at 1000 new points", best(lambda: post.marginals(*new), 3), "s"))
    X, y, _ = problem(2000)
    plain = GPClassifier(peers.kernel(), method="ep")
    blend = GPClassifier(peers.kernel(), method="ep", correction="blend")
    ways = {
        "fit and 500 predictions": lambda model: model.fit(X[:500], y[:500]).predict_proba(X[:500]),
        "2000 predictions": lambda model: model.predict_proba(X),
    }
    for name, way in ways.items():
        seconds = in_turns({"plain": partial(way, plain), "blend": partial(way, blend)}, 2)
        ratio = seconds["blend"] / seconds["plain"]
        rows.append((f'N=500: {name}, correction="blend" / none', ratio, "x"))
    return rows


def predictions(n: int = 500, points: int = 100_000) -> list[Row]:
    """Predictions at many points beside scikit-learn's, which take turns, and their memory."""
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor

    X, y, _ = problem(n)
    new = np.random.default_rng(6).standard_normal((points, X.shape[1]))
    kernel_ = ConstantKernel(4.0, "fixed") * RBF(2.0, "fixed")
    noisy = X[:, 0] + 0.3 * np.random.default_rng(7).standard_t(4.0, n)
    robust = GPRobustRegressor(kernel_, scale=0.3, scale_bounds="fixed", method="ep")
    models: dict[str, Callable] = {
        "GPClassifier": GPClassifier(kernel_).fit(X, y).predict_proba,
        "GPClassifier, logistic": GPClassifier(kernel_, likelihood="logistic").fit(X, y).predict,
        "GPPoissonRegressor": partial(
            GPPoissonRegressor(kernel_).fit(X, y + 1.0).predict, return_std=True
        ),
        "GPRobustRegressor": robust.fit(X, noisy).predict,
    }
    whose: dict[str, Callable] = {
        "GaussianProcessClassifier": GaussianProcessClassifier(kernel_).fit(X, y).predict_proba,
        "GaussianProcessRegressor, std": partial(
            GaussianProcessRegressor(kernel_, alpha=0.1).fit(X, y).predict, return_std=True
        ),
    }
    tasks = {name: partial(predict, new) for name, predict in (models | whose).items()}
    seconds = in_turns(tasks, 3)
    rows = [(f"N={n}, {points} points: {name}", s, "s") for name, s in seconds.items()]
    peer = seconds["GaussianProcessClassifier"]
    rows += [(f"{name} / GaussianProcessClassifier", seconds[name] / peer, "x") for name in models]
    for name in models:
        tracemalloc.start()
        found = tasks[name]()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        parts = found if isinstance(found, tuple) else (found,)
        beside = (peak - sum(part.nbytes for part in parts)) / 1e6
        rows.append((f"{name}: memory beside the result", beside, "MB"))
    return rows


@contextlib.contextmanager
def chatter_to_stderr() -> Iterator[None]:
    """Send what peers print, from C too, to stderr: stdout is for results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def left_out(sections: list[str], path: str) -> list[str]:
    """What these sections do not measure, and why, a line each."""
    lines = []
    for peer, all_sections in PEERS.items():
        where = [name for name in all_sections if name in sections]
        if where and not has(peer):
            lines.append(f"{peer} is not installed (extra bench): skipped in {', '.join(where)}")
    where = [name for name in WITH_TABLE if name in sections]
    if where and not Path(path).is_file():
        lines.append(
            f"{path} is no file: the grid is skipped in {', '.join(where)}; "
            f"build it: tablegen build --likelihood probit --output {path}"
        )
    return lines


def main(options: Namespace) -> None:
    """Measure, print."""
    sections = options.sets
    skipped = left_out(sections, options.table)
    for line in skipped:
        print(line, file=sys.stderr, flush=True)
    results = {}
    for name in sections:
        run = SECTIONS[name]
        with chatter_to_stderr():
            rows = run(options.table) if name in WITH_TABLE else run()
        # JSON has no infinity and no NaN.
        results[name] = [
            {"what": w, "value": v if math.isfinite(v) else None, "unit": u} for w, v, u in rows
        ]
        if not options.json:
            print(f"\n{name}")
            for what, value, unit in rows:
                print(f"  {what:<52}{value:>12.4g} {unit}", flush=True)
    if options.json:
        document = {"python": platform.python_version(), "skipped": skipped, "results": results}
        print(json.dumps(document, indent=1, allow_nan=False))


SECTIONS: dict[str, Callable] = {
    "startup": startup,
    "projection": projection,
    "table": table,
    "lookup": lookups,
    "sweep": sweeps,
    "engine": engine,
    "memory": memory,
    "fit": fits,
    "corrections": corrections,
    "predict": predictions,
    "weights": weights,
}
#: Sections that take the path of a grid.
WITH_TABLE = ("table", "lookup", "sweep")
OPTIONS = {
    "sets": {"choices": list(SECTIONS), "default": list(SECTIONS), "help": "sections to run"},
    "table": {"default": "tables/probit.h5", "help": "a grid of the full size"},
    "json": {"action": "store_true", "help": "print one JSON document"},
}
