"""One fit of the paper's experiments: split, standardise, optimise, infer, test.

`run` takes a `Task` and the data and returns one plain dictionary, which is what
`table1` keeps. Nothing here reads or writes files, so that a task runs on any machine.

Blocks:

``main``  EP at the maximum of its evidence, and QP at the same hyper-parameters; the optimiser
          moves softplus^-1 of the parameters, as GPy does, from which the published numbers come
``log``   the same, but the optimiser moves their logarithms, as GPClassifier does
``grid``  the same QP on the paper's bounded grid, with three rules for what falls outside
``vb``    the variational Gaussian approximation at the maximum of its bound
``ard``   as ``log`` with one length-scale per feature
``loo``   EP and QP at the maximum of EP's leave-one-out log predictive density
``time``  best of three runs of EP and of QP by compact table, by the paper's grid, by quadrature
``all``   as ``main``, with folds that test every row (the paper never tests the remainder)
``corrected``  EP and QP as ``main``, and EP corrected: predictions by `Posterior.marginals`
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel

from qpruntime import (
    ConvergenceWarning,
    CorrectionWarning,
    GPClassifier,
    GPPoissonRegressor,
    NumericalError,
    Posterior,
    infer,
    open_table,
)
from qpruntime.estimators.predictive.density import log_pmf, mode
from qpruntime.inference.dense.factor import Factor
from qpruntime.inference.dense.stored import Kept
from qpruntime.inference.posterior import Sites
from qpruntime.learning.family import KernelFamily
from qpruntime.learning.objective import Objective
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.quadrature.sigma_star import OK, exact_point

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

BLOCKS = ("main", "log", "vb", "grid", "time", "ard", "loo", "all", "corrected")
FOLDS = 10
#: Rounds of Table 1; a round of Mining is one split in two.
ROUNDS = {"mining": 200}
ROUNDS_OTHERWISE = 100
#: What falls outside the paper's grid: EP's deviation, the integral, or the value at the edge.
OUTSIDE = ("ep", "exact", "clamp")
#: The paper's grid: -10 <= mu <= 10 and 0.1 <= sigma <= 10.
GRID_MU, GRID_SIGMA = 10.0, (0.1, 10.0)


class Task(NamedTuple):
    """What identifies one fit."""

    data: str
    block: str
    round: int
    fold: int


def folds(data: str, block: str) -> int:
    """Return the number of folds in a round."""
    return 1 if data == "mining" else FOLDS


def rounds(data: str) -> int:
    """Return the number of rounds in Table 1."""
    return ROUNDS.get(data, ROUNDS_OTHERWISE)


def split(task: Task, m: int) -> tuple[Rows, Rows]:
    """Rows to train on and rows to test.

    Mining: each year goes to either side with probability 1/2. Otherwise fold k of a permutation
    has floor(m/10) rows, which leaves m mod 10 rows always in training; block ``all`` spreads them.
    """
    random = np.random.RandomState(task.round)
    if task.data == "mining":
        train = random.rand(m) > 0.5
        return np.flatnonzero(train), np.flatnonzero(~train)
    order = random.permutation(m)
    if task.block == "all":
        test = np.array_split(order, FOLDS)[task.fold]
    else:
        size = m // FOLDS
        test = order[task.fold * size : (task.fold + 1) * size]
    return np.setdiff1d(order, test), test


def start_kernel(features: int, ard: bool = False) -> Kernel:
    """Return the squared exponential, all parameters 1; bounds as those of GPClassifier."""
    scale = np.ones(features) if ard else 1.0
    return ConstantKernel(1.0, (1e-6, 1e10)) * RBF(scale, (1e-4, 1e5))


class Fold:
    """Training and test data of one task, and how a posterior at them is scored."""

    def __init__(self, task: Task, X: Array, y: Array) -> None:
        train, test = split(task, len(y))
        self.task = task
        self.counts = task.data == "mining"
        self.likelihood = "poisson" if self.counts else "probit"
        self.y, self.y_test = y[train], y[test]
        self.X, self.X_test = X[train], X[test]
        if not self.counts:
            centre, scale = self.X.mean(axis=0), self.X.std(axis=0)
            scale[scale == 0.0] = 1.0
            self.X, self.X_test = (self.X - centre) / scale, (self.X_test - centre) / scale
        self.mean = 1.0 if self.counts else 0.0

    def fit(self, method: str, ard: bool = False, **options: Any) -> Any:
        """Return an estimator with its hyper-parameters at the optimum of its objective."""
        kernel = start_kernel(self.X.shape[1], ard)
        if self.counts:
            return GPPoissonRegressor(kernel, method=method, mean=1.0, **options).fit(
                self.X, self.y
            )
        return GPClassifier(kernel, method=method, **options).fit(self.X, self.y)

    def softplus_optimum(self) -> tuple[Kernel, dict[str, Any]]:
        """Maximise EP's evidence over x, the parameters being log(1 + e^x).

        Where the evidence has several maxima the path decides which one is found. On Pima, whose
        rows repeat, a quarter of these paths end at a length-scale that tells repeated rows apart.
        """
        start, kernel = time.perf_counter(), start_kernel(self.X.shape[1])
        projector = Projector(self.likelihood, "ep")
        prior = np.full(len(self.y), self.mean)
        family = KernelFamily(kernel, self.X, prior)
        objective = Objective(family, self.y, projector, 1e-6, 100)

        def negative(x: Array) -> tuple[float, Array]:
            value = np.maximum(np.logaddexp(0.0, x), 1e-10)
            result, slope = objective(np.log(value))
            return result, slope / value * -np.expm1(-value)

        found = minimize(
            negative,
            np.log(np.expm1(np.ones(kernel.n_dims))),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "ftol": 1e-9},
        )
        theta = np.log(np.maximum(np.logaddexp(0.0, found.x), 1e-10))
        return kernel.clone_with_theta(theta), {
            "theta": [float(f"{t:.12g}") for t in theta],
            "seconds": round(time.perf_counter() - start, 4),
            "iterations": int(found.nit),
            "evaluations": objective.evaluations,
            "success": bool(found.success),
        }

    def score(self, kernel: Kernel, post: Posterior) -> dict[str, Any]:
        """Test error and negative test log-likelihood."""
        mean, variance = post.predict(
            kernel(self.X_test, self.X), kernel.diag(self.X_test), self.mean
        )
        if self.counts:
            found = {
                "te": np.abs(mode(mean, variance) - self.y_test).mean(),
                "ntll": -log_pmf(mean, variance, self.y_test, "gamma").mean(),
                "ntll_exact": -log_pmf(mean, variance, self.y_test, "exact").mean(),
            }
        else:
            score = self.y_test * mean / np.sqrt(1.0 + variance)
            # 0 counts as the class -1, as p > 1/2 is what is asked.
            found = {
                "te": np.mean(np.where(mean > 0.0, 1.0, -1.0) != self.y_test),
                "ntll": -log_ndtr(score).mean(),
            }
        return {
            **{name: round(float(value), 9) for name, value in found.items()},
            "variance": variance,
            "converged": bool(post.converged),
            "sweeps": post.n_sweeps,
            "evidence": round(post.log_evidence, 6),
        }


def run_packed(arguments: tuple) -> dict[str, Any]:
    """Call `run` with these arguments: executors call functions of one."""
    return run(*arguments)


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
            record["methods"] = _on_grid(fold, kernel, options["grid"])
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
        model = fold.fit("ep", objective="loo")
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


def _both(fold: Fold, kernel: Kernel, record: dict, keep: bool) -> dict[str, Any]:
    """EP and QP from scratch at the same hyper-parameters, and Theorem 2 at QP's cavities."""
    K, found, variances, posts = kernel(fold.X), {}, {}, {}
    for method in ("ep", "qp"):
        start = time.perf_counter()
        post = infer(K, fold.y, fold.likelihood, method=method, mean=fold.mean)
        seconds = time.perf_counter() - start
        scores = fold.score(kernel, post)
        variances[method] = scores.pop("variance")
        found[method] = {**scores, "seconds": round(seconds, 5)}
        posts[method] = post
    ep, qp = variances["ep"], variances["qp"]
    record["theorem2"] = _equal_cavities(fold, posts["qp"])
    record["predictive"] = _not_above(qp, ep)
    record["marginal"] = _not_above(posts["qp"].variance, posts["ep"].variance)
    if keep:
        record["variances"] = [[float(f"{v:.6g}") for v in values] for values in (ep, qp)]
    return found


