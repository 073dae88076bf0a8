"""Classes by each way to join processes of one against the rest: log loss, calibration error."""

from __future__ import annotations

import numpy as np

from scripts.reports.tables import Record, Table, across, average, of

_MODELS = ("default", "scaled", "exactly one", "linear", "boosting")


def _judged(some: list[Record]) -> str:
    loss, gap = (np.mean([r[key] for r in some]) for key in ("loss", "calibration"))
    return f"{loss:.3f} ({gap:.3f})"


#: A line for each set and number of rows, means over seeds. Sets that have fewer rows than are
#: asked for are once in the table.
coupling = Table(
    "coupling.jsonl",
    {
        "set, rows, classes": "{set}, {fitted} rows, {classes}",
        "b": of("model", "default", average("b", ".2f")),
        **across("model", _MODELS, _judged),
    },
    group=("fitted", "set"),
    right=1,
    last=("model", "seed"),
)
