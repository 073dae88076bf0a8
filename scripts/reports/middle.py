"""Tables of ``benchmarks middle``: our losses by those of trees, set by set."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from scripts.benchmarks.data.middle import CHOOSING
from scripts.benchmarks.peers.tuned import LARGE, OURS
from scripts.records import lines
from scripts.reports.tables import Record, spaced, table

_TREES = ("boosting", "catboost", "forest", LARGE[0])
# A set without these is not shown.
_NEEDED = {OURS[0], "boosting", "linear"}
# More rows than this have a table of their own.
_LARGE_ROWS = 20_000
_SAID = ("coverage", "width", "nlpd")
_WITH_INTERVALS = ("default", "boosting", "gpboost")


def means(records: Iterable[Record]) -> list[Record]:
    """One row a set and number of rows: means over the seeds that all models have."""
    groups: dict[tuple[str, int], dict[str, dict[int, Record]]] = defaultdict(dict)
    for r in records:  # the last of a seed counts
        groups[r["set"], r["rows"]].setdefault(r["model"], {})[r["seed"]] = r
    found = []
    for (name, rows), models in sorted(groups.items()):
        if not set(models) >= (_NEEDED if rows <= _LARGE_ROWS else {OURS[0], LARGE[0]}):
            continue
        seeds = set.intersection(*(set(of) for of in models.values()))
        if not seeds:
            continue
        first = next(iter(models[OURS[0]].values()))
        row: Record = {"set": name, "rows": rows, "chosen": name in CHOOSING}
        row |= {key: first[key] for key in ("n", "kind", "columns")}
        more = ("calibration",) if row["kind"] == "classes" else _SAID
        for model, of in models.items():
            row[model] = {
                key: float(np.mean([of[s][key] for s in seeds]))
                for key in ("loss", "cpu", *more)
                if all(of[s].get(key) is not None for s in seeds)
            }
        row["trees"] = min(row[tree]["loss"] for tree in _TREES if tree in row)
        found.append(row)
    return found


def kept() -> list[Record]:
    """The rows of the records that are kept with the project."""
    return means(lines("bench_middle.jsonl"))


def judged() -> list[Record]:
    """Return the largest cut of every set that was not used to set defaults."""
    return [row for row in most(kept()) if not row["chosen"]]


def most(rows: list[Record]) -> list[Record]:
    """Of every set the largest cut that is not a large table."""
    rows = [row for row in rows if row["rows"] <= _LARGE_ROWS]
    largest = {row["set"]: max(r["rows"] for r in rows if r["set"] == row["set"]) for row in rows}
    return [row for row in rows if row["rows"] == largest[row["set"]]]


def _starred(row: Record) -> str:
    return row["set"] + "\\*" * row["chosen"]


def _in_order(rows: list[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: (row["kind"], row["set"], row["n"]))


def large() -> str:
    """Return losses with all rows of large tables of classes."""
    shown, found = [*OURS, *LARGE, "boosting", "catboost", "linear"], []
    for row in (row for row in kept() if row["rows"] > _LARGE_ROWS):
        cells = [
            f"{at['loss']:.4f} ({at['calibration']:.3f}, {at['cpu']:.0f})" if at else ""
            for at in (row.get(model) for model in shown)
        ]
        name = row["set"].removesuffix("-all")
        found.append([name, spaced(row["n"]), str(row["columns"]), *cells])
    return table(["set", "rows", "columns", *shown], found, right=1)


def sets(rows: list[Record] | None = None) -> str:
    """Return a line for each set: losses, the least in bold, and CPU time over boosting's."""
    shown, lines_ = [*OURS, "best tree", "linear"], []
    for row in _in_order(judged() if rows is None else rows):
        tree = min((t for t in _TREES if t in row), key=lambda name: row[name]["loss"])
        losses = [row[m]["loss"] if m in row else None for m in (*OURS, tree, "linear")]
        least = min(loss for loss in losses if loss is not None)
        cells = ["" if loss is None else f"{loss:.4f}" for loss in losses]
        cells = [f"**{cell}**" if cell == f"{least:.4f}" else cell for cell in cells]
        time = row["default"]["cpu"] / row["boosting"]["cpu"]
        lines_.append([_starred(row), *cells, f"{time:.0f}×"])
    return table(["set", *shown, "time"], lines_, right=1)


def intervals(rows: list[Record] | None = None) -> str:
    """Return coverage of 90 % intervals and mean log loss by set and model."""
    kept_ = judged() if rows is None else rows
    lines_ = []
    for row in _in_order([row for row in kept_ if "coverage" in row["default"]]):
        said = [row.get(m, {}).get(key) for m in _WITH_INTERVALS for key in ("coverage", "nlpd")]
        lines_.append([_starred(row), *("" if value is None else f"{value:.3f}" for value in said)])
    heads = [head for m in _WITH_INTERVALS for head in (f"{m}: coverage", "−log p")]
    return table(["set", *heads], lines_, right=1)
