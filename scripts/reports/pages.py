"""Write the numbers on the pages in docs/ from kept results; what is between two marks is replaced.

``python scripts/write_pages.py`` rewrites docs/measurements.md and docs/paper.md from
``tables/results/bench.json`` (kept by ``python scripts/bench.py --json``), the stored references
and ``tables/results/table1.json``, docs/bayesian-optimisation.md from what bench_bayesopt.py
keeps, docs/deep.md from what reproduce_deep.py and bench_deep.py keep, docs/rows-on-a-cluster.md
from what bench_sparse_size.py keeps of --workers, docs/rows-in-parts.md from what study_streams.py
keeps, docs/time-series.md from what bench_series.py keeps, docs/beside-trees.md from what
bench_middle.py keeps, docs/default-at-scale.md from what bench_scale.py keeps. No number between
the marks is typed by hand.
"""

from __future__ import annotations

import csv
import json
import re
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime import likelihoods, project
from qpruntime.projection.projector import project_arrays
from scripts.records import RESULTS, TOP
from scripts.reports import bayesopt_page, scale
from scripts.reports import cluster as sparse_cluster_page
from scripts.reports import deep as deep_report
from scripts.reports import middle as middle_report
from scripts.reports import series as series_page
from scripts.reports import sparse as sparse_report
from scripts.reports import streams as streams_report
from scripts.reports import truth as truth_report
from scripts.reports import weights as weights_report
from scripts.reports.table1_numbers import merge, published

REFERENCE = TOP / "tests" / "reference"

Measured = dict[str, tuple[float | None, str]]


def measured() -> Measured:
    """Values and units of the kept benchmark by what they are of."""
    document = json.loads((RESULTS / "bench.json").read_text())
    return {
        row["what"]: (row["value"], row["unit"])
        for rows in document["results"].values()
        for row in rows
    }


def digits(value: float | None, unit: str = "", places: int = 3) -> str:
    """A number for people: so many digits, ratios as they are."""
    if value is None:
        return "–"
    text = f"{value:.{places}g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", " ")
    return f"{text} {unit}".strip() if unit and unit != "x" else text


