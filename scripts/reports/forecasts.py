"""Tables of forecasts beside other packages, from what `scripts.studies forecasts` has kept."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Record, Table, across, average, count, of, percent


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


_OVER = average("over", ".3f", lambda v: np.exp(np.mean(np.log(v))))
_TOGETHER = Table(
    "",
    {
        "all series": "{model}",
        "CRPS over the best": _OVER,
        "80 % coverage": percent("within80"),
        "95 % coverage": percent("within95"),
        "CPU s": average("cpu", ".2f"),
    },
    group=("model",),
    right=1,
)
#: Series that were not used to set defaults, and counts that are mostly 0.
others, zeros = (partial(group, label) for label in ("others", "zeros"))


def held_out_records() -> list[Record]:
    """Return scores of held-out series, `over` being the CRPS relative to AutoETS."""
    kept = lines("forecast_trends.jsonl")
    ets = {one["set"]: one["crps"] for one in kept if one["model"] == "AutoETS"}
    return [{**one, "over": one["crps"] / ets[one["set"]]} for one in kept]


#: Held-out series by frequency.
held_out = Table(
    held_out_records,
    {
        "series": "{group}",
        "number": of("model", "AutoETS", count),
        "CRPS": of("model", "GPForecaster", _OVER),
        '`trend="average"`': of("model", "average", _OVER),
        "80 %": of("model", "GPForecaster", percent("within80")),
        "95 %": of("model", "GPForecaster", percent("within95")),
        "80 %, AutoETS": of("model", "AutoETS", percent("within80")),
        "95 %, AutoETS": of("model", "AutoETS", percent("within95")),
        "CPU s": of("model", "GPForecaster", average("cpu", ".2f", np.median)),
    },
    group=("group",),
    right=1,
)
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
