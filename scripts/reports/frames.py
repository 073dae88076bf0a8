"""Tables of data frames beside other ways, from what `scripts.studies frames` has kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["forms", "gaps", "page", "peers"]

_PEERS = (
    "GP, table as it is",
    "GP, indicators by hand",
    "HistGradientBoosting",
    "LightGBM",
    "CatBoost",
)
_FORMS = ("product", "sum", "sum and product")
_GAPS = ("GP, table as it is", "GP, medians alone", "GP, drawn five times")


def peers() -> str:
    """Log densities beside boosting, errors in brackets."""
    return _table(lines("frames.jsonl"), _PEERS)


def forms() -> str:
    """Kernels of levels and numbers, by how they are put together."""
    return _table(lines("frames.jsonl"), _FORMS, errors=False)


def gaps() -> str:
    """What becomes of missing numbers."""
    return _table([one for one in lines("frames.jsonl") if one["gaps"]], _GAPS, errors=False)


def page(records: list[dict[str, Any]]) -> str:
    """All tables of records."""
    holes = [one for one in records if one["gaps"]]
    parts = _table(records, _PEERS), _table(records, _FORMS), _table(holes, _GAPS)
    return "\n\n".join(parts)


def _table(records: Sequence[dict[str, Any]], models: Sequence[str], errors: bool = True) -> str:
    """Mean densities over folds, a row a set, the best in bold; CPU seconds in the last row."""
    found = [f"| set | rows | {' | '.join(models)} |", "|" + "---|" * (len(models) + 2)]
    names = list(dict.fromkeys(one["set"] for one in records))
    for name in names:
        own = [one for one in records if one["set"] == name]
        values = [_mean(own, model, "density") for model in models]
        if not np.isfinite(values).any():
            continue
        cells = [_cell(value, value == np.nanmax(values)) for value in values]
        if errors:
            pairs = zip(cells, models, strict=True)
            cells = [f"{cell} ({_mean(own, model, 'error'):.3f})" for cell, model in pairs]
        found.append(f"| {name} | {own[0]['rows']} | {' | '.join(cells)} |")
    seconds = [_mean(records, model, "cpu") for model in models]
    found.append(f"| CPU s | | {' | '.join(f'{value:.1f}' for value in seconds)} |")
    return "\n".join(found)


def _mean(records: Sequence[dict[str, Any]], model: str, what: str) -> float:
    values = [one[what] for one in records if one["model"] == model]
    return float(np.mean(values)) if values else float("nan")


def _cell(value: float, best: bool) -> str:
    if not np.isfinite(value):
        return ""
    return f"**{value:.3f}**" if best else f"{value:.3f}"
