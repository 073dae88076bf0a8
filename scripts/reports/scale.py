"""Table of docs/default-at-scale.md."""

import json
from typing import Any

from scripts.records import RESULTS

RECORDS = RESULTS / "scale.jsonl"
_MAPPED = 1_000_000


def kept() -> list[dict[str, Any]]:
    """The last record of every size."""
    lines = RECORDS.read_text().splitlines()
    found = {record["rows"]: record for record in map(json.loads, lines)}
    return [found[rows] for rows in sorted(found)]


def page() -> str:
    """The table of docs/default-at-scale.md."""
    heads = (
        "rows", "inducing points", "elapsed, two cores", "CPU", "memory at most", "log loss",
        "a prediction, first", "later",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for r in kept():
        rows = f"{r['rows']:,}".replace(",", " ") + ", mapped" * (r["rows"] >= _MAPPED)
        near = " and nearest rows" * (r["engine"] == "inducing+nearest")
        cells = (
            rows, f"{r['inducing']}{near}", f"{r['wall']:.0f} s", f"{r['cpu']:.0f} s",
            f"{r['bytes'] / 1e9:.2f} GB", f"{r['loss']:.4f}", f"{1e6 * r['first']:.0f} µs",
            f"{1e6 * r['later']:.0f} µs",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
