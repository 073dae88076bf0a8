"""Counts at many places: a mesh, GPBoost's Vecchia approximation, and inducing points beside.

    python -m scripts.studies places --rows 10000 100000
    python -m scripts.studies places --rows 1000000 --models mesh --kept FILE
    python -m scripts.studies places --report

Counts are Poisson with log rate .5 + .7 f at places that are uniform in a square, f a Matern 3/2
process by 2000 random waves, whose length-scale is 6 typical distances of places: neither a mesh
nor neighbours see more or less of it when rows are more. A tenth as many places are held out,
5000 at least. Nodes of the mesh are .27 length-scales apart at 10^4 rows or fewer, and as many as
rows otherwise, above 2 x 10^5 rows of halved squares. Each model runs in a process of its own with
one thread, cut off after --seconds of CPU; CPU seconds, and the most memory that was the process's
own.
"""

from __future__ import annotations

import multiprocessing
import queue
import resource
import time
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, roots_hermitenorm

from scripts.benchmarks.timing import Own
from scripts.records import RESULTS, Records

Array = NDArray[np.float64]
ONE_THREAD = True

_WAVES, _PART = 2000, 20_000
#: Nodes of Gauss-Hermite's rule, for log densities of counts.
_NODES = 40
#: Rows above which the mesh is of halved squares: to join a million points takes minutes.
_JOINED = 200_000
_Z90 = 1.6448536269514722


class Seen(NamedTuple):
    """Places, counts and true log rates, of the fit and held out."""

    X: Array
    y: Array
    X_new: Array
    y_new: Array
    f_new: Array
    length: float


def drawn(n: int) -> Seen:
    """One set of data."""
    rng = np.random.default_rng(n)
    total = n + max(n // 10, 5000)
    length = 6.0 / np.sqrt(n)
    X = rng.uniform(size=(total, 2))
    # A Matern 3/2 process has Student waves of 3 degrees of freedom.
    waves = rng.standard_normal((2, _WAVES)) / length
    waves *= np.sqrt(3.0 / rng.chisquare(3.0, _WAVES))
    phase = rng.uniform(0.0, 2.0 * np.pi, _WAVES)
    f = np.empty(total)
    for begin in range(0, total, _PART):
        some = slice(begin, begin + _PART)
        f[some] = np.cos(X[some] @ waves + phase).sum(axis=1)
    f = 0.5 + 0.7 * np.sqrt(2.0 / _WAVES) * f
    y = rng.poisson(np.exp(f)).astype(float)
    return Seen(X[:n], y[:n], X[n:], y[n:], f[n:], length)


def spacing(seen: Seen) -> float:
    """Distance of nodes of the mesh."""
    n = len(seen.y)
    if n <= 10_000:
        return 0.27 * seen.length
    # Of a lattice of equal triangles, without what is outside the square.
    return float(np.sqrt(2.0 / (np.sqrt(3.0) * n)))


def squares(n: int, margin: float) -> Any:
    """A mesh of halved squares, n of them in the unit square, with a margin around it."""
    from qpruntime.effects import Mesh

    step = n**-0.5
    line = np.arange(-np.ceil(margin / step), np.ceil((1.0 + margin) / step) + 1.0) * step
    x, y = np.meshgrid(line, line, indexing="ij")
    own = np.arange(line.size**2).reshape(line.size, line.size)
    a, b, c, d = own[:-1, :-1], own[1:, :-1], own[:-1, 1:], own[1:, 1:]
    halves = [np.column_stack([one.ravel() for one in three]) for three in ((a, b, d), (a, d, c))]
    return Mesh(np.column_stack([x.ravel(), y.ravel()]), np.vstack(halves))


def mesh(seen: Seen) -> tuple[Array, Array, dict[str, Any]]:
    """EffectsModel with a Plane; mean and variance of the log rate at held-out places."""
    from qpruntime.effects import EffectsModel, Plane

    margin = 4.0 * seen.length
    if len(seen.y) <= _JOINED:
        term = Plane("x", "y", spacing=spacing(seen), extension=margin)
    else:
        term = Plane("x", "y", mesh=squares(len(seen.y), margin))
    model = EffectsModel(
        [term], "poisson", integrate="mode", correction=None, tol=1e-4, operations=1e12
    )
    model.fit({"x": seen.X[:, 0], "y": seen.X[:, 1]}, seen.y)
    fitted = time.process_time()
    mean, variance = model.latent({"x": seen.X_new[:, 0], "y": seen.X_new[:, 1]})
    nodes = int(model.blocks_[1].mesh.size)
    return mean, variance, {"fitted": fitted, "nodes": nodes}


def vecchia(seen: Seen) -> tuple[Array, Array, dict[str, Any]]:
    """GPBoost with 10 neighbours and the right smoothness."""
    import gpboost as gpb

    model = gpb.GPModel(
        gp_coords=seen.X, cov_function="matern", cov_fct_shape=1.5, likelihood="poisson",
        gp_approx="vecchia", num_neighbors=10, num_parallel_threads=1,
    )  # fmt: skip
    ones = np.ones((len(seen.y), 1))
    model.fit(y=seen.y, X=ones)
    fitted = time.process_time()
    found = model.predict(
        gp_coords_pred=seen.X_new, X_pred=np.ones((len(seen.y_new), 1)),
        predict_var=True, predict_response=False,
    )  # fmt: skip
    return found["mu"], found["var"], {"fitted": fitted}


def nearest(seen: Seen) -> tuple[Array, Array, dict[str, Any]]:
    """GPPoissonRegressor as it comes, with rates e^f."""
    from qpruntime import GPPoissonRegressor

    model = GPPoissonRegressor(link="exp", method="ep", random_state=0).fit(seen.X, seen.y)
    fitted = time.process_time()
    mean, variance = model.latent(seen.X_new)
    return mean, variance, {"fitted": fitted, "engine": str(model.engine_)}


MODELS: dict[str, tuple[str, Callable[[Seen], tuple[Array, Array, dict[str, Any]]]]] = {
    "mesh": ("", mesh),
    "inducing points and nearest rows": ("", nearest),
    "GPBoost, Vecchia": ("gpboost", vecchia),
}


def log_density(y: Array, mean: Array, variance: Array) -> Array:
    """Log probability of counts whose log rates are normal, by Gauss-Hermite's rule at the peak."""
    x, w = roots_hermitenorm(_NODES)
    log_w = np.log(w / w.sum())
    f, std = mean.copy(), np.sqrt(np.maximum(variance, 1e-12))
    for _ in range(60):
        rate = np.exp(np.minimum(f, 50.0))
        f = f + np.clip((y - rate - (f - mean) / std**2) / (rate + 1.0 / std**2), -1.0, 1.0)
    width = 1.0 / np.sqrt(np.exp(f) + 1.0 / std**2)
    at = f[:, None] + width[:, None] * x
    terms = y[:, None] * at - np.exp(at) - 0.5 * ((at - mean[:, None]) / std[:, None]) ** 2
    terms += log_w + 0.5 * x**2 + np.log(width / std)[:, None]
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1)) - gammaln(y + 1.0)