def table(header: list[str], lines: list[list[str]]) -> str:
    """Markdown."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def by_size(found: Measured, rows: dict[str, str], sizes: list[int]) -> str:
    """One line for each quantity, one column for each N; `rows` are names behind "N=...: "."""
    lines = []
    for words, what in rows.items():
        cells = [found.get(f"N={n}: {what}") for n in sizes]
        if any(cell is not None for cell in cells):
            lines.append([words, *(digits(*cell) if cell else "" for cell in cells)])
    return table(["", *(f"N = {n}" for n in sizes)], lines)


def sweeps() -> str:
    """What a sweep and a refresh cost."""
    rows = {"one EP sweep": "sweep, ep", "… in Cholesky factorisations": "sweep, ep / Cholesky"}
    for words, way in (
        ("the shipped table", "qp, shipped table"),
        ("the mapped grid", "qp, mapped table"),
        ("quadrature", "qp, exact"),
    ):
        rows[f"… QP with {words}, against EP"] = f"sweep, {way} / ep"
    rows["… GPy's loop over the sites, against ours"] = "GPy sweep, ep / ours"
    rows["refresh, in Cholesky factorisations"] = "refresh / Cholesky"
    return by_size(measured(), rows, [300, 500, 1000, 2000])


def fits() -> str:
    """What a fit costs, beside others."""
    rows = {
        "`GPClassifier`, EP": "fit, ep",
        "`GPClassifier`, QP": "fit, qp",
        "scikit-learn (Laplace)": "fit, scikit-learn (Laplace)",
        "GPBoost (Laplace, C++, 2 threads)": "fit, GPBoost (Laplace)",
        "GPy (EP at every step), against ours": "fit, GPy (nested EP) / ep",
    }
    return by_size(measured(), rows, [200, 500, 1000])


def everything() -> str:
    """Every kept number, as the benchmark prints it."""
    document = json.loads((RESULTS / "bench.json").read_text())
    parts = [f"Python {document['python']}."]
    parts += [f"Left out: {line}." for line in document["skipped"]]
    for section, rows in document["results"].items():
        lines = [[row["what"], digits(row["value"]), row["unit"]] for row in rows]
        parts.append(f"### {section}\n\n" + table(["what", "value", "unit"], lines))
    return "\n\n".join(parts)


def accuracy() -> str:
    """Largest relative errors against mpmath over the stored cavities, of each likelihood."""
    worst: dict[str, np.ndarray] = {}
    for path in sorted(REFERENCE.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        name = path.stem.split("_")[0]
        if "sigma_star" not in rows[0] or name.split("(")[0] not in likelihoods.names():
            continue
        held = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
        y = held["y"] if "y" in held else np.column_stack([held["successes"], held["trials"]])
        cavity = held["mu"], held["sigma"], y
        ep = project_arrays(name, *cavity, "ep")
        exact = project(name, *cavity, table="exact")[1]
        errors = np.array(
            [
                np.max(np.abs(ep.log_z - held["log_z"]) / np.maximum(1.0, np.abs(held["log_z"]))),
                np.max(np.abs(ep.std / np.sqrt(held["variance"]) - 1.0)),
                np.max(np.abs(exact / held["sigma_star"] - 1.0)),
            ]
        )
        base = name.split("(")[0]
        worst[base] = np.maximum(worst.get(base, np.zeros(3)), errors)
    # Rounding differs between processors in the last digits: powers of ten are what is stated.
    lines = [
        [f"`{name}`", *(f"< 1e{int(np.ceil(np.log10(max(e, 1e-17))))}" for e in errors)]
        for name, errors in worst.items()
    ]
    return table(["likelihood", "log Z", "σ_EP", "σ\\*"], lines)


def table1() -> str:
    """NTLL of Table 1 beside the published."""
    report = json.loads((RESULTS / "table1.json").read_text())
    paper, own = published(), merge(report)
    methods = ("ep", "qp", "vb")
    lines = []
    for data, found in own.items():
        if data not in paper:
            continue
        cells = [
            f"{found[m]['ntll']['mean']:.1f} ± {found[m]['ntll']['sd']:.1f}" if m in found else "–"
            for m in methods
        ]
        given = paper[data]
        cells += [f"{given[f'ntll_{m}']:g} ± {given[f'ntll_{m}_sd']:g}" for m in methods]
        rounds = " / ".join(str(found[m]["rounds"]) for m in ("ep", "vb") if m in found)
        lines.append([given["title"], rounds, *cells])
    names = [m.upper() for m in methods]
    return table(["data", "rounds", *names, *(f"{m}, published" for m in names)], lines)


#: What stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, by page.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "measurements.md": {
        "sweeps": sweeps,
        "fits": fits,
        "accuracy": accuracy,
        "everything": everything,
    },
    "paper.md": {"table1": table1},
    "bayesian-optimisation.md": {
        "pays": bayesopt_page.pays,
        "gaps": bayesopt_page.gaps,
        "times": bayesopt_page.times,
    },
    "time-series.md": {"times": series_page.times, "cost": series_page.cost},
    "deep.md": {
        "published": deep_report.regression,
        "gains": deep_report.gains,
        "bound": deep_report.bound,
        "binary": deep_report.binary,
        "streamed": deep_report.streamed,
        "peers": deep_report.peers,
        "single": deep_report.single,
    },
    "million-rows.md": {
        "curve": sparse_report.curve,
        "peers": sparse_report.peers,
        "noise": sparse_report.noise,
        "sizes": sparse_report.sizes,
        "products": sparse_report.products,
        "dense": sparse_report.dense,
    },
    "rows-on-a-cluster.md": {
        "passes": sparse_cluster_page.passes,
        "constants": sparse_cluster_page.constants,
        "estimates": sparse_cluster_page.estimates,
    },
    "beside-trees.md": {
        "sets": middle_report.sets,
        "summary": middle_report.summary,
        "intervals": middle_report.intervals,
    },
    "default-at-scale.md": {"scale": scale.page, "large": middle_report.large},
    "rows-in-parts.md": {"drift": streams_report.drift},
    "which-posterior.md": {
        "by method": truth_report.by_method,
        "by kind": truth_report.by_kind,
        "wrong": truth_report.wrong,
        "said": truth_report.by_word,
    },
    "corrections.md": {
        "weights": weights_report.by_group,
        "held out": weights_report.held_out,
        "loops": weights_report.by_loops,
        "table 1": weights_report.corrected_table1,
        "hyper": weights_report.hyper_parameters,
        "costs": weights_report.costs,
    },
}


def written(text: str, parts: dict[str, Callable[[], Any]]) -> str:
    """Return the page with every marked part made anew; `ValueError` if a mark is missing."""
    for name, make in parts.items():
        marks = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(
            marks, lambda m, new=make: f"{m[1]}\n{new()}\n\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} places are marked {name!r}, not one")
    return text


OPTIONS = {"*pages": {"nargs": "*", "metavar": "PAGE", "help": "all, unless some are named"}}


def main(options: Namespace) -> None:
    """Write every page, or those that are named."""
    for page in options.pages or PAGES:
        parts = PAGES[page]
        path = TOP / "docs" / page
        path.write_text(written(path.read_text(), parts))
        print(f"docs/{page}")
