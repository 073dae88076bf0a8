"""Tables of docs/bench-cost.md: passes over rows, measured, simulated and estimated.

    python -m scripts.reports passes
    python -m scripts.reports passes --rows 1000000000 --workers 100 --inducing 500

A worker takes a time for each chunk, for each row, and for each of the 2, 3 and 5 M^2 operations a
row of the three passes of an evaluation. The client hands out two chunks for each worker, hands out
another when one comes back, and takes a time for each; sums of M(M+1)/2 numbers and 16 bytes a row
go through it. Constants are fitted to the CPU seconds of ``tables/results/sparse_workers.jsonl``,
which ``sparse_size --workers 1 2 --kept FILE`` measures. Seconds are then simulated, and
compared with those measured.
"""

from __future__ import annotations

import heapq
from argparse import Namespace
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from scripts.records import lines as records
from scripts.reports.tables import spaced, table

#: M^2 operations a row of the passes of an evaluation.
OPERATIONS = {"gather": 2.0, "sweep": 3.0, "gradient": 5.0}
#: Rows in a chunk of many, and chunks that are out for each worker.
CHUNK, AHEAD = 32_768, 2
#: Bytes a second of a network of 10 Gbit/s, and seconds until dask takes a silent worker for lost.
NETWORK, SILENT = 1.25e9, 300.0


#: Rows, inducing inputs and workers of the estimates.
_LARGE = ((10**7, 200, 10), (10**8, 500, 100), (10**9, 500, 100), (10**9, 500, 1000))
# Seconds over those of work from which on a machine was busy otherwise.
_BUSY = 1.5


class Costs(NamedTuple):
    """Seconds of a worker for a chunk, a row and an operation; of the client for a chunk."""

    chunk: float
    row: float
    operation: float
    call: float


class Problem(NamedTuple):
    """Rows, inducing inputs, workers, chunks, bytes a second between client and workers."""

    rows: int
    inducing: int
    workers: int
    chunks: int
    network: float = np.inf


def kept() -> list[dict[str, Any]]:
    """Measured passes: the last of each size and number of workers."""
    rows = records("sparse_workers.jsonl")
    return list({(row["rows"], row["inducing"], row["workers"]): row for row in rows}.values())


def fitted(points: list[dict[str, Any]]) -> Costs:
    """Costs, none negative, that come nearest to the CPU seconds of measured passes, relatively."""
    from scipy.optimize import nnls

    equations, calls = [], []
    for row in points:
        for stage, operations in OPERATIONS.items():
            flops = row["rows"] * operations * row["inducing"] ** 2
            seconds = row[f"{stage}_workers"]
            equations.append(np.array([row["chunks"], row["rows"], flops]) / seconds)
            calls.append(row[f"{stage}_client"] / row["chunks"])
    A = np.array(equations)
    scale = A.max(axis=0)
    found = nnls(A / scale, np.ones(len(A)))[0] / scale
    return Costs(*(float(value) for value in found), call=float(np.median(calls)))


