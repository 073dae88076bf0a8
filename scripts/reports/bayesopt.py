"""Tables and curves of Bayesian optimisation, from what ``benchmarks bayesopt`` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.records import RESULTS, lines
from scripts.reports import figures
from scripts.reports.tables import Record, Table, table

__all__ = ["gaps", "pays", "times", "write"]

#: Its marks are evaluations of single functions.
DECOUPLED = "pesc-decoupled"
#: Gaps of the median recommendation up to which evaluations are counted.
TARGETS = (0.01, 0.001)
#: Observations at which the times count that are set against the costs of evaluations.
SIZE = 30
Grouped = Mapping[tuple[str, str], list[Record]]


def grouped(records: Iterable[Record]) -> Grouped:
    """Records by problem and method."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record["problem"], record["method"]), []).append(record)
    return dict(sorted(found.items()))


def of_problems(groups: Grouped) -> dict[str, dict[str, list[Record]]]:
    """Records of each problem by method, those of pieces of functions left out."""
    found: dict[str, dict[str, list[Record]]] = {p: {} for p, _ in groups}
    for (problem, method), rows in groups.items():
        if method != DECOUPLED:
            found[problem][method] = rows
    return found


def quantiles(rows: list[Record], level: float = 0.5) -> dict[int, float]:
    """Quantile over seeds of the gap of the recommendation, by evaluations."""
    marks = rows[0]["recommended"]
    return {int(n): float(np.quantile([r["recommended"][n] for r in rows], level)) for n in marks}


def lasting(gaps: dict[int, float], within: float) -> float:
    """Evaluations from which on the gap stays within, among those looked at."""
    last = np.inf
    for n, gap in sorted(gaps.items(), reverse=True):
        if gap > within:
            break
        last = float(n)
    return last


def reached(rows: list[Record]) -> list[float]:
    """Of every seed the single evaluations from which on the recommendation is within .001."""
    return [lasting({int(n): gap for n, gap in r["recommended"].items()}, 1e-3) for r in rows]


def gaps() -> str:
    """Median gaps by n, of every problem and method; decoupled runs by single evaluations."""
    groups, parts = grouped(lines("bench_bayesopt.jsonl")), []
    for problem, together in of_problems(groups).items():
        rows = [
            [method, str(len(found)), *(f"{gap:.2g}" for gap in quantiles(found).values())]
            for method, found in together.items()
        ]
        if together:
            marks = quantiles(next(iter(together.values())))
            parts.append(table([problem, "seeds", *(f"n = {n}" for n in marks)], rows))
    alone = [
        [p, str(len(found)), f"{np.median(reached(found)):g}"]
        for (p, m), found in groups.items()
        if m == DECOUPLED
    ]
    if alone:
        header = ["decoupled", "seeds", "single evaluations to a gap of .001, median"]
        parts.append(table(header, alone))
    return "\n\n".join(parts)


def _taken(what: str) -> Any:
    def cell(rows: list[Record]) -> str:
        value = 1e3 * next(r["seconds"] for r in rows if r["what"] == what)
        return f"{value:.0f} ms" if value >= 9.5 else f"{value:.2g} ms"

    return cell


#: CPU time of an ask of both and of a conditioning.
times = Table(
    "bench_bayesopt_times.jsonl",
    {
        **{"problem": "{problem}", "d": "{d}", "K": "{K}", "N": "{N}"},
        "PESC, an ask": _taken("ask"),
        "EI": _taken("ei"),
        "one conditioning (EP)": _taken("conditioning"),
    },
    group=("problem", "N"),
)


def pays() -> str:
    """From which cost of an evaluation on PESC reaches a gap in less time than EI."""
    groups = grouped(lines("bench_bayesopt.jsonl"))
    taken = {(r["problem"], r["N"], r["what"]): r for r in lines(times.file)}
    rows = []
    for problem in dict.fromkeys(p for p, m in groups if m == "pesc" and (p, "ei") in groups):
        for target in TARGETS:
            own, other = (lasting(quantiles(groups[problem, m]), target) for m in ("pesc", "ei"))
            cells = [f"{n:g}" if np.isfinite(n) else "not reached" for n in (own, other)]
            ask, rival = (taken.get((problem, SIZE, what)) for what in ("ask", "ei"))
            rows.append([problem, f"{target:g}", *cells, verdict(own, other, ask, rival)])
    last = "PESC is faster if an evaluation takes"
    return table(["problem", "gap", "PESC, n", "EI, n", last], rows)


def verdict(own: float, other: float, ask: Any, rival: Any) -> str:
    """When n_own (cost + ask) < n_other (cost + rival), in words."""
    if not np.isfinite(own):
        return "EI gets there, PESC does not" if np.isfinite(other) else "neither gets there"
    if not np.isfinite(other):
        return "any time (EI does not get there)"
    if other <= own:
        return "– (no fewer evaluations)"
    if ask is None or rival is None:
        return "– (its asks are not timed)"
    cost = (own * ask["seconds"] - other * rival["seconds"]) / (other - own)
    return f"more than {cost:.2g} s" if cost > 0.0 else "any time"


def with_bands(together: dict[str, list[Record]]) -> str:
    """Medians of the gap of the recommendation, in brackets the 90 % quantile."""
    rows = []
    for method, found in together.items():
        both = zip(quantiles(found).values(), quantiles(found, 0.9).values(), strict=True)
        seconds = float(np.median([row["seconds"] for row in found]))
        cells = [f"{middle:.2g} [{high:.2g}]" for middle, high in both]
        rows.append([method, str(len(found)), *cells, f"{seconds:.2g}"])
    marks = quantiles(next(iter(together.values())))
    return table(["method", "seeds", *(f"n = {n}" for n in marks), "seconds"], rows)


def write(records: Iterable[Record], folder: Path = RESULTS) -> None:
    """Write bench_bayesopt.md and a figure for every problem."""
    groups = grouped(records)
    parts = [
        "# Constrained Bayesian optimisation\n\n"
        "By `python -m scripts.benchmarks bayesopt --report`. Gap of the recommendation, median of "
        "the seeds [90 % quantile]; seconds an evaluation, on a machine that did other work "
        "meanwhile. "
        "A recommendation that is infeasible by more than .001 has the gap 1.132, 6.75 or 3.33. "
        "Design, models and recommendation are the same for all methods."
    ]
    for problem, together in of_problems(groups).items():
        tables = []
        if together:
            tables.append(with_bands(together))
            paths = {
                level: {m: quantiles(rows, level) for m, rows in together.items()}
                for level in (0.25, 0.5, 0.75)
            }
            seeds = {m: len(rows) for m, rows in together.items()}
            figures.bayesopt(problem, paths, seeds, folder / f"bench_bayesopt_{problem}.png")
        if alone := groups.get((problem, DECOUPLED)):
            tables.append(
                "Functions one at a time: a recommendation within .001 after "
                f"{np.median(reached(alone)):g} evaluations of single functions (median of "
                f"{len(alone)} seeds; inf is not within the budget)."
            )
        parts.append(f"## {problem}\n\n" + "\n\n".join(tables) + "\n")
    (folder / "bench_bayesopt.md").write_text("\n\n".join(parts))
