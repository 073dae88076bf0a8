"""Times of fits, corrections and predictions of the estimators, beside their peers."""

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

from qpruntime import Posterior, infer
from scripts.benchmarks.peers import gpboost, gpy as peers
from scripts.benchmarks.speed_inference import problem
from scripts.benchmarks.timing import Row, best, has, in_turns


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
            models["GPBoost (Laplace)"] = partial(gpboost.dense_fit, X, y)
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


def corrections() -> list[Row]:
    """What corrected evidence, means and variances cost beside EP itself, and new points."""
    from qpruntime import GPClassifier

    rows: list[Row] = []
    for n in (300, 1000):
        _, y, K = problem(n)
        run = partial(infer, K, y, method="ep")

        def corrected(marginals: bool, run: Callable[[], Posterior] = run) -> float:
            post = run()
            start = time.perf_counter()
            post.corrected_evidence()
            if marginals:
                post.marginals()
            else:
                assert post._correcting.corrected.response is not None
            return time.perf_counter() - start

        ways = {"evidence, response and means": False, "all corrections": True}
        tasks = {name: partial(corrected, marginals) for name, marginals in ways.items()}
        seconds = in_turns({"infer": run, **tasks}, 5)
        rows.append((f"N={n}: infer, ep", seconds["infer"], "s"))
        rows += [
            (f"N={n}: {name} / infer", seconds[name] / seconds["infer"], "x") for name in tasks
        ]
    _, y, K = problem(1500)
    post = infer(K[:500, :500], y[:500], method="ep")
    new = K[500:, :500], K[500:, 500:].diagonal()
    post.corrected_evidence()
    rows.append(("N=500: marginals at 1000 new points", best(lambda: post.marginals(*new), 3), "s"))
    X, y, _ = problem(2000)
    plain = GPClassifier(peers.kernel(), method="ep")
    blend = GPClassifier(peers.kernel(), method="ep", correction="blend")
    calls = {
        "fit and 500 predictions": lambda model: model.fit(X[:500], y[:500]).predict_proba(X[:500]),
        "2000 predictions": lambda model: model.predict_proba(X),
    }
    for name, way in calls.items():
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
    robust = GPRobustRegressor(kernel_, noise_bounds={"scale": "fixed", "start": 0.3}, method="ep")
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