def problem(rows: int, inducing: int, workers: int, network: float = NETWORK) -> Problem:
    """A problem of many rows, in the chunks that they come in."""
    return Problem(rows, inducing, workers, -(-rows // CHUNK), network)


def simulated(costs: Costs, given: Problem, stage: str) -> float:
    """Seconds of a pass: chunks one after the other on every worker, and at the client."""
    size, each = given.inducing, given.rows / given.chunks
    work = costs.chunk + each * (costs.row + OPERATIONS[stage] * size**2 * costs.operation)
    handle = costs.call + (8.0 * size * (size + 1) / 2.0 + 32.0 * each) / given.network
    # What all workers are told goes from worker to worker.
    told = 24.0 * size**2 / given.network * np.log2(given.workers + 1.0)
    client, waiting = told, given.chunks
    free, out = np.full(given.workers, told), []
    for turn in range(min(AHEAD * given.workers, given.chunks)):
        worker = turn % given.workers
        free[worker] = max(free[worker], client) + work
        heapq.heappush(out, (free[worker], worker))
        waiting -= 1
    while out:
        at, worker = heapq.heappop(out)
        client = max(client, at) + handle
        if waiting:
            waiting -= 1
            free[worker] = max(free[worker], client) + work
            heapq.heappush(out, (free[worker], worker))
    return float(client)


def evaluation(costs: Costs, given: Problem) -> float:
    """Seconds of gather, sweep and gradient."""
    return sum(simulated(costs, given, stage) for stage in OPERATIONS)


def failures(costs: Costs, given: Problem, features: int) -> dict[str, float]:
    """Seconds that a failure in the middle of a sweep costs.

    A killed worker: the chunks it had begun, its share of what the others do from then on, and its
    rows, which the scheduler has, again; a frozen one is found out later. A scheduler that comes
    back at once: all chunks that were out, and all rows again.
    """
    size, each = given.inducing, given.rows / given.chunks
    work = costs.chunk + each * (costs.row + OPERATIONS["sweep"] * size**2 * costs.operation)
    sent = given.rows * 8.0 * (features + 1) / given.network
    pass_ = simulated(costs, given, "sweep")
    rest = AHEAD * work + 0.5 * pass_ / max(given.workers - 1, 1) + sent / given.workers
    return {
        "worker killed": rest,
        "worker frozen": rest + SILENT,
        "scheduler restarted": AHEAD * work + sent,
        "client killed": pass_ + sent,
    }


def passes() -> str:
    """An evaluation by local workers, measured and simulated."""
    points = kept()
    costs, lines = fitted(points), []
    for row in points:
        given = Problem(row["rows"], row["inducing"], row["workers"], row["chunks"])
        seconds, used, own = (
            sum(row[stage + ending] for stage in OPERATIONS)
            for ending in ("", "_workers", "_client")
        )
        cells = [f"{cell:.2f}" for cell in (evaluation(costs, given), used, own)]
        # Neither workers nor client were at work for all that time: something else was.
        busy = " (busy)" if seconds > _BUSY * max(used / row["workers"], own) else ""
        names = spaced(row["rows"]), str(row["inducing"]), str(row["workers"])
        lines.append([*names, f"{seconds:.2f}{busy}", *cells])
    head = ["rows", "M", "workers", "s", "simulated", "CPU s, workers", "CPU s, client"]
    return table(head, lines)


def constants() -> str:
    """What was fitted."""
    costs = fitted(kept())
    return (
        f"A worker takes {1e3 * costs.chunk:.1f} ms for a chunk, {1e6 * costs.row:.2f} µs for a "
        f"row and does {1e-9 / costs.operation:.0f} billion operations a second; the client takes "
        f"{1e3 * costs.call:.1f} ms for a chunk."
    )


def estimates(problems: Iterable[tuple[int, int, int]] = _LARGE, features: int = 10) -> str:
    """Evaluations of more rows than were measured, and what failures cost in them."""
    costs, lines = fitted(kept()), []
    for rows, inducing, workers in problems:
        given = problem(rows, inducing, workers)
        seconds = evaluation(costs, given)
        ideal = evaluation(costs, given._replace(workers=1)) / workers
        lost = failures(costs, given, features)
        cells = [f"{cell:.0f}" for cell in (seconds, *lost.values())]
        names = spaced(rows), str(inducing), str(workers)
        lines.append([*names, cells[0], f"{ideal / seconds:.2f}", *cells[1:]])
    head = ["rows", "M", "workers", "s an evaluation", "of all cores", *lost]
    return table(head, lines)


OPTIONS = {
    "rows": {"default": [10**9]},
    "workers": {"default": 100},
    "inducing": {"default": 500},
    "features": {"type": int, "default": 10},
}


def main(options: Namespace) -> None:
    """Compare with what was measured, and estimate."""
    problems = [(rows, options.inducing, options.workers) for rows in options.rows]
    print(passes(), constants(), estimates(problems, options.features), sep="\n\n")
