"""Classes by each way to join processes of one against the rest: log loss, calibration error."""

from __future__ import annotations

from scripts.reports.tables import Table, across, average, beside, of

_MODELS = ("default", "scaled", "exactly one", "linear", "boosting")

#: A line for each set and number of rows, means over seeds. Sets that have fewer rows than are
#: asked for are once in the table.
coupling = Table(
    "coupling.jsonl",
    {
        "set, rows, classes": "{set}, {fitted} rows, {classes}",
        "b": of("model", "default", average("b", ".2f")),
        **across("model", _MODELS, beside("loss", "calibration")),
    },
    group=("fitted", "set"),
    right=1,
    last=("model", "seed"),
)
