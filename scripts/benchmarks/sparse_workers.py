"""Passes over rows by the workers of local clusters of several sizes, interleaved in one run.

Called by ``python -m scripts.benchmarks sparse_size --workers 1 2``. Every cluster has workers of
one thread; the scheduler and the client are threads of this process, whose CPU seconds are kept
too. Results of all of them are the same bits, or the run ends in an error.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime.execution.resolve import executor_of
from qpruntime.inference.sparse.data import Held
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.projection.projector import Projector

#: Passes of an evaluation, in its order; "first" is the first sweep, which brings rows to workers.
STAGES = ("gather", "sweep", "gradient")
_FEATURES = 5
_ALONE: Any = {"threads_per_worker": 1, "dashboard_address": ":0", "memory_limit": 0}


def drawn(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of five features and labels of a function of two of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, _FEATURES))
    return X, np.sign(np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(rows))


def measured(counts: list[int], rows: int, size: int, rounds: int = 3) -> list[dict[str, Any]]:
    """Least seconds of each pass by so many workers, and CPU seconds of this process and of theirs.

    Raises
    ------
    SystemExit
        If the evidence, its gradient or sites differ in a bit between clusters.
    """
    from distributed import Client, LocalCluster

    X, y = drawn(rows)
    kernel, Z = ConstantKernel(2.0) * RBF(np.full(_FEATURES, 2.0)), X[:size].copy()
    rule = PowerProjector(Projector("probit", "ep"), 0.5)
    with ExitStack() as stack:
        engines, clients, found = [], [], []
        for count in counts:
            local = stack.enter_context(LocalCluster(n_workers=count, **_ALONE))
            clients.append(stack.enter_context(Client(local, set_as_default=False)))
            executor = stack.enter_context(executor_of(None, local.scheduler_address))
            engine = Engine(Held(X, y), rule, kernel, Z, executor=executor)
            first = _timed(engine.sweep)[1]
            engine.sweep()
            engines.append(engine)
            found.append(
                {"rows": rows, "inducing": size, "workers": count, "chunks": engine.rows.chunks}
                | {"first": round(first, 4)}
                | {name: np.inf for stage in STAGES for name in _names(stage)}
            )
        for _ in range(rounds):
            results = []
            for engine, client, row in zip(engines, clients, found, strict=True):
                calls = (lambda e=engine: e.move(kernel, Z), engine.sweep)
                for stage, call in zip(
                    STAGES, (*calls, lambda e=engine: e.evaluate(0)), strict=True
                ):
                    before = _used(client)
                    value, seconds, own = _timed(call)
                    told = seconds, own, _used(client) - before
                    for name, new in zip(_names(stage), told, strict=True):
                        row[name] = min(row[name], round(new, 4))
                results.append((value.value, value.by_theta, value.by_Z, *engine.sites))
            for other in results[1:]:
                if not all(map(np.array_equal, other, results[0])):
                    raise SystemExit("workers: results differ between clusters")
    return found


def _names(stage: str) -> tuple[str, str, str]:
    """Of seconds, of CPU seconds of this process, and of those of all workers."""
    return stage, f"{stage}_client", f"{stage}_workers"


def _used(client: Any) -> float:
    return sum(client.run(time.process_time).values())


def _timed(call: Any) -> tuple[Any, float, float]:
    """Return what a call gives, its seconds and the CPU seconds of this process."""
    own, start = time.process_time(), time.perf_counter()
    value = call()
    return value, time.perf_counter() - start, time.process_time() - own


def words(found: list[dict[str, Any]]) -> str:
    """One line for each cluster, with the speed against the first one."""
    base = sum(found[0][stage] for stage in STAGES)
    lines = []
    for row in found:
        total = sum(row[stage] for stage in STAGES)
        own = sum(row[f"{stage}_client"] for stage in STAGES)
        parts = ", ".join(f"{stage} {row[stage]:.2f}" for stage in ("first", *STAGES))
        lines.append(
            f"{row['rows']} rows, M = {row['inducing']}, {row['workers']} workers: {parts}; an "
            f"evaluation {total:.2f} s ({base / total:.2f} x), {own:.2f} s of CPU at the client"
        )
    return "\n".join(lines)
