"""Write Table 1 beside the published one: Markdown, CSV, JSON and a figure.

Its numbers are made in `table1_numbers`, what follows the table in `table1_blocks`.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.data.paper import NAMES
from scripts.records import document
from scripts.reports import figures, table1_blocks
from scripts.reports.table1_numbers import METHODS, agreement, build, merge, published
from scripts.reports.tables import Record, table


def _cell(entry: Record | None, measure: str, missing: str = "-") -> str:
    if entry is None or measure not in entry:
        return missing
    return f"{entry[measure]['mean']:.1f} ± {entry[measure]['sd']:.1f}"


def _given(paper: Record, measure: str, method: str) -> str:
    return f"{paper[f'{measure}_{method}']:g} ± {paper[f'{measure}_{method}_sd']:g}"


def page() -> str:
    """NTLL beside the published, for docs/bench-paper.md."""
    paper, lines = published(), []
    for data, found in merge(document("table1.json")).items():
        if data not in paper:
            continue
        own = [_cell(found.get(m), "ntll", "–") for m in METHODS]
        theirs = [_given(paper[data], "ntll", m) for m in METHODS]
        rounds = " / ".join(str(found[m]["rounds"]) for m in ("ep", "vb") if m in found)
        lines.append([paper[data]["title"], rounds, *own, *theirs])
    names = [m.upper() for m in METHODS]
    return table(["data", "rounds", *names, *(f"{m}, published" for m in names)], lines)


def corrected() -> str:
    """Say how far corrections change the NTLL of Table 1."""
    paper, gaps, p = published(), {}, []
    for entry in document("table1_corrected.json")["rows"]:
        before, after = (np.mean(entry["methods"][m]["ntll_rounds"]) for m in ("ep", "blend"))
        gaps[paper[entry["data"]]["title"]] = after - before
        p.append(entry["blend_against_ep"]["p"])
    best, worst = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    return (
        f"- Corrected predictions do not score better. On {len(gaps)} data sets of the paper the "
        f"negative log density × 1000 changes by {gaps[best]:+.1f} ({best}) to {gaps[worst]:+.1f} "
        f"({worst}). The smallest p-value of the corrected paired t-test is {min(p):.2g}."
    )


def markdown(report: Record) -> str:
    """Return the report for people."""
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    parts = [
        "# Table 1, reproduced\n",
        f"`{report['command']}`, {report['date']}; {versions}.\n",
        f"Protocol: {report['protocol']}. Means ± standard deviations over "
        "rounds; of each pair of lines the second is the published one.\n",
        _whole(report),
        _far(report),
        *table1_blocks.parts(report),
    ]
    return "\n".join(parts)


def _whole(report: Record) -> str:
    paper, merged, lines = published(), merge(report), []
    both = [(k, m) for k in ("te", "ntll") for m in METHODS]
    for data in NAMES:
        if data not in merged:
            continue
        own, given = merged[data], paper[data]
        rounds = "/".join(str(own[m]["rounds"]) if m in own else "0" for m in ("ep", "vb"))
        lines.append([given["title"], rounds, *(_cell(own.get(m), k) for k, m in both)])
        theirs = (_given(given, k, m) for k, m in both)
        lines.append(["*published*", "200" if data == "mining" else "100", *theirs])
    header = ["data", "rounds EP, QP / VB"]
    header += [f"{k} {m.upper()}" for k in ("TE x 100", "NTLL x 1000") for m in METHODS]
    return table(header, lines) + "\n"


def _far(report: Record) -> str:
    paper = published()
    far = [
        f"{paper[a['data']]['title']} {a['method'].upper()} {a['measure'].upper()} "
        f"({a['deviations']:+.1f} of {a['allowed']:g})"
        for a in agreement(report)
        if a["method"] != "vb" and abs(a["deviations"]) > a["allowed"]
    ]
    return (
        "EP and QP further from the published mean than allowed, in published standard "
        f"deviations: {', '.join(far) if far else 'none'}.\n"
    )


def write_csv(report: Record, path: Path) -> None:
    """Write one line for each data set, block and method."""
    paper = published()
    header = ["data", "block", "method", "rounds"]
    header += [f"{k}{s}" for k in ("te", "ntll") for s in ("", "_sd", "_se", "_published")]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*header, "seconds", "converged", "fits"])
        for entry in report["rows"]:
            for method, values in entry["methods"].items():
                line: list[Any] = [entry["data"], entry["block"], method, entry["rounds"]]
                for measure in ("te", "ntll"):
                    line += [f"{values[measure][k]:.4f}" for k in ("mean", "sd", "se")]
                    given = paper.get(entry["data"], {}).get(f"{measure}_{method}", "")
                    line.append(given if entry["block"] in ("main", "vb") else "")
                line += [f"{values['seconds']:.5f}", values["converged"], entry["fits"]]
                writer.writerow(line)


def write(records: list[Record], folder: Path) -> None:
    """Write ``table1.md``, ``.csv``, ``.json`` and ``figure1.png`` to `folder`.

    Block ``corrected`` has a file of its own, ``table1_corrected.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    apart = [record for record in records if record["block"] == "corrected"]
    if apart:
        text = json.dumps(build(apart), indent=1)
        (folder / "table1_corrected.json").write_text(_flat(text) + "\n")
    records = [record for record in records if record["block"] != "corrected"]
    if not records:
        return
    report = build(records)
    text = json.dumps(report, indent=1)
    # One line for each list of rounds.
    (folder / "table1.json").write_text(_flat(text) + "\n")
    (folder / "table1.md").write_text(markdown(report))
    write_csv(report, folder / "table1.csv")
    if any("variances" in record for record in records):
        figures.table1(records, table1_blocks.titled, folder / "figure1.png")


def _flat(text: str) -> str:
    """Join lists of numbers, which `json.dumps` breaks into a line for each."""
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda m: re.sub(r"\s+", " ", m.group()), text)
