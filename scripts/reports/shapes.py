"""Shapes of kernels that were tried for what trees see: log loss, leave-one-out mean, evidence."""

from __future__ import annotations

from scripts.reports.tables import Table, across

_SETS = ("churn", "phoneme", "magic", "spambase")

#: A line for each kernel and kind of inputs.
shapes = Table(
    "shapes.jsonl",
    {
        "kernel": lambda some: (
            "the default"
            if some[-1]["shape"] == "default"
            else "{shape}, {inputs}".format(**some[-1])
        ),
        **across("set", _SETS, "{loss:.4f} ({loo:.4f}, {evidence:.0f})"),
    },
    group=("shape", "inputs"),
    right=1,
)
