"""Constrained Bayesian optimisation: PESC beside expected improvement, Thompson and random search.

    python -m scripts.benchmarks bayesopt --sets gramacy --seeds 20
    python -m scripts.benchmarks bayesopt --report     # tables/results/bench_bayesopt.md and .png
    python -m scripts.benchmarks bayesopt --times --sets gramacy gardner2 hartmann6  # CPU of an ask

A run that is done is a line of tables/results/bench_bayesopt.jsonl and is not done again; one that
was stopped begins anew. All methods start from the same design, model the functions alike and
recommend alike: they differ in where they evaluate. BoTorch's methods are left out unless it is
installed, which is said. Times are kept in bench_bayesopt_times.jsonl beside the runs;
docs/bayesian-optimisation.md has both.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import ConvergenceWarning
from qpruntime.bayesopt import Optimizer, sample_minimisers
from qpruntime.bayesopt.search import maximise
from scripts.benchmarks import bayesopt_times as times
from scripts.records import RESULTS, Records
from scripts.reports import bayesopt as report

Array = NDArray[np.float64]
ONE_THREAD = True
#: How far a recommendation may be infeasible.
SLACK = 1e-3


class Problem(NamedTuple):
    """f and c of one point, the box, the value of the optimum, and what counts as its gap.

    `worst` is the gap of a point that is not feasible, `marks` numbers of evaluations at which
    recommendations are taken.
    """

    bounds: list[tuple[float, float]]
    objective: Callable[[Array], float]
    constraints: Callable[[Array], list[float]]
    optimum: float
    worst: float
    marks: tuple[int, ...]

    def gap(self, x: Array) -> float:
        """Distance from the optimum, or the worst if x is infeasible."""
        feasible = min(self.constraints(x), default=0.0) >= -SLACK
        return float(self.objective(x)) - self.optimum if feasible else self.worst


def hartmann(x: Array) -> float:
    """Hartmann's function of six variables."""
    a = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    p = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    return float(-np.exp(-(a * (x - p) ** 2).sum(axis=1)) @ [1.0, 1.2, 3.0, 3.2])


