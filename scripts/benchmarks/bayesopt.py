"""Constrained Bayesian optimisation: PESC beside expected improvement, Thompson and random search.

    python -m scripts.benchmarks bayesopt --sets gramacy --seeds 20
    python -m scripts.benchmarks bayesopt --report     # median gaps of what is kept
    python -m scripts.benchmarks bayesopt --times --sets gramacy gardner2 hartmann6  # CPU of an ask

A run that is done is a line of tables/results/bench_bayesopt.jsonl and is not done again; one that
was stopped begins anew. All methods start from the same design, model the functions alike and
recommend alike: they differ in where they evaluate. Times are kept in bench_bayesopt_times.jsonl
beside the runs; docs/bench-bayesopt.md has both.
"""

import time
import warnings
from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import ConvergenceWarning
from qpruntime.bayesopt import Optimizer, sample_minimisers
from qpruntime.bayesopt.acquisition import log_improvement
from qpruntime.bayesopt.search import maximise
from scripts.benchmarks import bayesopt_times as times
from scripts.benchmarks.bayesopt_problems import COSTS, NOISY, PROBLEMS, Array, Problem
from scripts.records import RESULTS, Records
from scripts.reports import bayesopt as report

ONE_THREAD = True


def improvement(opt: Optimizer, problem: Problem, rng: np.random.Generator) -> Array:
    """Expected improvement times the probability of feasibility; that alone before any is known."""
    s = opt.surrogates()
    y = np.array([one.y for one in s])
    feasible = (y[1:] >= 0.0).all(axis=0)
    best = y[0, feasible].min() if feasible.any() else None
    worths = log_improvement(s, best)
    near = s[0].X[np.argsort(y[0])[:5]]
    return maximise(lambda U: worths(U)[None], near, rng, opt._space)[0]


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
    """Run what is asked for and is not there, or print the report."""
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
        print(report.gaps(records.records.values()))
        return
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