def _corrected(fold: Fold, kernel: Kernel) -> dict[str, Any]:
    """EP, QP, and EP with marginals corrected at the test points; EP's own where it is refused."""
    K, found = kernel(fold.X), {}
    for method in ("qp", "ep"):
        start = time.perf_counter()
        post = infer(K, fold.y, fold.likelihood, method=method, mean=fold.mean)
        found[method] = {**fold.score(kernel, post), "seconds": time.perf_counter() - start}
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


def _on_grid(fold: Fold, kernel: Kernel, path: str) -> dict[str, Any]:
    """QP with a bounded grid and the three rules for what falls outside."""
    K, found = kernel(fold.X), {}
    for rule in OUTSIDE:
        start = time.perf_counter()
        if rule == "clamp":
            sites, settled = _clamped_sites(K, fold, path)
            post = infer(K, fold.y, method="ep", sites=sites, max_sweeps=1)
            scores = fold.score(kernel, _at(post, K, sites))
            scores["converged"] = settled
        else:
            table = open_table(path, outside=rule)
            post = infer(K, fold.y, method="qp", table=table)
            scores = fold.score(kernel, post)
            inside, outside = post.lookups
            scores["lookups"] = [inside, outside]
        del scores["variance"]
        mu, sigma = cavities(post)
        low, high = GRID_SIGMA
        beyond = (np.abs(mu) > GRID_MU) | (sigma < low) | (sigma > high)
        found[f"qp_{rule}"] = {
            **scores,
            "seconds": round(time.perf_counter() - start, 5),
            "outside": [int(beyond.sum()), int((sigma > high).sum()), beyond.size],
        }
    return found


