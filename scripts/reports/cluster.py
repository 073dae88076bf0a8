"""Tables of docs/rows-on-a-cluster.md: measured and simulated passes over rows."""

from __future__ import annotations

from scripts.benchmarks import sparse_cost
from scripts.reports.tables import spaced, table

__all__ = ["constants", "estimates", "passes"]

#: Rows, inducing inputs and workers of the estimates.
_LARGE = ((10**7, 200, 10), (10**8, 500, 100), (10**9, 500, 100), (10**9, 500, 1000))
_FEATURES = 10
# Seconds over those of work from which on a machine was busy otherwise.
_BUSY = 1.5


def passes() -> str:
    """An evaluation by local workers, measured and simulated."""
    points = sparse_cost.kept()
    costs, lines = sparse_cost.fitted(points), []
    for row in points:
        given = sparse_cost.Problem(row["rows"], row["inducing"], row["workers"], row["chunks"])
        seconds, used, own = (
            sum(row[stage + ending] for stage in sparse_cost.OPERATIONS)
            for ending in ("", "_workers", "_client")
        )
        cells = [f"{cell:.2f}" for cell in (sparse_cost.evaluation(costs, given), used, own)]
        # Neither workers nor client were at work for all that time: something else was.
        busy = " (busy)" if seconds > _BUSY * max(used / row["workers"], own) else ""
        names = spaced(row["rows"]), str(row["inducing"]), str(row["workers"])
        lines.append([*names, f"{seconds:.2f}{busy}", *cells])
    head = ["rows", "M", "workers", "s", "simulated", "CPU s, workers", "CPU s, client"]
    return table(head, lines)


def constants() -> str:
    """What was fitted."""
    costs = sparse_cost.fitted(sparse_cost.kept())
    return (
        f"A worker takes {1e3 * costs.chunk:.1f} ms for a chunk, {1e6 * costs.row:.2f} µs for a "
        f"row and does {1e-9 / costs.operation:.0f} billion operations a second; the client takes "
        f"{1e3 * costs.call:.1f} ms for a chunk."
    )


def estimates() -> str:
    """Evaluations of more rows than were measured, and what failures cost in them."""
    costs, lines = sparse_cost.fitted(sparse_cost.kept()), []
    for rows, inducing, workers in _LARGE:
        given = sparse_cost.problem(rows, inducing, workers)
        seconds = sparse_cost.evaluation(costs, given)
        ideal = sparse_cost.evaluation(costs, given._replace(workers=1)) / workers
        lost = sparse_cost.failures(costs, given, _FEATURES)
        cells = [f"{cell:.0f}" for cell in (seconds, *lost.values())]
        names = spaced(rows), str(inducing), str(workers)
        lines.append([*names, cells[0], f"{ideal / seconds:.2f}", *cells[1:]])
    head = ["rows", "M", "workers", "s an evaluation", "of all cores", *lost]
    return table(head, lines)
