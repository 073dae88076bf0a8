"""Shapes of kernels that were tried for what trees see, as a table."""

from __future__ import annotations

from scripts.records import lines
from scripts.reports.tables import table

__all__ = ["shapes"]


def shapes() -> str:
    """A line for each kernel and kind of inputs: log loss, leave-one-out mean, evidence by set."""
    records = list(lines("shapes.jsonl"))
    sets = list(dict.fromkeys(record["set"] for record in records))
    kinds = dict.fromkeys((record["shape"], record["inputs"]) for record in records)
    rows = []
    for shape, inputs in kinds:
        cells = []
        for name in sets:
            found = [
                r for r in records if (r["set"], r["shape"], r["inputs"]) == (name, shape, inputs)
            ]
            cells.append(
                "{loss:.4f} ({loo:.4f}, {evidence:.0f})".format(**found[-1]) if found else ""
            )
        words = "the default" if shape == "default" else f"{shape}, {inputs}"
        rows.append([words, *cells])
    return table(["kernel", *sets], rows, right=1)
