"""Tables of forecasts beside other packages, from what `scripts.studies forecasts` has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["forecasts", "others", "panel_table", "panels", "table", "zeros"]


def forecasts() -> str:
    """What is kept of series that rules were set with."""
    return _group("seen")


def others() -> str:
    """What is kept of series that were looked at afterwards."""
    return _group("others")


def zeros() -> str:
    """What is kept of counts that are mostly 0."""
    return _group("zeros")


def _group(label: str) -> str:
    return table([one for one in lines("forecasts.jsonl") if one["group"] == label])


def table(records: list[dict[str, Any]]) -> str:
    """Scores by series that all models have done, then of all of them, in Markdown."""
    models = list(dict.fromkeys(one["model"] for one in records))
    models.sort(key=lambda name: name != "GPForecaster")
    done = {(one["set"], one["model"]): one for one in records}
    sets = [
        name
        for name in dict.fromkeys(one["set"] for one in records)
        if all((name, model) in done for model in models)
    ]
    best = {name: min(done[name, model]["crps"] for model in models) for name in sets}
    rows = ["| CRPS | " + " | ".join(models) + " |", "| --- |" + " ---: |" * len(models)]
    for name in sets:
        own = [done[name, model]["crps"] for model in models]
        cells = [f"**{v:.3g}**" if v == best[name] else f"{v:.3g}" for v in own]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    said = "all series", "CRPS over the best", "80 % hold", "95 % hold", "CPU s"
    rows += ["", f"| {' | '.join(said)} |", "| --- |" + " ---: |" * 4]
    for model in models:
        some = [done[name, model] for name in sets]
        over = np.exp(np.mean([np.log(one["crps"] / best[one["set"]]) for one in some]))
        low, high, cpu = (
            np.mean([one[what] for one in some]) for what in ("within80", "within95", "cpu")
        )
        cells = [f"{over:.3f}", f"{100.0 * low:.0f}", f"{100.0 * high:.0f}", f"{cpu:.2f}"]
        rows.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(rows)


def panels() -> str:
    """What is kept of many series."""
    return panel_table(lines("panels.jsonl"))


def panel_table(records: list[dict[str, Any]]) -> str:
    """Scores and seconds of panels, in Markdown."""
    said = "series", "steps", "hyper-parameters", "-log p", "of the true rate", "90 % hold"
    rows = [f"| {' | '.join((*said, 'fit s', 'forecast s'))} |", "|" + " ---: |" * 8]
    for one in records:
        cells = [str(one["series"]), str(one["rows"]), one["model"], f"{one['nlpd']:.3f}"]
        cells += [f"{one['truth']:.3f}", f"{100.0 * one['within90']:.0f}"]
        rows.append(f"| {' | '.join([*cells, str(one['fit']), str(one['ahead'])])} |")
    return "\n".join(rows)
