"""What stands below Table 1: comparisons, quirks of the data, the grid's edge, variances, times."""

import numpy as np

from scripts.benchmarks.data import protocol
from scripts.benchmarks.data.paper import NAMES
from scripts.reports.table1_numbers import published
from scripts.reports.tables import Record, table

_COMPARED = {
    "main": "QP against EP at the same hyper-parameters",
    "log": "Hyper-parameters optimised as logarithms, as GPClassifier does",
    "loo": "Hyper-parameters by the leave-one-out density",
    "ard": "One length-scale per feature (ARD)",
    "all": "Folds that test every row",
}


def parts(report: Record) -> list[str]:
    """Headings, words and tables of all blocks that the report has."""
    found = [part for block in _COMPARED for part in _comparison(report, block)]
    return found + _quirks(report) + _grid(report) + _theorem(report) + _times(report)


def titled(data: str) -> str:
    """How a data set is called."""
    names = {"pima532": "Pima, 532 different rows", "glass9": "Glass without row number"}
    return names.get(data) or published()[data]["title"]


def _section(title: str, words: str, header: str, lines: list[list[str]]) -> list[str]:
    """A heading, what it is about, and its table; nothing without lines."""
    if not lines:
        return []
    return [f"## {title}\n", f"{words}\n", table(header.split("; "), lines) + "\n"]


def _comparison(report: Record, block: str) -> list[str]:
    lines = []
    for entry in report["rows"]:
        if entry["block"] != block or "qp_against_ep" not in entry:
            continue
        test, methods = entry["qp_against_ep"], entry["methods"]
        of = [methods[m][k] for k in ("te", "ntll") for m in ("ep", "qp")]
        lines.append(
            [
                titled(entry["data"]),
                str(entry["rounds"]),
                *(f"{found['mean']:.2f} ± {found['se']:.2f}" for found in of),
                f"{test['difference']:+.3f}",
                f"{100 * test['won']:.0f} %",
                f"{test['p']:.2g}",
                f"{methods['ep']['converged']}, {methods['qp']['converged']} of {entry['fits']}",
            ]
        )
    words = "± standard errors over rounds; p: corrected paired t-test on the folds' NTLL."
    header = "data; rounds; TE EP; TE QP; NTLL EP; NTLL QP; QP - EP; folds QP wins; p; converged"
    return _section(_COMPARED[block], words, header, lines)


def _quirks(report: Record) -> list[str]:
    """Pairs of rows that differ in one quirk, over the rounds both have."""
    entries = {(r["data"], r["block"]): r["methods"] for r in report["rows"]}
    pairs = [
        ("Pima: 200 rows twice, or once", ("pima", "main"), ("pima532", "main")),
        ("Glass: with row number, or without", ("glass", "main"), ("glass9", "main")),
    ]
    pairs += [
        (f"{titled(data)}: remainder untested, or tested", (data, "main"), (data, "all"))
        for data, given in published().items()
        if given["m"] % protocol.FOLDS
    ]
    lines = []
    for words, *keys in pairs:
        found = [entries[key] for key in keys if key in entries]
        if len(found) == 2:
            rounds = min(len(f["ep"]["ntll_rounds"]) for f in found)
            cells = [
                ", ".join(f"{np.mean(f[m][f'{k}_rounds'][:rounds]):.2f}" for f in found)
                for k in ("te", "ntll")
                for m in ("ep", "qp")
            ]
            lines.append([words, str(rounds), *cells])
    words = "As published, then without; means over the same number of rounds."
    header = "quirk; rounds; TE EP; TE QP; NTLL EP; NTLL QP"
    return _section("Quirks of the published data and folds", words, header, lines)


def _grid(report: Record) -> list[str]:
    main = {r["data"]: r for r in report["rows"] if r["block"] == "main"}
    lines = []
    for entry in (row for row in report["rows"] if row["block"] == "grid"):
        rules = [entry["methods"][f"qp_{rule}"] for rule in protocol.OUTSIDE]
        outside, large, of = rules[1]["outside"]
        ep = main.get(entry["data"], {}).get("methods", {}).get("ep")
        same = ep["ntll_rounds"][: entry["rounds"]] if ep else []
        means = [rule["ntll"]["mean"] for rule in rules]
        lines.append(
            [
                titled(entry["data"]),
                str(entry["rounds"]),
                f"{100 * outside / of:.1f} %",
                f"{100 * large / of:.1f} %",
                f"{np.mean(same):.2f}" if same else "-",
                *(f"{mean:.2f}" if mean < 1e4 else f"{mean:.1e}" for mean in means),
                f"{rules[2]['converged']} of {entry['fits']}",
            ]
        )
    words = (
        "NTLL x 1000 of the same rounds, by what a lookup outside |mu| <= 10, 0.1 <= sigma <= 10 "
        "gives: EP's standard deviation as published, the exact value, or the value at the edge."
    )
    header = "data; rounds; cavities outside; sigma > 10; EP; QP, EP outside; QP exact"
    header += "; QP clamped to the edge; clamped: converged"
    return _section("The edge of the paper's grid", words, header, lines)


def _theorem(report: Record) -> list[str]:
    lines = []
    for entry in report["rows"]:
        if "theorem2" in entry and entry["block"] != "log":
            block = "" if entry["block"] == "main" else f" ({entry['block']})"
            found = [entry[name] for name in ("theorem2", "predictive", "marginal")]
            cells = [f"{c['held']:.0f} of {c['of']:.0f}, {c['largest']:.6f}" for c in found]
            lines.append([titled(entry["data"]) + block, *cells])
    words = (
        "How many are not larger for QP than for EP, and the largest ratio. Equal cavities: "
        "sigma* by quadrature and sigma_EP in closed form, at the cavities of QP's fixed point "
        "(Theorem 2). "
        "The others compare the two fixed points, which no theorem covers."
    )
    header = "data; sites, equal cavities (sd); test points, fixed points (variance)"
    header += "; training points, fixed points (variance)"
    return _section("Variances of QP and EP", words, header, lines)


def _times(report: Record) -> list[str]:
    lines, total = [], 0.0
    entries = {(r["data"], r["block"]): r for r in report["rows"]}
    for data in NAMES:
        main, vb = entries.get((data, "main")), entries.get((data, "vb"))
        if main is None or vb is None:
            continue
        timed = entries.get((data, "time"), main)["methods"]
        ways = ("ep", "qp", "qp_grid", "qp_exact")
        cells = [f"{timed[m]['seconds']:.4f}" if m in timed else "-" for m in ways]
        cells += [f"{r[k]:.2f}" for k in ("seconds_optimum", "cpu_per_round") for r in (main, vb)]
        lines.append([titled(data), *cells])
        total += (main["cpu_per_round"] + vb["cpu_per_round"]) * protocol.rounds(data)
    words = (
        "Medians over fits: one run of EP or QP from the prior at given hyper-parameters (best of "
        "three, where measured apart), the whole optimisation, and CPU seconds of a round (a split "
        "for Mining). The machine was busy: upper bounds."
    )
    header = "data; EP; QP; QP by grid; QP by quadrature; EP's optimum; VB's optimum"
    header += "; round EP + QP; round VB"
    parts = _section("Seconds per fit", words, header, lines)
    if len(lines) == len(NAMES):
        parts.append(
            f"One round of all ten (two splits of Mining): {total / 100.0:.0f} CPU seconds. 100 "
            f"rounds, extrapolated: {total / 3600:.2f} CPU hours.\n"
        )
    return parts
