"""Write Table 1 beside the published one: Markdown, CSV, JSON and a figure.

The numbers are those of `table1_summary`.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.data import public as datasets
from scripts.reports.table1_numbers import METHODS, agreement, build, merge, published
from scripts.studies import experiment

Array = NDArray[np.float64]
Record = dict[str, Any]


def _cell(entry: dict[str, Any] | None, measure: str, digits: int = 1) -> str:
    if entry is None or measure not in entry:
        return "-"
    value = entry[measure]
    return f"{value['mean']:.{digits}f} ± {value['sd']:.{digits}f}"


def _table(header: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines]) + "\n"


def markdown(report: dict[str, Any]) -> str:
    """Return the report for people."""
    paper, merged = published(), merge(report)
    parts = [
        "# Table 1, reproduced\n",
        f"`{report['command']}`, {report['date']}; "
        + ", ".join(f"{k} {v}" for k, v in report["versions"].items())
        + ".\n",
        f"Protocol: {report['protocol']}. Means ± standard deviations over "
        "rounds; of each pair of lines the second is the published one.\n",
    ]
    lines = []
    for data in datasets.NAMES:
        if data not in merged:
            continue
        own, given = merged[data], paper[data]
        rounds = "/".join(str(own[m]["rounds"]) if m in own else "0" for m in ("ep", "vb"))
        cells = [_cell(own.get(m), k) for k in ("te", "ntll") for m in METHODS]
        lines.append([given["title"], rounds, *cells])
        cells = [
            f"{given[f'{k}_{m}']:g} ± {given[f'{k}_{m}_sd']:g}"
            for k in ("te", "ntll")
            for m in METHODS
        ]
        lines.append(["*published*", "200" if data == "mining" else "100", *cells])
    header = ["data", "rounds EP, QP / VB"]
    header += [f"{k} {m.upper()}" for k in ("TE x 100", "NTLL x 1000") for m in METHODS]
    parts += [_table(header, lines)]

    far = [
        f"{paper[a['data']]['title']} {a['method'].upper()} {a['measure'].upper()} "
        f"({a['deviations']:+.1f} of {a['allowed']:g})"
        for a in agreement(report)
        if a["method"] != "vb" and abs(a["deviations"]) > a["allowed"]
    ]
    parts.append(
        "EP and QP further from the published mean than allowed, in published standard "
        f"deviations: {', '.join(far) if far else 'none'}.\n"
    )
    for block, title in (
        ("main", "QP against EP at the same hyper-parameters"),
        ("log", "Hyper-parameters optimised as logarithms, as GPClassifier does"),
        ("loo", "Hyper-parameters by the leave-one-out density"),
        ("ard", "One length-scale per feature (ARD)"),
        ("all", "Folds that test every row"),
    ):
        parts += _comparison(report, block, title)
    parts += _quirks(report) + _grid(report) + _theorem(report) + _times(report)
    return "\n".join(parts)


def _title(data: str) -> str:
    names = {"pima532": "Pima, 532 different rows", "glass9": "Glass without row number"}
    return names.get(data) or published()[data]["title"]


def _comparison(report: dict[str, Any], block: str, title: str) -> list[str]:
    lines = []
    for entry in report["rows"]:
        if entry["block"] != block or "qp_against_ep" not in entry:
            continue
        test, methods = entry["qp_against_ep"], entry["methods"]
        lines.append(
            [
                _title(entry["data"]),
                str(entry["rounds"]),
                *[
                    f"{methods[m][k]['mean']:.2f} ± {methods[m][k]['se']:.2f}"
                    for k in ("te", "ntll")
                    for m in ("ep", "qp")
                ],
                f"{test['difference']:+.3f}",
                f"{100 * test['won']:.0f} %",
                f"{test['p']:.2g}",
                f"{methods['ep']['converged']}, {methods['qp']['converged']} of {entry['fits']}",
            ]
        )
    header = ["data", "rounds", "TE EP", "TE QP", "NTLL EP", "NTLL QP", "QP - EP", "folds QP wins"]
    if not lines:
        return []
    return [
        f"## {title}\n",
        "± standard errors over rounds; p: corrected paired t-test on the folds' NTLL.\n",
        _table([*header, "p", "converged"], lines),
    ]


def _quirks(report: dict[str, Any]) -> list[str]:
    """Pairs of rows that differ in one quirk, over the rounds both have."""
    entries = {(r["data"], r["block"]): r for r in report["rows"]}
    pairs = [
        ("Pima: 200 rows twice, or once", ("pima", "main"), ("pima532", "main")),
        ("Glass: with row number, or without", ("glass", "main"), ("glass9", "main")),
    ]
    pairs += [
        (f"{_title(data)}: remainder untested, or tested", (data, "main"), (data, "all"))
        for data, given in published().items()
        if given["m"] % experiment.FOLDS
    ]
    lines = []
    for words, *keys in pairs:
        found = [entries[key]["methods"] for key in keys if key in entries]
        if len(found) < 2:
            continue
        rounds = min(len(f["ep"]["ntll_rounds"]) for f in found)
        cells = [
            f"{np.mean(f[m][f'{k}_rounds'][:rounds]):.{digits}f}"
            for k, digits in (("te", 2), ("ntll", 2))
            for m in ("ep", "qp")
            for f in found
        ]
        pairs_of_cells = [f"{a}, {b}" for a, b in zip(cells[::2], cells[1::2], strict=True)]
        lines.append([words, str(rounds), *pairs_of_cells])
    if not lines:
        return []
    return [
        "## Quirks of the published data and folds\n",
        "As published, then without; means over the same number of rounds.\n",
        _table(["quirk", "rounds", "TE EP", "TE QP", "NTLL EP", "NTLL QP"], lines),
    ]


def _grid(report: dict[str, Any]) -> list[str]:
    main = {r["data"]: r for r in report["rows"] if r["block"] == "main"}
    lines = []
    for entry in report["rows"]:
        if entry["block"] != "grid":
            continue
        rules = [entry["methods"][f"qp_{rule}"] for rule in experiment.OUTSIDE]
        outside, large, of = rules[1]["outside"]
        ep = main.get(entry["data"], {}).get("methods", {}).get("ep")
        same = ep["ntll_rounds"][: entry["rounds"]] if ep else []
        lines.append(
            [
                _title(entry["data"]),
                str(entry["rounds"]),
                f"{100 * outside / of:.1f} %",
                f"{100 * large / of:.1f} %",
                f"{np.mean(same):.2f}" if same else "-",
                *[_short(rule["ntll"]["mean"]) for rule in rules],
                f"{rules[2]['converged']} of {entry['fits']}",
            ]
        )
    if not lines:
        return []
    header = [
        "data",
        "rounds",
        "cavities outside",
        "sigma > 10",
        "EP",
        "QP, EP outside",
        "QP exact",
    ]
    return [
        "## The edge of the paper's grid\n",
        "NTLL x 1000 of the same rounds, by what a lookup outside |mu| <= 10, 0.1 <= sigma <= 10 "
        "gives: EP's standard deviation as published, the exact value, or the value at the edge.\n",
        _table([*header, "QP clamped to the edge", "clamped: converged"], lines),
    ]


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 1e4 else f"{value:.1e}"


def _theorem(report: dict[str, Any]) -> list[str]:
    lines = []
    for entry in report["rows"]:
        if "theorem2" in entry and entry["block"] != "log":
            cells = [entry[name] for name in ("theorem2", "predictive", "marginal")]
            block = "" if entry["block"] == "main" else f" ({entry['block']})"
            lines.append(
                [
                    _title(entry["data"]) + block,
                    *[f"{c['held']:.0f} of {c['of']:.0f}, {c['largest']:.6f}" for c in cells],
                ]
            )
    if not lines:
        return []
    return [
        "## Variances of QP and EP\n",
        "How many are not larger for QP than for EP, and the largest ratio. Equal cavities: "
        "sigma* by quadrature and sigma_EP in closed form, at the cavities of QP's fixed point "
        "(Theorem 2). "
        "The others compare the two fixed points, which no theorem covers.\n",
        _table(
            [
                "data",
                "sites, equal cavities (sd)",
                "test points, fixed points (variance)",
                "training points, fixed points (variance)",
            ],
            lines,
        ),
    ]


def _times(report: dict[str, Any]) -> list[str]:
    lines, total, complete = [], 0.0, True
    entries = {(r["data"], r["block"]): r for r in report["rows"]}
    for data in datasets.NAMES:
        main, vb = entries.get((data, "main")), entries.get((data, "vb"))
        if main is None or vb is None:
            complete = False
            continue
        timed = entries.get((data, "time"), main)["methods"]
        cost = [r["cpu_per_round"] for r in (main, vb)]
        total += sum(cost) * experiment.rounds(data)
        lines.append(
            [
                _title(data),
                *[
                    f"{timed[m]['seconds']:.4f}" if m in timed else "-"
                    for m in ("ep", "qp", "qp_grid", "qp_exact")
                ],
                f"{main['seconds_optimum']:.2f}",
                f"{vb['seconds_optimum']:.2f}",
                *[f"{c:.2f}" for c in cost],
            ]
        )
    if not lines:
        return []
    header = ["data", "EP", "QP", "QP by grid", "QP by quadrature", "EP's optimum", "VB's optimum"]
    parts = [
        "## Seconds per fit\n",
        "Medians over fits: one run of EP or QP from the prior at given hyper-parameters (best of "
        "three, where measured apart), the whole optimisation, and CPU seconds of a round (a split "
        "for Mining). The machine was busy: upper bounds.\n",
        _table([*header, "round EP + QP", "round VB"], lines),
    ]
    if complete:
        once = total / 100.0
        parts.append(
            f"One round of all ten (two splits of Mining): {once:.0f} CPU seconds. 100 rounds, "
            f"extrapolated: {total / 3600:.2f} CPU hours.\n"
        )
    return parts


def write_csv(report: dict[str, Any], path: Path) -> None:
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


def draw(records: list[Record], path: Path) -> None:
    """Figure 1: predictive variances of QP against EP, classification and counts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pairs: dict[str, list[Array]] = defaultdict(list)
    for record in records:
        wanted = record["block"] == "main" and record["data"] in datasets.NAMES
        if wanted and "variances" in record:
            pairs[record["data"]].append(np.array(record["variances"]))
    figure, axes = plt.subplots(2, 2, figsize=(9.0, 8.0), layout="constrained")
    sides = ([d for d in datasets.NAMES if d != "mining"], ["mining"])
    words = ("(a) Binary classification", "(b) Poisson regression")
    for (axis, ratio), names, title in zip(axes.T, sides, words, strict=True):
        points = {n: np.concatenate(pairs[n], axis=1) for n in names if pairs[n]}
        if not points:
            continue
        everything = np.concatenate(list(points.values()), axis=1)
        limits = 0.7 * everything.min(), 1.4 * everything.max()
        axis.plot(limits, limits, color="0.6", linewidth=1.0, linestyle="--")
        ratio.axhline(1.0, color="0.6", linewidth=1.0, linestyle="--")
        for name, (ep, qp) in points.items():
            style = {"s": 7, "alpha": 0.5, "linewidths": 0, "label": _title(name)}
            axis.scatter(ep, qp, **style)
            ratio.scatter(ep, qp / ep, **style)
        axis.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=title)
        ratio.set(xscale="log", xlim=limits)
        axis.set_ylabel("QP predictive variance of f")
        ratio.set_ylabel("QP / EP")
        ratio.set_xlabel("EP predictive variance of f")
        axis.legend(frameon=False, fontsize=8, markerscale=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


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
        draw(records, folder / "figure1.png")


def _flat(text: str) -> str:
    """Join lists of numbers, which `json.dumps` breaks into a line for each."""
    import re

    return re.sub(r"\[[^\[\]{}\"]*\]", lambda m: re.sub(r"\s+", " ", m.group()), text)
