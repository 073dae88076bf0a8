"""The table of designs of hyper-parameters, from what the study has kept."""

from __future__ import annotations

from typing import Any

from scripts.records import lines
from scripts.reports.tables import table as markdown

__all__ = ["integrated_designs", "table"]


def integrated_designs() -> str:
    """Return the table of what the project keeps."""
    return table(lines("integrated_designs.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """One line for each problem and design."""
    head = ["problem", "rows", "parameters", "design", "evaluations", "effective", "… each"]
    head += ["k", "nodes", "error", "CPU s"]
    rows = []
    for one in records:
        each = one["effective"] / one["evaluations"]
        k = "" if one["k"] is None else f"{one['k']:.2f}"
        error = f"{one['error']:.4f}" if "error" in one else ""
        cells = [one["problem"], str(one["rows"]), str(one["parameters"]), one["way"]]
        cells += [str(one["evaluations"]), f"{one['effective']:.0f}", f"{each:.3f}", k]
        rows.append([*cells, str(one["nodes"]), error, f"{one['cpu']:.1f}"])
    return markdown(head, rows)