def run(model: str, rows: int) -> dict[str, Any]:
    """One model on one set of data."""
    small = drawn(300)
    MODELS[model][1](small)  # kernels compile
    seen = drawn(rows)
    with Own() as own:
        begun = time.process_time()
        mean, variance, more = MODELS[model][1](seen)
        ended = time.process_time()
    std = np.sqrt(np.maximum(variance, 0.0))
    fitted = more.pop("fitted")
    return {
        "model": model,
        "rows": rows,
        "fit_seconds": fitted - begun,
        "predict_seconds": ended - fitted,
        "gigabytes": own.most / 1e9,
        "log_density": float(log_density(seen.y_new, mean, variance).mean()),
        "truth": float(log_density(seen.y_new, seen.f_new, np.full(len(mean), 1e-10)).mean()),
        "rmse": float(np.sqrt(np.mean((mean - seen.f_new) ** 2))),
        "covered": float((np.abs(mean - seen.f_new) < _Z90 * std).mean()),
        **more,
    }


def _into(found: Any, model: str, rows: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    found.put(run(model, rows))


def bounded(model: str, rows: int, seconds: int) -> dict[str, Any]:
    """The same in a process of its own that ends after so many seconds of CPU."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=_into, args=(found, model, rows, seconds))
    process.start()
    record: dict[str, Any] = {"model": model, "rows": rows}
    while process.is_alive() or not found.empty():
        try:
            record = found.get(timeout=1.0)
        except queue.Empty:
            continue
        break
    process.join()
    if "log_density" not in record:
        record |= {"limit": seconds, "code": process.exitcode}
    return record


def report(records: dict[Any, dict[str, Any]]) -> None:
    """Print the table."""
    print("| places | model | fit, s | predict, s | GB | log density | rmse | in 90 % |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for key in sorted(records, key=lambda key: (key.rows, list(MODELS).index(key.model))):
        one = records[key]
        if "limit" in one:
            print(f"| {key.rows} | {key.model} | no end in {one['limit']} | | | | | |")
            continue
        nodes = f" of {one['nodes']} nodes" if "nodes" in one else ""
        numbers = (
            f"{one['fit_seconds']:.1f} | {one['predict_seconds']:.1f} | {one['gigabytes']:.2f} | "
            f"{one['log_density']:.4f} | {one['rmse']:.3f} | {one['covered']:.3f}"
        )
        print(f"| {key.rows} | {key.model}{nodes} | {numbers} |")


OPTIONS = {
    "rows": {"default": (10_000, 100_000)},
    "models": {"choices": tuple(MODELS), "default": tuple(MODELS)},
    "seconds": {"type": int, "default": 3600, "help": "of CPU after which a model is ended"},
    "kept": {"default": RESULTS / "places.jsonl"},
    "report": {},
}


def main(options: Namespace) -> None:
    """Run what is missing."""
    records = Records(options.kept, "model rows")
    if not options.report:
        for rows in options.rows:
            for model in options.models:
                library = MODELS[model][0]
                if (model, rows) in records or (library and not find_spec(library)):
                    continue
                records.add(bounded(model, rows, options.seconds))
    report(records.records)
