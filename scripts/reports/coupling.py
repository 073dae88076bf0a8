"""Classes by each way to join processes of one against the rest."""

from __future__ import annotations

import numpy as np

from scripts.records import lines
from scripts.reports.tables import table

__all__ = ["coupling"]

_MODELS = ("default", "scaled", "exactly one", "linear", "boosting")


def coupling() -> str:
    """A line for each set and number of rows: log loss and calibration error, means over seeds."""
    records = lines("coupling.jsonl")
    rows = []
    # Sets that have fewer rows than are asked for are once in the table.
    for fitted, name in dict.fromkeys((record["fitted"], record["set"]) for record in records):
        cells = []
        own = [r for r in records if (r["set"], r["fitted"]) == (name, fitted)]
        for model in _MODELS:
            found = {r["seed"]: r for r in own if r["model"] == model}.values()
            if not found:
                cells.append("")
                continue
            loss, gap = (np.mean([r[key] for r in found]) for key in ("loss", "calibration"))
            cells.append(f"{loss:.3f} ({gap:.3f})")
        b = np.mean([r["b"] for r in own if r["model"] == "default"])
        rows.append([f"{name}, {fitted} rows, {own[0]['classes']}", f"{b:.2f}", *cells])
    return table(["set, rows, classes", "b", *_MODELS], rows, right=1)
