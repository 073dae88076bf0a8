"""Tables of data frames beside other ways, from what `scripts.studies frames` has kept."""

from collections.abc import Sequence

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Record, grouped, table

_TREES = ("HistGradientBoosting", "LightGBM", "CatBoost")
_PEERS = ("GP, table as it is", "GP, indicators by hand", *_TREES)
_FORMS = ("product", "sum", "sum and product")
_GAPS = ("GP, table as it is", "GP, medians alone", "GP, drawn five times")


def peers() -> str:
    """Log densities beside boosting, errors in brackets."""
    return _table(lines("frames.jsonl"), (_PEERS[0], *_TREES))


def page(records: list[Record]) -> str:
    """All tables of records."""
    holes = [one for one in records if one["gaps"]]
    parts = _table(records, _PEERS), _table(records, _FORMS), _table(holes, _GAPS)
    return "\n\n".join(parts)


def _table(records: Sequence[Record], models: Sequence[str]) -> str:
    """Mean densities over folds, a row a set, the best in bold; CPU seconds in the last row."""
    rows = []
    for (name,), own in grouped(records, ("set",)).items():
        values = [_mean(own, model, "density") for model in models]
        if np.isfinite(values).any():
            cells = [f"{value:.3f}" if np.isfinite(value) else "" for value in values]
            best = int(np.nanargmax(values))
            cells[best] = f"**{cells[best]}**"
            more = (f" ({_mean(own, model, 'error'):.3f})" for model in models)
            cells = [cell + error for cell, error in zip(cells, more, strict=True)]
            rows.append([name, str(own[0]["rows"]), *cells])
    seconds = " | ".join(f"{_mean(records, model, 'cpu'):.1f}" for model in models)
    return table(["set", "rows", *models], rows) + f"\n| CPU s | | {seconds} |"


def _mean(records: Sequence[Record], model: str, what: str) -> float:
    values = [one[what] for one in records if one["model"] == model]
    return float(np.mean(values)) if values else float("nan")
