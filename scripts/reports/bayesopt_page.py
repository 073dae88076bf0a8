"""Tables of docs/bayesian-optimisation.md, from the runs and times of scripts/bench_bayesopt.py."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from scripts.records import RESULTS
from scripts.reports import bayesopt as report

__all__ = ["gaps", "pays", "times"]

#: Gaps of the median recommendation up to which evaluations are counted.
TARGETS = (0.01, 0.001)
#: Observations at which the times count that are set against the costs of evaluations.
SIZE = 30


def rows(name: str) -> list[dict[str, Any]]:
    """Lines of a kept file."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def runs() -> report.Grouped:
    """Kept runs by problem and method."""
    return report.grouped(rows("bench_bayesopt.jsonl"))


def markdown(lines: list[list[str]]) -> str:
    """A table, its header first."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def medians(found: list[dict[str, Any]]) -> dict[int, float]:
    """Median gap of the recommendation by evaluations."""
    return {int(n): report.quantile(found, "recommended", n, 0.5) for n in found[0]["recommended"]}


def gaps() -> str:
    """Median gaps by n, of every problem and method; decoupled runs by single evaluations."""
    groups, parts = runs(), []
    for problem in dict.fromkeys(p for p, _ in groups):
        together = {
            m: found for (p, m), found in groups.items() if p == problem and m != report.DECOUPLED
        }
        if together:
            marks = list(medians(next(iter(together.values()))))
            lines = [[problem, "seeds", *(f"n = {n}" for n in marks)]]
            for method, found in together.items():
                cells = [f"{gap:.2g}" for gap in medians(found).values()]
                lines.append([method, str(len(found)), *cells])
            parts.append(markdown(lines))
    alone = [
        [p, str(len(found)), f"{np.median([report.reached(row) for row in found]):g}"]
        for (p, m), found in groups.items()
        if m == report.DECOUPLED
    ]
    if alone:
        header = ["decoupled", "seeds", "single evaluations to a gap of .001, median"]
        parts.append(markdown([header, *alone]))
    return "\n\n".join(parts)


def spent() -> dict[tuple[str, int, str], dict[str, Any]]:
    """Kept times by problem, observations and what they are of."""
    return {(r["problem"], r["N"], r["what"]): r for r in rows("bench_bayesopt_times.jsonl")}


def times() -> str:
    """CPU time of an ask of both and of a conditioning."""
    found = spent()
    lines = [["problem", "d", "K", "N", "PESC, an ask", "EI", "one conditioning (EP)"]]
    for problem, n in dict.fromkeys((p, n) for p, n, _ in found):
        first = found[problem, n, "ask"]
        cells = [
            milliseconds(found[problem, n, what]["seconds"])
            for what in ("ask", "ei", "conditioning")
        ]
        lines.append([problem, str(first["d"]), str(first["K"]), str(n), *cells])
    return markdown(lines)


def milliseconds(seconds: float) -> str:
    """Two digits."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 9.5 else f"{value:.2g} ms"


def needed(found: list[dict[str, Any]], target: float) -> float:
    """Evaluations from which on the median gap is within the target, among those looked at."""
    last = np.inf
    for n, gap in sorted(medians(found).items(), reverse=True):
        if gap > target:
            break
        last = float(n)
    return last


def pays() -> str:
    """From which cost of an evaluation on PESC reaches a gap in less time than EI."""
    groups, taken = runs(), spent()
    header = ["problem", "gap", "PESC, n", "EI, n", "PESC is faster if an evaluation takes"]
    lines = [header]
    for problem in dict.fromkeys(p for p, m in groups if m == "pesc" and (p, "ei") in groups):
        for target in TARGETS:
            own, other = (needed(groups[problem, m], target) for m in ("pesc", "ei"))
            cells = [f"{n:g}" if np.isfinite(n) else "not reached" for n in (own, other)]
            ask, rival = (taken.get((problem, SIZE, what)) for what in ("ask", "ei"))
            lines.append([problem, f"{target:g}", *cells, verdict(own, other, ask, rival)])
    return markdown(lines)


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
