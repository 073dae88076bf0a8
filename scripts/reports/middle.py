"""Write the tables and the picture of `bench_middle`: our losses by those of trees, set by set."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.data.middle import CHOOSING
from scripts.benchmarks.peers.tuned import LARGE, OURS, PEERS
from scripts.records import RESULTS
from scripts.reports import intervals as middle_interval_page

__all__ = [
    "intervals",
    "kept",
    "large",
    "means",
    "most",
    "sentences",
    "sets",
    "summary",
    "table",
    "write",
]


_TREES = ("boosting", "catboost", "forest", *LARGE)
# A set without these is not shown.
_NEEDED = {OURS[0], "boosting", "linear"}
# More rows than this have a table of their own.
_LARGE_ROWS = 20_000
_SAID = ("coverage", "width", "nlpd")


def means(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a set and number of rows: means over the seeds that all models have."""
    newest: dict[tuple[str, int, int, str], dict[str, Any]] = {}
    for record in records:
        newest[record["set"], record["rows"], record["seed"], record["model"]] = record
    groups: dict[tuple[str, int], dict[str, dict[int, dict[str, Any]]]] = defaultdict(dict)
    for (name, asked, seed, model), record in newest.items():
        groups[name, asked].setdefault(model, {})[seed] = record
    found = []
    for (name, rows), models in sorted(groups.items()):
        if not set(models) >= (_NEEDED if rows <= _LARGE_ROWS else {OURS[0], *LARGE}):
            continue
        seeds = set.intersection(*(set(of) for of in models.values()))
        if not seeds:
            continue
        any_record = next(iter(models[OURS[0]].values()))
        row: dict[str, Any] = {"set": name, "n": any_record["n"], "kind": any_record["kind"]}
        row["rows"] = rows
        row |= {"columns": any_record["columns"], "chosen": name in CHOOSING, "seeds": len(seeds)}
        for model, of in models.items():
            row[model] = {
                key: float(np.mean([of[s][key] for s in seeds]))
                for key in ("loss", "cpu", *_SAID)
                if all(of[s].get(key) is not None for s in seeds)
            }
            if any_record["kind"] == "classes":
                row[model]["calibration"] = float(np.mean([of[s]["calibration"] for s in seeds]))
        row["trees"] = min(row[tree]["loss"] for tree in _TREES if tree in row)
        found.append(row)
    return found


def write(records: list[dict[str, Any]], folder: Path) -> int:
    """Draw bench_middle.png beside the records."""
    rows = means(records)
    if not rows:
        print("no set has been fitted by all models")
        return 1
    _picture(most(rows), folder / "bench_middle.png")
    print("docs/beside-trees.md: python scripts/write_pages.py beside-trees.md")
    return 0


def kept() -> list[dict[str, Any]]:
    """The rows of the records that are kept with the project."""
    lines = (RESULTS / "bench_middle.jsonl").read_text().splitlines()
    return means([json.loads(line) for line in lines])


def sets() -> str:
    """The table of the page."""
    return table(most(kept()))


