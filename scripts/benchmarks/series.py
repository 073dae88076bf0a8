"""Measure series: inference and fits by size, ratios to the dense engine, bytes a point.

One core; CPU seconds, the best of several runs, all in one process, so that ratios count.
``python -m scripts.benchmarks series --most 1000000`` takes minutes, and 1e7 some GB.
GPBoost (Vecchia in order of time, 10 neighbours) is measured beside it where it is installed;
``--peers`` measures nothing else. BayesNewton is not on the package index that was tried.
``--kept FILE`` adds what was measured to ``tables/results/bench_series.json``, say, from which the
tables of docs/bench-cost.md are written.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, ExpSineSquared, Matern

from qpruntime import GPClassifier, GPPoissonRegressor, infer, infer_series
from scripts.benchmarks import timing
from scripts.benchmarks.peers.gpboost import InTime

KERNEL = ConstantKernel(2.0) * Matern(1.0, nu=1.5)
#: Values and units by name, of this run.
FOUND: dict[str, tuple[float, str]] = {}


def best(function: Callable[[], object], repeat: int) -> float:
    """CPU seconds of the fastest run, kernels being compiled."""
    return timing.best(function, repeat, time.process_time)


def series(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, 20 a unit, labels and counts of one latent function."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0.0, n / 20.0, n))
    f = 2.0 * np.sin(t) + np.cos(0.31 * t)
    labels = np.where(f + rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return t, labels, rng.poisson(np.exp(0.5 * f)).astype(float)


def show(name: str, value: float, unit: str) -> None:
    FOUND[name] = value, unit
    print(f"{name:58} {value:12.4g} {unit}", flush=True)


def inference(sizes: list[int], repeat: int) -> None:
    """Fixed points by size, and what they cost a point."""
    for n in sizes:
        t, y, counts = series(n)
        repeat = repeat if n < 10**7 else 1
        ep = best(lambda t=t, y=y: infer_series(t, y, KERNEL, method="ep"), repeat)
        qp = best(lambda t=t, y=y: infer_series(t, y, KERNEL, method="qp"), repeat)
        show(f"N={n}: probit, EP", ep, "s")
        show(f"N={n}: probit, EP, a point", ep / n * 1e9, "ns")
        show(f"N={n}: probit, QP / EP", qp / ep, "x")
        if n < 10**7:
            poisson = best(lambda t=t, c=counts: infer_series(t, c, KERNEL, "poisson-exp", "ep"), 1)
            show(f"N={n}: poisson-exp, EP", poisson, "s")


def kernels(n: int, repeat: int) -> None:
    """Larger states: a point and a pass."""
    smooth = ConstantKernel(2.0) * Matern(1.0, nu=2.5)
    quasi = ConstantKernel(2.0) * Matern(30.0, nu=1.5) * ExpSineSquared(2.0, 6.28)
    for name, kernel, some in (
        ("Matern 5/2", smooth, n),
        ("constant and Matern 5/2", ConstantKernel(1.0) + smooth, n),
        ("quasi-periodic", quasi, min(n, 2000)),
    ):
        t, y, _ = series(some)
        post = infer_series(t, y, kernel, method="ep")
        seconds = best(lambda t=t, y=y, k=kernel: infer_series(t, y, k, method="ep"), repeat)
        passes = 2 * post.n_sweeps + 1
        label = f"{name}, {post.state_dimension} states: a point and pass"
        show(label, seconds / some / passes * 1e6, "us")


def fits(sizes: list[int]) -> None:
    """Fits of two hyper-parameters."""
    for n in sizes:
        t, y, counts = series(n)
        X = t[:, None]
        labels = GPClassifier(KERNEL, method="ep", solver="markov")
        rates = GPPoissonRegressor(KERNEL, link="exp", method="ep", solver="markov")
        show(f"N={n}: fit, probit", best(lambda m=labels, X=X, y=y: m.fit(X, y), 1), "s")
        if n <= 10**5:
            show(
                f"N={n}: fit, poisson-exp", best(lambda m=rates, X=X, c=counts: m.fit(X, c), 1), "s"
            )


def against_dense(repeat: int) -> None:
    """Ratios to the dense engine, covariance included."""
    for n in (100, 200, 300, 1000):
        t, y, _ = series(n)
        ours = best(lambda t=t, y=y: infer_series(t, y, KERNEL, method="ep"), repeat + 2)
        # The first run compiles, the second wakes threads.
        dense = best(lambda t=t, y=y: infer(KERNEL(t[:, None]), y, method="ep"), repeat + 2)
        show(f"N={n}: dense / series", dense / ours, "x")


def memory(n: int) -> None:
    """Most memory of one inference beside t and y, in bytes a point; in a process of its own."""
    call = "b.infer_series(t, y, b.KERNEL, method='ep')"
    before = f"t, y, _ = b.series(100); {call}; t, y, _ = b.series(int(sys.argv[1]))"
    found = timing.grown(f"from scripts.benchmarks import series as b; {before}", call, n)
    show(f"N={n}: memory of an inference", found / n, "bytes a point")


def peer(n: int) -> None:
    """Fits of two parameters and predictions: GPBoost, where it is installed, beside ours.

    Both predict the second half of the rows, every other one, from the first; log losses tell
    whether they fit the same model.
    """
    if not timing.has("gpboost"):
        print("gpboost is not installed; pip install gpboost")
        return
    t, y, _ = series(2 * n)
    X, labels, new, truth = t[::2, None], y[::2], t[1::2, None], y[1::2] > 0.0
    ours = GPClassifier(KERNEL, method="ep", solver="markov")
    for name, model in (("GPBoost", InTime(X)), ("ours", ours)):
        p: list[np.ndarray] = []
        show(f"N={n}: {name}, fit", best(partial(model.fit, X, labels), 1), "s")
        seconds = best(lambda m=model, p=p: p.append(m.predict_proba(new)[:, 1]), 1)
        show(f"N={n}: {name}, predict", seconds, "s")
        loss = -np.mean(np.log(np.where(truth, p[0], 1.0 - p[0])))
        show(f"N={n}: {name}, log loss", float(loss), "nats")


OPTIONS = {
    "most": {"type": int, "default": 100_000, "help": "largest N"},
    "repeat": {"type": int, "default": 3},
    "peers": {"action": "store_true", "help": "GPBoost, nothing else"},
    "kept": {"help": "add the figures to this file"},
}


def main(options: Namespace) -> None:
    """Print the table."""
    try:
        measure(options)
    finally:
        if options.kept is not None:
            known = json.loads(options.kept.read_text()) if options.kept.exists() else {}
            kept = known | {name: list(row) for name, row in FOUND.items()}
            options.kept.write_text(json.dumps(kept, indent=1) + "\n")


def measure(options: Namespace) -> None:
    """Measure what is asked for."""
    sizes = [n for n in (10_000, 100_000, 1_000_000, 10_000_000) if n <= options.most]
    sizes = sizes or [options.most]
    if options.peers:
        fits([400])  # compiles
        peer(100)
        FOUND.clear()
        print()
        for n in sizes:
            peer(n)
        return
    small = min(sizes[-1], 20_000)
    inference([100], 1)  # compiles
    fits([400])
    kernels(400, 1)
    FOUND.clear()
    print()
    inference(sizes, options.repeat)
    kernels(small, options.repeat)
    fits([n for n in sizes if n <= 10**6])
    against_dense(options.repeat)
    memory(sizes[-1])
    peer(small)
