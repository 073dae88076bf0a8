"""What an `ask` and a conditioning cost, for ``bayesopt --times``: CPU seconds."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime.bayesopt import Optimizer, condition, sample_minimisers
from scripts.benchmarks.timing import best

Chosen = Callable[[Optimizer, Any, np.random.Generator], Any]


def measure(
    name: str, problem: Any, rival: Chosen, size: int, repeats: int, samples: int = 10
) -> list[dict[str, Any]]:
    """Median CPU seconds of an `ask`, of a rival's choice and of one conditioning by EP.

    The first of each is not counted. `size` evaluations are known at the first that is, one more
    at every next, as in use: hyper-parameters are learnt anew each time.
    """
    low, high = np.array(problem.bounds).T
    rng = np.random.default_rng(0)
    K = len(problem.constraints(0.5 * (low + high)))
    opt = Optimizer(problem.bounds, K, noise=0.0, n_samples=samples, random_state=0)

    def tell(x: Any) -> None:
        opt.tell(x, f=problem.objective(x), c=problem.constraints(x) if K else None)

    for x in low + (high - low) * rng.random((size - 1, len(low))):
        tell(x)
    spent: dict[str, list[float]] = {"ask": [], "ei": [], "conditioning": []}
    for _ in range(repeats + 1):
        # The fit of hyper-parameters is kept while the data stay the same: the rival gets its own.
        other = Optimizer(problem.bounds, K, noise=0.0, random_state=0)
        for record in opt._history.records:
            other.tell(record.x, f=record.values[0], c=record.values[1:] if K else None)
        call = partial(rival, other, problem, np.random.default_rng(1))
        spent["ei"].append(best(call, 1, time.process_time))
        start = time.process_time()
        x = opt.ask()
        spent["ask"].append(time.process_time() - start)
        tell(x)
    surrogates = opt.surrogates()
    box = [(0.0, 1.0)] * len(low)
    for star in sample_minimisers(surrogates, box, repeats + 1, random_state=0).X_star:
        call = partial(condition, surrogates, star)
        spent["conditioning"].append(best(call, 1, time.process_time))
    shared = {"problem": name, "d": len(low), "K": K, "N": size, "samples": samples}
    return [
        {**shared, "what": what, "seconds": float(np.median(taken[1:])), "repeats": repeats}
        for what, taken in spent.items()
    ]


def write(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Keep the rows, one a line, in place of those of the same problem and size; and print them."""
    kept = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    new = {(row["problem"], row["N"]) for row in rows}
    kept = [row for row in kept if (row["problem"], row["N"]) not in new]
    lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in [*kept, *rows]]
    path.write_text("".join(lines))
    for row in rows:
        print(
            f"{row['problem']:10} d = {row['d']}, K = {row['K']}, N = {row['N']:3}: "
            f"{row['what']:12} {1e3 * row['seconds']:8.1f} ms of CPU",
            flush=True,
        )
