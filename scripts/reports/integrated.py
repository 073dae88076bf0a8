"""Tables of hyper-parameters at their mode and integrated, from what the study has kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.records import lines
from scripts.reports.table1_numbers import published
from scripts.reports.tables import table as markdown

__all__ = ["BINS", "integrated", "table"]

#: Bins of equal width of a probability.
BINS = 15


def integrated() -> str:
    """Return the tables of what the project keeps."""
    return table(lines("integrated.jsonl"))


def table(records: list[dict[str, Any]]) -> str:
    """Return both tables: losses with paired differences, and calibration with costs."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["block"], record["data"]), []).append(record)
    losses, others = [], []
    for (block, name), some in groups.items():
        title = published()[name]["title"] + (", by feature" if block == "ard" else "")
        mean = _per_row(some)
        gains = [_gain(some, "mode", other) for other in ("map", "integrate", "corrected")]
        gains.insert(2, _gain(some, "map", "integrate"))
        losses.append([title, str(len(some)), f"{mean:.4f}", *gains])
        shown = [_calibration(some, arm) for arm in ("mode", "map", "integrate")]
        costs = [_cost(some, arm) for arm in ("mode", "integrate")]
        designs = some[-1]["of"]["integrate"]
        nodes = np.mean([r["of"]["integrate"]["nodes"] for r in some])
        others.append([title, *shown, *costs, designs["design"], f"{nodes:.0f}"])
    first = ["data", "folds", "log loss, mode", "map - mode", "integrated - mode"]
    first += ["integrated - map", "corrected - mode"]
    second = ["data", "mode", "map", "integrated", "CPU s, mode", "… integrated"]
    second += ["design", "nodes"]
    return markdown(first, losses) + "\n\n" + markdown(second, others)


def _losses(some: list[dict[str, Any]], arm: str) -> Any:
    return np.array([record["of"][arm]["loss"] for record in some])


def _rows(some: list[dict[str, Any]]) -> Any:
    return np.array([record["n_test"] for record in some], dtype=float)


def _per_row(some: list[dict[str, Any]]) -> float:
    return float(_losses(some, "mode").sum() / _rows(some).sum())


def _gain(some: list[dict[str, Any]], before: str, after: str) -> str:
    """Difference of the mean log loss of a row times 1000, with its standard error over folds."""
    some = [record for record in some if after in record["of"]]
    if not some:
        return ""
    n = _rows(some)
    gap = _losses(some, after) - _losses(some, before)
    mean = gap.sum() / n.sum()
    error = np.sqrt(((gap - mean * n) ** 2).sum() / (len(n) - 1) * len(n)) / n.sum()
    return f"{1000.0 * mean:+.1f} ± {1000.0 * error:.1f}" if len(n) > 1 else f"{mean:+.4f}"


def _calibration(some: list[dict[str, Any]], arm: str) -> str:
    """Calibration error of probabilities over all folds, or the cover of 90 % intervals."""
    own = [record["of"][arm] for record in some]
    if "covered" in own[0]:
        return f"{sum(one['covered'] for one in own) / _rows(some).sum():.3f} covered"
    gaps = np.sum([one["gaps"] for one in own], axis=0)
    return f"{np.abs(gaps).sum() / _rows(some).sum():.4f}"


def _cost(some: list[dict[str, Any]], arm: str) -> str:
    # The first fit of a run compiles.
    return f"{np.median([record['of'][arm]['cpu'] for record in some]):.2f}"