@cache
def digits() -> tuple[Array, Array]:
    """The first 400 handwritten digits of scikit-learn, pixels from 0 to 1."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X[:400] / 16.0, y[:400]


def svc_error(x: Array) -> float:
    """Error in 4 folds of a support vector machine; x is log10 of C and of gamma."""
    from sklearn.model_selection import cross_val_score

    X, y = digits()
    return float(1.0 - np.mean(cross_val_score(svc(x), X, y, cv=4)))


def svc_size(x: Array) -> float:
    """How far its support vectors, by which prediction takes time, are below 220; in hundreds."""
    X, y = digits()
    return float(2.2 - svc(x).fit(X, y).n_support_.sum() / 100.0)


def svc(x: Array) -> Any:
    """The machine itself."""
    from sklearn.svm import SVC

    return SVC(C=10.0 ** x[0], gamma=10.0 ** x[1])


PROBLEMS = {
    "gramacy": Problem(
        [(0.0, 1.0)] * 2,
        lambda x: x[0] + x[1],
        lambda x: [
            x[0] + 2 * x[1] + 0.5 * np.sin(2 * np.pi * (x[0] ** 2 - 2 * x[1])) - 1.5,
            1.5 - x[0] ** 2 - x[1] ** 2,
        ],
        0.5997880,
        1.132,
        (5, 10, 15, 20, 25, 30),
    ),
    "gardner2": Problem(
        [(0.0, 6.0)] * 2,
        lambda x: np.sin(x[0]) + x[1],
        lambda x: [-0.95 - np.sin(x[0]) * np.sin(x[1])],
        0.2532358,
        6.75,
        (10, 15, 20, 25, 30),
    ),
    "hartmann6": Problem(
        [(0.0, 1.0)] * 6,
        hartmann,
        lambda x: [1.0 - float(np.linalg.norm(x))],
        -3.322368,
        3.33,
        (20, 30, 40, 50, 60),
    ),
    # The optimum is the best of a grid of 17 x 17.
    "svc": Problem(
        [(-1.0, 3.0), (-4.0, 0.0)],
        svc_error,
        lambda x: [svc_size(x)],
        0.0175,
        1.0,
        (8, 12, 16, 20, 25),
    ),
}
#: What an evaluation of each function costs: 4 fits, and 1.
COSTS = {"svc": [4.0, 1.0]}
#: Problems whose objective is noisy; the others are known to have none.
NOISY = {"svc"}


def improvement(opt: Optimizer, problem: Problem, rng: np.random.Generator) -> Array:
    """Expected improvement times the probability of feasibility; that alone before any is known."""
    s = opt.surrogates()
    y = np.array([one.y for one in s])
    feasible = (y[1:] >= 0.0).all(axis=0)
    best = y[0, feasible].min() if feasible.any() else None

    def worth(U: Array) -> Array:
        total = np.zeros(len(U))
        for one in s[1:]:
            mean, variance = one.predict(U)
            total += log_ndtr(mean / np.sqrt(variance + 1e-12))
        if best is not None:
            mean, variance = s[0].predict(U)
            sd = np.sqrt(variance + 1e-12)
            z = (best - mean) / sd
            density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
            total += np.log(np.maximum(sd * (z * ndtr(z) + density), 1e-300))
        return total[None]

    near = s[0].X[np.argsort(y[0])[:5]]
    return maximise(worth, near, opt.d, rng)[0]


def thompson(opt: Optimizer, problem: Problem, rng: np.random.Generator) -> Array:
    """Minimiser of one draw of all functions."""
    box = [(0.0, 1.0)] * opt.d
    return sample_minimisers(opt.surrogates(), box, 1, random_state=rng).X_star[0]


def at_random(opt: Optimizer, problem: Problem, rng: np.random.Generator) -> Array:
    """Anywhere."""
    return rng.random(opt.d)


RIVALS = {"ei": improvement, "thompson": thompson, "random": at_random}
OWN: dict[str, dict[str, Any]] = {
    "pesc": {},
    "pesc-qp": {"method": "qp"},
    "pesc-slice": {"hyper": 5},
    "pesc-matern": {"kernel": "matern"},
    "pesc-flat": {"kernel": ConstantKernel() * RBF([0.5, 0.5], (1e-3, 1e3))},
    "pesc-decoupled": {},
}


class Run(NamedTuple):
    """Key of a record."""

    problem: str
    method: str
    seed: int


def run(task: Run) -> dict[str, Any]:
    """One optimisation: gaps of recommendations and of the best feasible point seen."""
    problem = PROBLEMS[task.problem]
    K = len(problem.constraints(np.array([0.5] * len(problem.bounds))))
    own = OWN.get(task.method, {})
    noise = None if task.problem in NOISY else 0.0
    opt = Optimizer(problem.bounds, K, noise=noise, random_state=task.seed, **own)
    low, high = np.array(problem.bounds).T
    decoupled = task.method == "pesc-decoupled"
    best, seconds = problem.worst, []
    record: dict[str, Any] = {**task._asdict(), "recommended": {}, "observed": {}}
    for n in range(1, max(problem.marks) * (K + 1 if decoupled else 1) + 1):
        start = time.perf_counter()
        if decoupled:
            x, j = opt.ask(decoupled=True, cost=COSTS.get(task.problem))
            values = [problem.objective(x), *problem.constraints(x)]
            only = np.full(K + 1, np.nan)
            only[j] = values[j]
            opt.tell(x, f=only[0], c=only[1:])
        else:
            if n <= opt.n_initial or task.method in OWN:
                x = opt.ask()
            else:
                rng = np.random.default_rng([task.seed, 7, n])
                x = low + (high - low) * RIVALS[task.method](opt, problem, rng)
            opt.tell(x, f=problem.objective(x), c=problem.constraints(x) if K else None)
            if min(problem.constraints(x), default=0.0) >= 0.0:
                best = min(best, float(problem.objective(x)) - problem.optimum)
        seconds.append(time.perf_counter() - start)
        if n in problem.marks or (decoupled and n % 3 == 0 and n >= 12):
            record["recommended"][str(n)] = problem.gap(opt.recommend())
            record["observed"][str(n)] = best
    record["seconds"] = float(np.mean(seconds[opt.n_initial :]))
    return record


OPTIONS = {
    "sets": {"choices": PROBLEMS, "default": ["gramacy"], "help": "problems"},
    "models": {"choices": [*OWN, *RIVALS], "default": ["pesc", *RIVALS], "help": "methods"},
    "seeds": {"default": 20},
    "first": {},
    "kept": {"default": RESULTS / "bench_bayesopt.jsonl"},
    "report": {},
    "times": {"action": "store_true", "help": "CPU of an ask and a conditioning"},
    "sizes": {"type": int, "nargs": "+", "default": [30, 300], "help": "of --times"},
    "repeats": {"type": int, "default": 5, "help": "of --times"},
}


def main(options: Namespace) -> None:
    """Run what is asked for and is not there, or write the report."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.times:
        target = options.kept.with_name(f"{options.kept.stem}_times.jsonl")
        for name in options.sets:
            for size in options.sizes:
                rows = times.measure(name, PROBLEMS[name], improvement, size, options.repeats)
                times.write(rows, target)
        return
    records: Records[Run] = Records(options.kept, Run)
    if options.report:
        report.write(records.records.values(), options.kept.parent)
        return
    if importlib.util.find_spec("botorch") is None:
        print("botorch is not installed: its constrained methods are left out", file=sys.stderr)
    for seed in range(options.first, options.first + options.seeds):
        for problem in options.sets:
            for method in options.models:
                task = Run(problem, method, seed)
                if task not in records:
                    record = run(task)
                    records.add(record)
                    gaps = [f"{v:.4g}" for v in record["recommended"].values()]
                    seen = [f"{v:.4g}" for v in record["observed"].values()]
                    print(*task, *gaps[-6:], "seen", *seen[-6:], flush=True)
