"""The table of designs of hyper-parameters, from what the study has kept."""

from __future__ import annotations

from typing import Any

from scripts.records import lines
from scripts.reports.tables import table as markdown

__all__ = ["integrated_designs", "table"]


def integrated_designs() -> str:
    """Return the table of what the project keeps."""
    return table(lines("integrated_designs.jsonl"))


_WAYS = ("grid", "composite", "importance", "importance, 256", "nuts", "slice")


def table(records: list[dict[str, Any]]) -> str:
    """One line for each problem: effective draws an evaluation of each design, and its error."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["problem"], {})[record["way"]] = record
    rows = []
    for problem, own in groups.items():
        truth = own["truth"]
        cells = [problem, str(truth["rows"]), str(truth["parameters"])]
        cells += [_cell(own[way]) if way in own else "" for way in _WAYS]
        k = own.get("importance", truth)["k"]
        rows.append([*cells, "" if k is None else f"{k:.2f}", f"{truth['effective']:.0f}"])
    head = ["problem", "rows", "parameters", *_WAYS, "k", "effective, truth"]
    return markdown(head, rows)


def _cell(one: dict[str, Any]) -> str:
    return f"{one['effective'] / one['evaluations']:.3f}, {one['error']:.4f}"
