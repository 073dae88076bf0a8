"""Tables and curves of Bayesian optimisation, from what ``benchmarks bayesopt`` keeps."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Cell, Grouped, Record, Table, count, grouped, table

#: Its marks are evaluations of single functions.
DECOUPLED = "pesc-decoupled"
#: Gaps of the median recommendation up to which evaluations are counted.
TARGETS = (0.01, 0.001)
#: Observations at which the times count that are set against the costs of evaluations.
SIZE = 30


def runs(records: Iterable[Record] | None = None) -> Grouped:
    """Records by problem and method; those of the project, if none are given."""
    kept = lines("bench_bayesopt.jsonl") if records is None else records
    return dict(sorted(grouped(kept, ("problem", "method")).items()))


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


def by_method(head: str, together: dict[str, list[Record]], cell: Any) -> str:
    """A line for each method of a problem; `cell` makes the cells of numbers of evaluations."""
    rows = [row for found in together.values() for row in found]
    columns: dict[str, Cell] = {head: "{method}", "seeds": count}
    columns |= {f"n = {n}": cell(n) for n in quantiles(rows)}
    return Table("", columns, group=("method",))(rows)


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


def gaps(records: Iterable[Record] | None = None, decoupled: bool = True) -> str:
    """Return median gaps by n and, if `decoupled`, those of decoupled runs."""
    groups = runs(records)
    parts = [
        by_method(problem, together, lambda n: lambda rows: f"{quantiles(rows)[n]:.2g}")
        for problem, together in of_problems(groups).items()
        if together
    ]
    alone = [
        [p, str(len(found)), f"{np.median(reached(found)):g}"]
        for (p, m), found in groups.items()
        if m == DECOUPLED
    ]
    if alone and decoupled:
        header = ["decoupled", "seeds", "single evaluations to a gap of .001, median"]
        parts.append(table(header, alone))
    return "\n\n".join(parts)


def _taken(what: str) -> Cell:
    def cell(rows: list[Record]) -> str:
        value = 1e3 * next(r["seconds"] for r in rows if r["what"] == what)
        return f"{value:.0f} ms" if value >= 9.5 else f"{value:.2g} ms"

    return cell


#: CPU time of a suggestion by both.
times = Table(
    "bench_bayesopt_times.jsonl",
    {
        **{"problem": "{problem}", "d": "{d}", "K": "{K}", "N": "{N}"},
        "PESC, an ask": _taken("ask"),
        "EI": _taken("ei"),
    },
    group=("problem", "N"),
)


def pays() -> str:
    """From which cost of an evaluation on PESC reaches a gap in less time than EI."""
    groups = runs()
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
