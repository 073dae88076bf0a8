"""Tables of forecasts beside other packages, from what `scripts.studies forecasts` has kept."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Record, Table, across, average, percent


def group(label: str, records: Iterable[Record] | None = None) -> str:
    """Return scores of a group: by series that all models have done, then of all of them."""
    kept = lines("forecasts.jsonl") if records is None else records
    done = {(one["model"], one["set"]): one for one in kept if one["group"] == label}
    models = sorted(dict.fromkeys(model for model, _ in done), key=lambda m: m != "GPForecaster")
    found = []
    for name in dict.fromkeys(name for _, name in done):
        own = [done[model, name] for model in models if (model, name) in done]
        best = min(one["crps"] for one in own)
        if len(own) == len(models):
            found += [{**one, "over": one["crps"] / best} for one in own]
    first = Table("", {"CRPS": "{set}", **across("model", models, _score)}, ("set",), right=1)
    return f"{first(found)}\n\n{_TOGETHER(found)}"


def _score(some: list[Record]) -> str:
    bold = "**" * (some[-1]["over"] == 1.0)
    return f"{bold}{some[-1]['crps']:.3g}{bold}"


_TOGETHER = Table(
    "",
    {
        "all series": "{model}",
        "CRPS over the best": average("over", ".3f", lambda v: np.exp(np.mean(np.log(v)))),
        "80 % coverage": percent("within80"),
        "95 % coverage": percent("within95"),
        "CPU s": average("cpu", ".2f"),
    },
    group=("model",),
    right=1,
)
#: Series that were not used to set defaults, and counts that are mostly 0.
others, zeros = (partial(group, label) for label in ("others", "zeros"))
#: Many series: scores and seconds.
panels = Table(
    "panels.jsonl",
    {
        "series": "{series}",
        "steps": "{rows}",
        "hyper-parameters": "{model}",
        "-log p": "{nlpd:.3f}",
        "true rate": "{truth:.3f}",
        "90 % coverage": percent("within90"),
        "fit s": "{fit}",
        "forecast s": "{ahead}",
    },
    right=0,
)
