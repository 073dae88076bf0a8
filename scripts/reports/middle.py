"""Tables and the picture of ``benchmarks middle``: our losses by those of trees, set by set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from scripts.benchmarks.data.middle import CHOOSING
from scripts.benchmarks.peers.tuned import LARGE, OURS, PEERS
from scripts.records import lines
from scripts.reports import figures
from scripts.reports.tables import Record, Table, across, spaced, table

_TREES = ("boosting", "catboost", "forest", LARGE[0])
# A set without these is not shown.
_NEEDED = {OURS[0], "boosting", "linear"}
# More rows than this have a table of their own.
_LARGE_ROWS = 20_000
_SAID = ("coverage", "width", "nlpd")
_WITH_INTERVALS = ("default", "boosting", "linear", "gpboost")


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


def most(rows: list[Record]) -> list[Record]:
    """Of every set the largest cut that is not a large table."""
    rows = [row for row in rows if row["rows"] <= _LARGE_ROWS]
    largest = {row["set"]: max(r["rows"] for r in rows if r["set"] == row["set"]) for row in rows}
    return [row for row in rows if row["rows"] == largest[row["set"]]]


def summary() -> str:
    """The sentences of the page: of the largest cuts, and what fewer rows come to."""
    rows = kept()
    largest = most(rows)
    fewer = [row for row in rows if row not in largest and row["rows"] <= _LARGE_ROWS]
    found = sentences(largest)
    if fewer:
        cut = f"- Of {max(row['rows'] for row in fewer)} rows, "
        found += [cut + line[2:] for line in sentences(fewer)]
    return "\n".join(found)


def _starred(row: Record) -> str:
    return row["set"] + "\\*" * row["chosen"]


def _in_order(rows: list[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: (row["kind"], row["set"], row["n"]))


def large() -> str:
    """The table of docs/default-at-scale.md: all rows of large tables of classes."""
    shown, found = ["default", *LARGE, "boosting", "catboost", "linear"], []
    for row in (row for row in kept() if row["rows"] > _LARGE_ROWS):
        cells = [
            f"{at['loss']:.4f} ({at['calibration']:.3f}, {at['cpu']:.0f} s)" if at else ""
            for at in (row.get(model) for model in shown)
        ]
        name = row["set"].removesuffix("-all")
        found.append([name, spaced(row["n"]), str(row["columns"]), *cells])
    return table(["set", "rows", "columns", *shown], found, right=1)


def sets(rows: list[Record] | None = None) -> str:
    """A line a set: losses, the least in bold, and CPU seconds."""
    shown, found = [*OURS, *PEERS], []
    for row in _in_order(most(kept()) if rows is None else rows):
        least = min(row[model]["loss"] for model in shown if model in row)
        cells = []
        for model in shown:
            loss = f"{row[model]['loss']:.4f}" if model in row else ""
            bold = "**" * (loss == f"{least:.4f}")
            cells.append(f"{bold}{loss}{bold} ({row[model]['cpu']:.1f} s)" if loss else "")
        found.append([_starred(row), str(row["n"]), str(row["columns"]), *cells])
    return table(["set", "rows", "columns", *shown], found, right=1)


def intervals(rows: list[Record] | None = None) -> str:
    """90 % intervals: what their shares come to, and of every model share and mean log loss."""
    kept_ = most(kept()) if rows is None else rows
    with_ = _in_order([row for row in kept_ if "coverage" in row["default"]])
    words, found = [], []
    for kind in ("counts", "numbers"):
        for model in _WITH_INTERVALS:
            at = (row.get(model, {}) for row in with_ if row["kind"] == kind)
            if held := [said["coverage"] for said in at if "coverage" in said]:
                words.append(
                    f"- 90 % intervals of {kind}, {model}: from {min(held):.3f} to {max(held):.3f} "
                    f"of new rows, {len(held)} {'set' if len(held) == 1 else 'sets'}."
                )
    for row in with_:
        said = [row.get(m, {}).get(key) for m in _WITH_INTERVALS for key in ("coverage", "nlpd")]
        other = row.get("gpboost")
        loss = f"{other['loss']:.4f} ({other['cpu']:.1f} s)" if other else ""
        cells = ["" if value is None else f"{value:.3f}" for value in said]
        found.append([_starred(row), *cells, loss])
    heads = [head for m in _WITH_INTERVALS for head in (f"{m}: held", "−log p")]
    return "\n".join(words) + "\n\n" + table(["set", *heads, "loss (s)"], found, right=1)


def sentences(rows: list[Record]) -> list[str]:
    """What the losses come to, on the sets that chose constants and on the others."""
    found = []
    for words, part in (
        ("sets that chose constants", [row for row in rows if row["chosen"]]),
        ("all other sets", [row for row in rows if not row["chosen"]]),
    ):
        for model in OURS:
            ratios = np.array([r[model]["loss"] / r["trees"] for r in part if model in r])
            if len(ratios):
                found.append(
                    f"- {words}, {model}: our loss by that of the best tree has the median "
                    f"{np.median(ratios):.3f}, from {ratios.min():.3f} to {ratios.max():.3f}; "
                    f"{int((ratios < 1.0).sum())} of {len(ratios)} are below 1."
                )
    classes = [row for row in rows if row["kind"] == "classes"]
    if classes:
        better = sum(r[OURS[0]]["calibration"] <= r["boosting"]["calibration"] for r in classes)
        found.append(
            f"- The calibration error of the default is at most boosting's on {better} of "
            f"{len(classes)} sets of classes."
        )
    return found


#: Shapes of kernels that were tried for what trees see: log loss, leave-one-out mean, evidence.
shapes = Table(
    "shapes.jsonl",
    {
        "kernel": lambda some: (
            "the default"
            if some[-1]["shape"] == "default"
            else "{shape}, {inputs}".format(**some[-1])
        ),
        **across(
            "set",
            ("churn", "phoneme", "magic", "spambase"),
            "{loss:.4f} ({loo:.4f}, {evidence:.0f})",
        ),
    },
    group=("shape", "inputs"),
    right=1,
)


def write(records: Iterable[Record], folder: Path) -> int:
    """Draw bench_middle.png beside the records."""
    rows = means(records)
    if not rows:
        print("no set has been fitted by all models")
        return 1
    figures.middle(most(rows), OURS[0], folder / "bench_middle.png")
    print("docs/beside-trees.md: python -m scripts.reports pages beside-trees.md")
    return 0
