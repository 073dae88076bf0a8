"""The table of intervals of survival times, from what `scripts.studies survival_cover` has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["survival_cover", "table"]


def survival_cover() -> str:
    """Return the table of what the project keeps."""
    return table(lines("survival_cover.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """Return a row for each number of rows."""
    found = [
        "| rows | sets | covered, mode | … integrated | integrated - mode | log density, mode "
        "| integrated - mode | CPU s, mode | … integrated |",
        "|" + "---|" * 9,
    ]
    for rows in sorted({record["rows"] for record in records}):
        own = [
            {r["seed"]: r for r in records if (r["rows"], r["how"]) == (rows, how)}
            for how in ("mode", "integrate")
        ]
        seeds = sorted(own[0].keys() & own[1].keys())
        pairs = {
            what: np.array([[half[s][what] for s in seeds] for half in own])
            for what in ("covered", "density", "cpu")
        }
        gain = pairs["density"][1] - pairs["density"][0]
        cells = [
            *map(_with_error, pairs["covered"]),
            _with_error(pairs["covered"][1] - pairs["covered"][0]),
            f"{pairs['density'][0].mean():.3f}",
            _with_error(gain),
            *(f"{cpu.mean():.1f}" for cpu in pairs["cpu"]),
        ]
        found.append(f"| {rows} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(found)


def _with_error(values: Any) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"
