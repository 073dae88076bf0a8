"""The table and the curves of scripts/bench_bayesopt.py, from its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.records import RESULTS

__all__ = ["table", "write"]

#: Its marks are evaluations of single functions.
DECOUPLED = "pesc-decoupled"
Grouped = Mapping[tuple[str, str], list[dict[str, Any]]]


def grouped(records: Iterable[dict[str, Any]]) -> Grouped:
    """Records by problem and method, those of pieces of functions left to their own numbers."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        found[record["problem"], record["method"]].append(record)
    return dict(sorted(found.items()))


def quantile(rows: list[dict[str, Any]], what: str, n: str, level: float) -> float:
    """Quantile over seeds."""
    return float(np.quantile([row[what][n] for row in rows], level))


def table(groups: Grouped, problem: str) -> str:
    """Medians of the gap of the recommendation, in brackets the 90 % quantile."""
    chosen = {m: rows for (p, m), rows in groups.items() if p == problem}
    together = {m: rows for m, rows in chosen.items() if m != DECOUPLED}
    parts = [rows_of(together)] if together else []
    if DECOUPLED in chosen:
        counts = [reached(row) for row in chosen[DECOUPLED]]
        parts.append(
            "Functions one at a time: a recommendation within .001 after "
            f"{np.median(counts):g} evaluations of single functions (median of {len(counts)} "
            "seeds; inf is not within the budget)."
        )
    return "\n\n".join(parts)


def rows_of(together: Mapping[str, list[dict[str, Any]]]) -> str:
    """One line for each method."""
    marks = list(next(iter(together.values()))[0]["recommended"])
    head = ["method", "seeds", *(f"n = {n}" for n in marks), "seconds"]
    lines = [head, ["---"] * len(head)]
    for method, rows in together.items():
        cells = [
            f"{quantile(rows, 'recommended', n, 0.5):.2g} "
            f"[{quantile(rows, 'recommended', n, 0.9):.2g}]"
            for n in marks
        ]
        seconds = float(np.median([row["seconds"] for row in rows]))
        lines.append([method, str(len(rows)), *cells, f"{seconds:.2g}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reached(row: dict[str, Any], within: float = 1e-3) -> float:
    """Single evaluations from which on the recommendation stays within."""
    found = np.inf
    for n, gap in sorted(((int(n), g) for n, g in row["recommended"].items()), reverse=True):
        if gap > within:
            break
        found = float(n)
    return found


def draw(groups: Grouped, problem: str, path: Path) -> None:
    """Median gaps with bands from the 25 % to the 75 % quantile; no figure if there are none."""
    chosen = {m: rows for (p, m), rows in groups.items() if p == problem and m != DECOUPLED}
    if not chosen:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for method, rows in chosen.items():
        marks = list(rows[0]["recommended"])
        n = [int(m) for m in marks]
        low, middle, high = (
            [max(quantile(rows, "recommended", m, level), 1e-6) for m in marks]
            for level in (0.25, 0.5, 0.75)
        )
        (line,) = axes.semilogy(n, middle, marker="o", label=f"{method} ({len(rows)})")
        axes.fill_between(n, low, high, color=line.get_color(), alpha=0.15)
    axes.set(xlabel="evaluations", ylabel="gap of the recommendation", title=problem)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(records: Iterable[dict[str, Any]], folder: Path = RESULTS) -> None:
    """Write bench_bayesopt.md and a figure for every problem."""
    groups = grouped(records)
    parts = [
        "# Constrained Bayesian optimisation\n\n"
        "By `scripts/bench_bayesopt.py --report`. Gap of the recommendation, median of the seeds "
        "[90 % quantile]; seconds an evaluation, on a machine that did other work meanwhile. "
        "A recommendation that is infeasible by more than .001 has the gap 1.132, 6.75 or 3.33. "
        "Design, models and recommendation are the same for all methods."
    ]
    for problem in dict.fromkeys(p for p, _ in groups):
        parts.append(f"## {problem}\n\n{table(groups, problem)}\n")
        draw(groups, problem, folder / f"bench_bayesopt_{problem}.png")
    (folder / "bench_bayesopt.md").write_text("\n\n".join(parts))
