"""Tables of data frames beside other ways, from what `scripts.studies frames` has kept."""

from collections.abc import Sequence

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Record, grouped, table

_MODELS = ("GP, table as it is", "HistGradientBoosting", "LightGBM", "CatBoost")


def peers(records: Sequence[Record] | None = None) -> str:
    """Mean log densities over folds, errors in brackets, the best in bold; CPU seconds at last."""
    records = lines("frames.jsonl") if records is None else records
    rows = []
    for (name,), own in grouped(records, ("set",)).items():
        values = [_mean(own, model, "density") for model in _MODELS]
        cells = [f"{value:.3f}" if np.isfinite(value) else "" for value in values]
        best = int(np.nanargmax(values))
        cells[best] = f"**{cells[best]}**"
        more = (f" ({_mean(own, model, 'error'):.3f})" for model in _MODELS)
        cells = [cell + error for cell, error in zip(cells, more, strict=True)]
        rows.append([name, str(own[0]["rows"]), *cells])
    seconds = " | ".join(f"{_mean(records, model, 'cpu'):.1f}" for model in _MODELS)
    return table(["set", "rows", *_MODELS], rows) + f"\n| CPU s | | {seconds} |"


def _mean(records: Sequence[Record], model: str, what: str) -> float:
    values = [one[what] for one in records if one["model"] == model]
    return float(np.mean(values)) if values else float("nan")
