"""The table on rows in parts, from what study_streams.py keeps."""

from __future__ import annotations

import json
from typing import Any

from scripts.reports.truth import RESULTS, table

__all__ = ["drift"]

Record = dict[str, Any]


def drift() -> str:
    """Drift from all rows at once: sites of their own, and tied ones after the stroke."""
    found = [
        json.loads(line) for line in (RESULTS / "study_streams.jsonl").read_text().splitlines()
    ]
    cases: dict[tuple[str, str, int], dict[str, Record]] = {}
    for record in found:
        case = record["data"], record["order"], record["size"]
        cases.setdefault(case, {})[record["sites"]] = record
    lines = []
    for (data, order, size), ways in cases.items():
        both = [ways[sites] for sites in ("own", "tied")]

        def pair(name: str, form: str, scale: float = 1.0, both: list[Record] = both) -> str:
            return " / ".join(format(scale * r[name], form) for r in both)

        spread = " / ".join("{1:.2f} to {2:.2f}".format(*r["variances"]) for r in both)
        cells = [pair("evidence", "+.2f"), pair("means", ".3f"), spread]
        cells += [pair("nll", "+.2f", 1000.0), pair("time", ".1f")]
        lines.append([data.replace("-", ", "), f"{order}, {size}", *cells])
    head = (
        "rows; order and rows in a part; evidence, nats; means, sd; variances, 5 to 95 %; "
        "NLL x 1000; time"
    )
    return table(head.split("; "), lines)
