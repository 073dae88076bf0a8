"""Tables of averages over hyper-parameters, from the records of three studies."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from scripts.reports.table1_numbers import published
from scripts.reports.tables import Cell, Record, Table, average, count, gain, spread, within

#: Bins of equal width of a probability.
BINS = 15


def _title(some: list[Record]) -> str:
    title: str = published()[some[0]["data"]]["title"]
    return title + (", by feature" if some[0]["block"] == "ard" else "")


def _losses(some: list[Record], arm: str) -> Any:
    return np.array([record["of"][arm]["loss"] for record in some])


def _rows(some: list[Record]) -> Any:
    return np.array([record["n_test"] for record in some], dtype=float)


def _gain(before: str, after: str) -> Cell:
    """Difference of the mean log loss of a row times 1000, with its standard error over folds."""

    def cell(some: list[Record]) -> str:
        some = [record for record in some if after in record["of"]]
        if not some:
            return ""
        n = _rows(some)
        gap = _losses(some, after) - _losses(some, before)
        mean = gap.sum() / n.sum()
        error = np.sqrt(((gap - mean * n) ** 2).sum() / (len(n) - 1) * len(n)) / n.sum()
        return f"{1000.0 * mean:+.1f} ± {1000.0 * error:.1f}" if len(n) > 1 else f"{mean:+.4f}"

    return cell


def _calibration(arm: str) -> Cell:
    """Calibration error of probabilities over all folds, or the cover of 90 % intervals."""

    def cell(some: list[Record]) -> str:
        own = [record["of"][arm] for record in some]
        if "covered" in own[0]:
            return f"{sum(one['covered'] for one in own) / _rows(some).sum():.3f} covered"
        gaps = np.sum([one["gaps"] for one in own], axis=0)
        return f"{np.abs(gaps).sum() / _rows(some).sum():.4f}"

    return cell


#: Of CPU seconds the median: the first fit of a run compiles.
_COST = average("cpu", ".2f", np.median)
_LOSSES = Table(
    "integrated.jsonl",
    {
        "data": _title,
        "folds": count,
        "log loss, mode": lambda some: f"{_losses(some, 'mode').sum() / _rows(some).sum():.4f}",
        "map - mode": _gain("mode", "map"),
        "integrated - mode": _gain("mode", "integrate"),
        "integrated - map": _gain("map", "integrate"),
        "corrected - integrated": _gain("integrate", "corrected"),
    },
    group=("block", "data"),
)
_OTHERS = _LOSSES._replace(
    columns={
        "data": _title,
        "mode": _calibration("mode"),
        "map": _calibration("map"),
        "integrated": _calibration("integrate"),
        "CPU s, mode": within("mode", _COST),
        "… integrated": within("integrate", _COST),
        "design": within("integrate", "{design}"),
        "nodes": within("integrate", average("nodes", ".0f")),
    }
)


def sets(records: Iterable[Record] | None = None) -> str:
    """Sets of Table 1: losses with paired differences, and calibration with costs."""
    return f"{_LOSSES(records)}\n\n{_OTHERS(records)}"


#: Regressions of few rows; differences are paired over sets of rows.
few_rows = Table(
    "few_rows.jsonl",
    {
        "problem": "{problem}",
        "rows": "{rows}",
        "covered, mode": within("mode", spread("covered")),
        "covered, integrated": within("integrated", spread("covered")),
        "gain in log density": gain("density", "mode", "integrated"),
    },
    group=("problem", "rows"),
    order=lambda key: key,
)


def change() -> str:
    """Say how far averaging changes the log loss of the data sets of Table 1."""
    groups = _LOSSES.groups().values()
    gaps = {
        _title(some): 1000.0
        * (_losses(some, "integrate") - _losses(some, "mode")).sum()
        / _rows(some).sum()
        for some in groups
    }
    less = sorted(gaps, key=gaps.__getitem__)
    words = ", ".join(f"{name} {gaps[name]:+.1f}" for name in (*less[:2], *less[-2:]))
    return (
        f"On {len(gaps)} data sets of the paper averaging changes the log loss × 1000 by "
        f"{np.median(list(gaps.values())):+.1f} in the median; the extremes are {words}."
    )