def _timed(fold: Fold, kernel: Kernel, path: str) -> dict[str, Any]:
    """EP and QP from the prior, sequential sweeps, sigma* found in three ways."""
    ways: dict[str, Any] = {"ep": None, "qp": None, "qp_grid": path, "qp_exact": "exact"}
    if fold.counts:
        del ways["qp_grid"]
    K, found = kernel(fold.X), {}
    for name, table in ways.items():
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            post = infer(K, fold.y, fold.likelihood, name[:2], table, fold.mean)
            seconds.append(time.perf_counter() - start)
        scores = fold.score(kernel, post)
        del scores["variance"]
        found[name] = {**scores, "seconds": round(min(seconds), 6)}
    return found


def _at(post: Posterior, K: Array, sites: Sites) -> Posterior:
    """Return `post` moved to other sites."""
    factor = Factor(K, sites, np.zeros(len(K)))
    variance, _ = factor.marginals()
    return replace(post, sites=sites, mean=factor.mean, variance=variance, factor=Kept(factor))


def _clamped_sites(K: Array, fold: Fold, path: str) -> tuple[Sites, bool]:
    """Sites of QP where a cavity outside the grid reads sigma* at the grid's edge.

    Damped parallel updates; the engine has no such rule, because it is wrong.
    """
    table, n = open_table(path), len(K)
    sites, damping, last = Sites(np.zeros(n), np.zeros(n)), 0.5, np.inf
    for _ in range(400):
        factor = Factor(K, sites, np.zeros(n))
        variance, kept = factor.marginals()
        mu, sigma = (factor.mean - variance * sites.nu) / kept, np.sqrt(variance / kept)
        edge_mu = np.clip(mu, -GRID_MU + 1e-9, GRID_MU - 1e-9)
        edge_sigma = np.clip(sigma, GRID_SIGMA[0] * (1 + 1e-9), GRID_SIGMA[1] * (1 - 1e-9))
        star, _ = table.lookup(edge_mu, edge_sigma, fold.y)
        mean = project_arrays("probit", mu, sigma, fold.y, method="ep").mean
        tau = np.maximum(star**-2 - sigma**-2, 0.0)
        nu = mean * (sigma**-2 + tau) - mu / sigma**2
        change = np.sqrt(
            np.mean(
                np.concatenate([(tau - sites.tau) * variance, (nu - sites.nu) * variance**0.5]) ** 2
            )
        )
        if change < 1e-6:
            return sites, True
        if change > last:
            damping = max(0.7 * damping, 0.02)
        last = change
        sites = Sites(sites.tau + damping * (tau - sites.tau), sites.nu + damping * (nu - sites.nu))
    return sites, False


def _not_above(qp: Array, ep: Array) -> list[float]:
    """Return how many, of how many, are not larger, and the largest ratio."""
    # Both fixed points are known to about 1e-6.
    return [int((qp <= ep * (1.0 + 1e-6)).sum()), qp.size, round(float((qp / ep).max()), 8)]


def cavities(post: Posterior) -> tuple[Array, Array]:
    """Return mean and standard deviation of every cavity."""
    kept = 1.0 - post.sites.tau * post.variance
    return (post.mean - post.variance * post.sites.nu) / kept, np.sqrt(post.variance / kept)


def _equal_cavities(fold: Fold, post: Posterior) -> list[float]:
    """Count sites with sigma* <= sigma_EP at QP's cavities; neither is clipped by the other.

    Returns how many, of how many, and the largest ratio of the two.
    """
    likelihood = get(fold.likelihood)
    theta, _, has_frame, split_, _, frame = likelihood.functions()
    out, held, largest = np.empty((1, 4)), 0, 0.0
    for mu, sigma, y in zip(*cavities(post), fold.y, strict=True):
        status = exact_point(split_, frame, has_frame, mu, sigma, y, theta, out)
        if status != OK:
            return [held, len(fold.y), float("nan")]
        assert likelihood.moments is not None
        ratio = out[0, 3] / np.sqrt(likelihood.moments(mu, sigma, y, theta)[2])
        held += ratio <= 1.0 + 1e-12  # both are good to about 1e-13
        largest = max(largest, ratio)
    return [int(held), len(fold.y), round(float(largest), 14)]