def most(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every set the largest cut that is not a large table."""
    rows = [row for row in rows if row["rows"] <= _LARGE_ROWS]
    largest = {row["set"]: max(r["rows"] for r in rows if r["set"] == row["set"]) for row in rows}
    return [row for row in rows if row["rows"] == largest[row["set"]]]


def summary() -> str:
    """The sentences of the page: of the largest cuts, and what fewer rows come to."""
    rows = kept()
    largest = most(rows)
    fewer = [row for row in rows if row not in largest and row["rows"] <= _LARGE_ROWS]
    lines = sentences(largest)
    if fewer:
        cut = f"- Of {max(row['rows'] for row in fewer)} rows, "
        lines += [cut + line[2:] for line in sentences(fewer)]
    return "\n".join(lines)


def intervals() -> str:
    """The table of intervals, and what their shares come to."""
    rows = most(kept())
    return f"{middle_interval_page.words(rows)}\n\n{middle_interval_page.table(rows)}"


def large() -> str:
    """The table of docs/default-at-scale.md: all rows of large tables of classes."""
    shown = ["default", *LARGE, "boosting", "catboost", "linear"]
    lines = [
        f"| set | rows | columns | {' | '.join(shown)} |",
        f"| --- | ---: | ---: | {' | '.join('---:' for _ in shown)} |",
    ]
    for row in (row for row in kept() if row["rows"] > _LARGE_ROWS):
        cells = []
        for model in shown:
            found = row.get(model)
            if found is None:
                cells.append("")
                continue
            error, seconds = found["calibration"], found["cpu"]
            cells.append(f"{found['loss']:.4f} ({error:.3f}, {seconds:.0f} s)")
        rows = f"{row['n']:,}".replace(",", " ")
        name = row["set"].removesuffix("-all")
        lines.append(f"| {name} | {rows} | {row['columns']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    """A line a set: losses, the least in bold, and CPU seconds."""
    shown = [*OURS, *PEERS]
    lines = [
        f"| set | rows | columns | {' | '.join(shown)} |",
        f"| --- | ---: | ---: | {' | '.join('---:' for _ in shown)} |",
    ]
    for row in sorted(rows, key=lambda row: (row["kind"], row["set"], row["n"])):
        least = min(row[model]["loss"] for model in shown if model in row)
        cells = []
        for model in shown:
            if model not in row:
                cells.append("")
                continue
            loss = f"{row[model]['loss']:.4f}"
            loss = f"**{loss}**" if loss == f"{least:.4f}" else loss
            cells.append(f"{loss} ({row[model]['cpu']:.1f} s)")
        star = "\\*" if row["chosen"] else ""
        lines.append(
            f"| {row['set']}{star} | {row['n']} | {row['columns']} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def sentences(rows: list[dict[str, Any]]) -> list[str]:
    """What the losses come to, on the sets that chose constants and on the others."""
    lines = []
    for words, part in (
        ("sets that chose constants", [row for row in rows if row["chosen"]]),
        ("all other sets", [row for row in rows if not row["chosen"]]),
    ):
        for model in OURS if part else ():
            fitted = [row for row in part if model in row]
            if not fitted:
                continue
            ratios = np.array([row[model]["loss"] / row["trees"] for row in fitted])
            lines.append(
                f"- {words}, {model}: our loss by that of the best tree has the median "
                f"{np.median(ratios):.3f}, from {ratios.min():.3f} to {ratios.max():.3f}; "
                f"{int((ratios < 1.0).sum())} of {len(ratios)} are below 1."
            )
    classes = [row for row in rows if row["kind"] == "classes"]
    if classes:
        better = sum(
            row[OURS[0]]["calibration"] <= row["boosting"]["calibration"] for row in classes
        )
        lines.append(
            f"- The calibration error of the default is at most boosting's on {better} of "
            f"{len(classes)} sets of classes."
        )
    return lines


def _picture(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = sorted(rows, key=lambda row: row[OURS[0]]["loss"] / row["trees"])
    at = np.arange(len(rows))
    figure, axes = plt.subplots(figsize=(7.0, 0.26 * len(rows) + 1.4), layout="constrained")
    for model, mark, size, colour, face in (
        ("default", "o", 9, "#1f5fa8", "none"),
        ("boosted mean", "D", 4, "#d1711f", "#d1711f"),
        ("linear", "|", 10, "#777777", "none"),
    ):
        ratio = [row[model]["loss"] / row["trees"] if model in row else np.nan for row in rows]
        axes.plot(ratio, at, mark, color=colour, markerfacecolor=face, label=model, markersize=size)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.45, 3.0)
    ticks = [0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(at, [f"{r['set']}, {r['n']} × {r['columns']}, {r['kind']}" for r in rows])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel(
        "loss of rows that were not fitted, by that of the best of boosting, CatBoost and forest"
    )
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
