"""Tables of forecasts beside other packages, from what `scripts.studies forecasts` has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["forecasts", "table"]


def forecasts() -> str:
    """What is kept."""
    return table(lines("forecasts.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """Scores by series, then of all of them, in Markdown."""
    sets = list(dict.fromkeys(one["set"] for one in records))
    models = list(dict.fromkeys(one["model"] for one in records))
    crps = {(one["set"], one["model"]): one["crps"] for one in records}
    rows = ["| CRPS | " + " | ".join(models) + " |", "| --- |" + " ---: |" * len(models)]
    for name in sets:
        own = [crps.get((name, model), np.nan) for model in models]
        best = np.nanmin(own)
        cells = [f"**{v:.3g}**" if v == best else f"{v:.3g}" for v in own]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    rows += [
        "",
        "| all series | CRPS over the best, geometric mean | 80 % hold | 95 % hold | CPU s |",
    ]
    rows.append("| --- |" + " ---: |" * 4)
    for model in models:
        own = [one for one in records if one["model"] == model]
        over = [
            one["crps"] / min(v for (name, _), v in crps.items() if name == one["set"])
            for one in own
        ]
        mean = float(np.exp(np.mean(np.log(over))))
        each = [float(np.mean([one[k] for one in own])) for k in ("within80", "within95", "cpu")]
        rows.append(
            f"| {model} | {mean:.3f} | {100.0 * each[0]:.0f} | {100.0 * each[1]:.0f} | {each[2]:.2f} |"
        )
    return "\n".join(rows)
