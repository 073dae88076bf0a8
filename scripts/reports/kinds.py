"""The table of kinds of y beside their usual models, from what `scripts.studies kinds` has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["kinds", "table"]


def kinds() -> str:
    """Return the table of what the project keeps."""
    return table(lines("kinds.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """Return means over folds, sets and models in the order of the records."""
    found = ["| set | rows | model | concordance | log density a row | CPU s |", "|" + "---|" * 6]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["set"], record["model"]), []).append(record)
    for (name, model), own in groups.items():
        words = ["" if own[0].get(what) is None else _mean(own, what) for what in _JUDGED]
        cells = name, str(own[0]["rows"]), model, *words, f"{np.mean([r['cpu'] for r in own]):.1f}"
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found)


_JUDGED = ("concordance", "density")


def _mean(records: list[dict[str, Any]], what: str) -> str:
    return f"{np.mean([record[what] for record in records]):.3f}"
