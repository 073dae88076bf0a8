"""One fit of the paper's experiments: split, standardise, optimise, infer, test.

`run` takes a `Task` and the data and returns one plain dictionary, which is what
`table1` keeps. Nothing here reads or writes files, so that a task runs on any machine.
"""

import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime import ConvergenceWarning, CorrectionWarning, NumericalError, Posterior, infer
from qpruntime.likelihoods import get
from qpruntime.predictive.density import log_pmf, mode
from qpruntime.quadrature.sigma_star_kernels import OK, exact_run
from scripts.benchmarks.data.protocol import Task
from scripts.studies import grid_edge
from scripts.studies.folds import Fold, start_kernel

Array = NDArray[np.float64]


def run(task: Task, X: Array, y: Array, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Carry out one task.

    Parameters
    ----------
    task : Task
    X, y : ndarray
        The whole data set.
    options : dict, optional
        ``theta``: the hyper-parameters of EP's optimum, where they are known already;
        ``variances``: whether to keep the predictive variances, for the figure;
        ``grid``: a table on the paper's grid, its path, for blocks ``grid`` and ``time``.

    Returns
    -------
    dict
        The task, ``theta``, ``seconds`` of optimisation, and one dictionary for each method.
    """
    from threadpoolctl import threadpool_limits

    options, start = options or {}, time.process_time()
    fold = Fold(task, X, y)
    with threadpool_limits(1), warnings.catch_warnings():
        # Each posterior says whether it converged; the report counts those that did not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", CorrectionWarning)  # the record has the spread
        kernel, record = _optimum(fold, options)
        if task.block == "grid":
            record["methods"] = grid_edge.on_grid(fold, kernel, options["grid"])
        elif task.block == "time":
            record["methods"] = _timed(fold, kernel, options["grid"])
        elif task.block == "corrected":
            record["methods"] = _corrected(fold, kernel)
        elif task.block != "vb":
            record["methods"] = _both(fold, kernel, record, bool(options.get("variances")))
    record["cpu"] = round(time.process_time() - start, 4)
    return {**task._asdict(), "n_test": len(fold.y_test), **record}


def _optimum(fold: Fold, options: dict[str, Any]) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel at the optimum of the block's objective and what led there."""
    task = fold.task
    if options.get("theta") is not None:
        kernel = start_kernel(fold.X.shape[1], task.block == "ard")
        return kernel.clone_with_theta(options["theta"]), {"theta": list(options["theta"])}
    start = time.perf_counter()
    if task.block in ("main", "all", "corrected"):
        return fold.softplus_optimum()
    if task.block == "vb":
        model = fold.fit("vb")
    elif task.block == "loo":
        model = fold.fit("ep", optimize="loo")
    else:
        model = fold.fit("ep", ard=task.block == "ard")
    seconds = time.perf_counter() - start
    optimum = model.optimum_
    record: dict[str, Any] = {
        "theta": [float(f"{t:.12g}") for t in optimum.theta],
        "seconds": round(seconds, 4),
        "iterations": optimum.n_iterations,
        "evaluations": optimum.n_evaluations,
        "success": optimum.success,
    }
    if task.block == "vb":
        scores = fold.score(model.kernel_, model.posterior_)
        del scores["variance"]
        record["methods"] = {"vb": {**scores, "seconds": round(seconds, 4)}}
    return model.kernel_, record


def _scored(
    fold: Fold, kernel: Kernel, K: Array, method: str, table: str | None = None
) -> tuple[Posterior, dict[str, Any]]:
    """A posterior from scratch, and its scores with the seconds it took."""
    start = time.perf_counter()
    post = infer(K, fold.y, fold.likelihood, method, table, fold.mean)
    seconds = time.perf_counter() - start
    return post, {**fold.score(kernel, post), "seconds": round(seconds, 6)}


def _both(fold: Fold, kernel: Kernel, record: dict, keep: bool) -> dict[str, Any]:
    """EP and QP from scratch at the same hyper-parameters, and Theorem 2 at QP's cavities."""
    K = kernel(fold.X)
    (ep, of_ep), (qp, of_qp) = (_scored(fold, kernel, K, method) for method in ("ep", "qp"))
    variances = of_ep.pop("variance"), of_qp.pop("variance")
    record["theorem2"] = _equal_cavities(fold, qp)
    record["predictive"] = _not_above(variances[1], variances[0])
    record["marginal"] = _not_above(qp.variance, ep.variance)
    if keep:
        record["variances"] = [[float(f"{v:.6g}") for v in values] for values in variances]
    return {"ep": of_ep, "qp": of_qp}


def _corrected(fold: Fold, kernel: Kernel) -> dict[str, Any]:
    """EP, QP, and EP with marginals corrected at the test points; EP's own where it is refused."""
    K, found = kernel(fold.X), {}
    for method in ("qp", "ep"):
        post, found[method] = _scored(fold, kernel, K, method)
        del found[method]["variance"]
    start = time.perf_counter()
    new = kernel(fold.X_test, fold.X), kernel.diag(fold.X_test), fold.mean
    try:
        marginals = post.marginals(*new)
    except NumericalError:
        return {**found, "blend": {**found["ep"], "converged": False}}
    log_p = marginals.log_probability(fold.y_test)
    if fold.counts:
        mean, variance = marginals.mean, marginals.variance
        wrong = np.abs(mode(mean, variance) - fold.y_test)
        scores = {
            "ntll": -log_pmf(mean, variance, fold.y_test, "gamma").mean(),
            "ntll_exact": -log_p.mean(),
        }
    else:
        wrong, scores = log_p <= np.log(0.5), {"ntll": -log_p.mean()}
    found["blend"] = {
        **{name: round(float(value), 9) for name, value in scores.items()},
        "te": float(np.mean(wrong)),
        "seconds": time.perf_counter() - start,
        "converged": True,
        "spread": float(np.nanmean(marginals.spread)),
    }
    return found


def _timed(fold: Fold, kernel: Kernel, path: str) -> dict[str, Any]:
    """EP and QP from the prior, sequential sweeps, sigma* in three ways; the best of three."""
    ways: dict[str, Any] = {"ep": None, "qp": None, "qp_grid": path, "qp_exact": "exact"}
    if fold.counts:
        del ways["qp_grid"]
    K, found = kernel(fold.X), {}
    for name, table in ways.items():
        runs = [_scored(fold, kernel, K, name[:2], table)[1] for _ in range(3)]
        found[name] = min(runs, key=lambda scores: scores["seconds"])
        del found[name]["variance"]
    return found


def _not_above(qp: Array, ep: Array) -> list[float]:
    """Return how many, of how many, are not larger, and the largest ratio."""
    # Both fixed points are known to about 1e-6.
    return [int((qp <= ep * (1.0 + 1e-6)).sum()), qp.size, round(float((qp / ep).max()), 8)]


def _equal_cavities(fold: Fold, post: Posterior) -> list[float]:
    """Count sites with sigma* <= sigma_EP at QP's cavities; neither is clipped by the other.

    Returns how many, of how many, and the largest ratio of the two.
    """
    likelihood = get(fold.likelihood)
    theta, _, has_frame, split_, _, frame = likelihood.functions()
    out, held, largest = np.empty((1, 4)), 0, 0.0
    for mu, sigma, y in zip(*grid_edge.cavities(post), fold.y, strict=True):
        means = np.array([mu])
        status = exact_run(split_, frame, has_frame, means, sigma, y, theta, out)
        if status != OK:
            return [held, len(fold.y), float("nan")]
        assert likelihood.moments is not None
        ratio = out[0, 3] / np.sqrt(likelihood.moments(mu, sigma, y, theta)[2])
        held += ratio <= 1.0 + 1e-12  # both are good to about 1e-13
        largest = max(largest, ratio)
    return [int(held), len(fold.y), round(float(largest), 14)]
