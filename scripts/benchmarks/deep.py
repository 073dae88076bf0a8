"""Deep Gaussian processes beside GPyTorch's: test log-likelihood by CPU seconds, in one run.

    python -m scripts.benchmarks deep --python PEERS/bin/python --sets boston

All train on the same rows of published split 0 (diamonds: a split of its own, log price), one
thread, two hidden units, the same number of inducing inputs. CPU seconds count everything from raw
rows on, compiling too. Each figure of a program is a run of its own, so that learning rates fall to
their end. "robust" is this package's sparse Student-t regression, without layers. GPyTorch is run
by another interpreter, which has it: its own deep GP by doubly stochastic variational inference,
linear means in hidden layers, 10 samples, Adam at .01. Records are kept in
tables/results/bench_deep.jsonl.
"""

import json
import subprocess
import sys
import time
from argparse import Namespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.data import deep as deep_data
from scripts.benchmarks.data.registry import Split
from scripts.records import RESULTS, TOP

Array = NDArray[np.float64]
ONE_THREAD = True
STEPS = {"deep": (500, 1000, 2000, 4000), "gpytorch": (200, 500, 1000, 2000), "robust": (0,)}
INDUCING, BATCH, HIDDEN, SAMPLES = 50, 100, 2, 10


def rows(name: str) -> Split:
    """Training and test rows."""
    X, y = deep_data.load(name)
    train, test = deep_data.split(len(y), 0)
    return Split(X[train], y[train], X[test], y[test])


def deep(name: str, steps: int) -> dict[str, float]:
    """This package's: two layers."""
    from qpruntime.deep import DeepGPRegressor

    begun = time.process_time()
    X, y, new, target = rows(name)
    options = {"inducing": INDUCING, "batch_size": BATCH, "max_iter": steps, "least_gain": -0.5}
    model = DeepGPRegressor((HIDDEN,), random_state=0, **options).fit(X, y)
    cpu = time.process_time() - begun
    return judged(model.predict_log_density(new, target), model.predict(new), target, cpu)


def gpytorch(name: str, steps: int) -> dict[str, float]:
    """GPyTorch's deep GP."""
    begun = time.process_time()
    from scripts.benchmarks.peers import deep_gp

    data = rows(name)
    size = deep_gp.Size(INDUCING, BATCH, HIDDEN, SAMPLES)
    density, mean, cpu = deep_gp.fitted(data, steps, size, begun)
    return judged(density, mean, data.y_test, cpu)


def robust(name: str, steps: int) -> dict[str, float]:
    """This package's regression by inducing points; it has no number of steps."""
    from scripts.benchmarks.peers import shallow

    X, y, new, target = rows(name)
    each, mean, more = shallow.robust(X, y, new, target, INDUCING)
    return judged(each, mean, target, more["cpu"])


def judged(density: Array, mean: Array, target: Array, cpu: float) -> dict[str, float]:
    """One mark."""
    rmse = float(np.sqrt(np.mean((mean - target) ** 2)))
    return {"cpu": cpu, "log_density": float(np.mean(density)), "rmse": rmse}


OPTIONS = {
    "sets": {"default": ["boston"]},
    "models": {"choices": STEPS, "default": list(STEPS), "help": "programs"},
    "python": {"default": sys.executable},
    "kept": {"default": RESULTS / "bench_deep.jsonl"},
    "one": {"nargs": 3, "metavar": ("PROGRAM", "DATA", "STEPS"), "help": "in this process"},
}


def main(options: Namespace) -> None:
    """Run the programs, each figure in a process of its own."""
    if options.one:
        program, name, steps = options.one
        known = {"deep": deep, "gpytorch": gpytorch, "robust": robust}
        print(json.dumps(known[program](name, int(steps))))
        return
    lines = options.kept.read_text().splitlines() if options.kept.exists() else []
    kept = {(one["data"], one["program"]): one for one in map(json.loads, lines)}
    for name in options.sets:
        for program in options.models:
            record: dict[str, Any] = {"data": name, "program": program, "marks": []}
            for steps in STEPS[program]:
                python = options.python if program == "gpytorch" else sys.executable
                mark = {"steps": steps, **measured(python, program, name, steps)}
                record["marks"].append(mark)
                print(name, program, mark, file=sys.stderr, flush=True)
            kept[name, program] = record
            options.kept.write_text("".join(json.dumps(one) + "\n" for one in kept.values()))


def measured(python: str, program: str, name: str, steps: int) -> dict[str, float]:
    """One figure, in a process of its own."""
    command = [python, "-m", "scripts.benchmarks", "deep", "--one", program, name, str(steps)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found
