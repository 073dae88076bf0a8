"""The table of regressions of few rows, from what the study has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines
from scripts.reports.tables import mean_error
from scripts.reports.tables import table as markdown

__all__ = ["few_rows", "table"]


def few_rows() -> str:
    """Return the table of what the project keeps."""
    return table(lines("few_rows.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """One line for each problem and number of rows; differences are paired over sets of rows."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["problem"], record["rows"]), []).append(record)
    head = ["problem", "rows", "sets", "covered, mode", "… integrated", "width, mode"]
    head += [
        "… integrated",
        "log density, mode",
        "integrated - mode",
        "CPU s, mode",
        "… integrated",
    ]
    rows = []
    for (problem, count), some in sorted(groups.items()):
        cells = [problem, str(count), str(len(some))]
        for what in ("covered", "width"):
            for name in ("mode", "integrated"):
                values = _values(some, name, what)
                cells.append(mean_error(values, ".3f") if what == "covered" else _middle(values))
        gain = _values(some, "integrated", "density") - _values(some, "mode", "density")
        cells += [_middle(_values(some, "mode", "density")), mean_error(gain, "+.3f")]
        for name in ("mode", "integrated"):
            # The first fit of a run compiles.
            cells.append(f"{np.median(_values(some, name, 'cpu')):.2f}")
        rows.append(cells)
    return markdown(head, rows)


def _values(some: list[dict[str, Any]], name: str, what: str) -> Any:
    return np.array([record["of"][name][what] for record in some], dtype=float)


def _middle(values: Any) -> str:
    return f"{values.mean():.3f}"
