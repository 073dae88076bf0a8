"""The table of kernels of survival times, from what `scripts.studies survival_kernels` has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines

__all__ = ["survival_kernels", "table"]

_JUDGED = "density", "concordance"
_LINE = "linear + Matérn"
_PEER = "lifelines WeibullAFTFitter"
#: Of the default and the kernel with a line the one with more of this in a fold.
_CHOSEN = {"by evidence": "evidence", "by rows left out": "loo"}
_MODELS = "default", _LINE, f"{_LINE}, priors", *_CHOSEN, _PEER


def survival_kernels() -> str:
    """Return the table of what the project keeps."""
    return table(lines("survival_kernels.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """Return log densities of sets and models, with concordances in brackets, and their means."""
    found = [f"| set | rows | {' | '.join(_MODELS)} |", "|" + "---|" * (2 + len(_MODELS))]
    sets: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for record in records:
        own = sets.setdefault(record["set"], {})
        own.setdefault(record["model"], []).append(record)
    rows = []
    for name, models in sets.items():
        if set(_MODELS) - set(_CHOSEN) - set(models):
            continue
        pairs = list(zip(models["default"], models[_LINE], strict=True))
        for model, what in _CHOSEN.items():
            models[model] = [max(pair, key=lambda record: record[what]) for pair in pairs]
        own = [_of(models[model]) for model in _MODELS]
        rows.append(own)
        count = str(models["default"][0]["rows"])
        found.append(f"| {' | '.join([name, count, *map(_shown, own)])} |")
    means = np.mean(rows, axis=0) if rows else np.zeros((len(_MODELS), 2))
    found.append(f"| mean | | {' | '.join(map(_shown, means))} |")
    return "\n".join(found)


def _of(records: list[dict[str, Any]]) -> tuple[float, float]:
    density, order = (np.mean([record[what] for record in records]) for what in _JUDGED)
    return float(density), float(order)


def _shown(pair: Any) -> str:
    return f"{pair[0]:.3f} ({pair[1]:.3f})"
