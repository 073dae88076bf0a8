"""Tables of reproduce_deep.py and bench_deep.py from their records, beside the published."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.data import deep as deep_data
from scripts.records import RESULTS

__all__ = ["binary", "bound", "gains", "peers", "regression", "single", "streamed", "write"]

Records = list[dict[str, Any]]


class Published(NamedTuple):
    """Mean log-likelihood, its standard error over splits, RMSE; None is not stated."""

    log_density: float
    error: float | None
    rmse: float | None


#: Bui et al. (2016) by data, model and inducing inputs of a layer.
PUBLISHED = {
    ("boston", "GP", 50): Published(-2.22, 0.07, 2.43),
    ("boston", "DGP-2", 50): Published(-2.17, 0.10, 2.38),
    ("boston", "GP", 100): Published(-2.16, 0.07, 2.39),
    ("boston", "DGP-2", 100): Published(-2.09, 0.06, 2.38),
    ("boston", "DGP-3", 100): Published(-2.13, 0.09, 2.38),
    ("concrete", "GP", 50): Published(-2.85, 0.02, 5.55),
    ("concrete", "DGP-2", 50): Published(-2.61, 0.02, 4.64),
    ("concrete", "GP", 100): Published(-2.65, 0.02, 4.78),
    ("concrete", "DGP-2", 100): Published(-2.43, 0.02, 4.16),
    ("concrete", "DGP-3", 100): Published(-2.44, 0.02, 4.23),
}
#: Of binary sets, inducing inputs and splits not stated.
PUBLISHED_BINARY = {
    "cancer": {"GP": -0.05, "DGP-1": -0.04, "DGP-2": -0.04, "DGP-3": -0.04},
    "crabs": {"GP": -0.03, "DGP-1": -0.10, "DGP-2": -0.03, "DGP-3": -0.03},
    "ionosphere": {"GP": -0.17, "DGP-1": -0.17, "DGP-2": -0.16, "DGP-3": -0.16},
    "pima532": {"GP": -0.40, "DGP-1": -0.39, "DGP-2": -0.40, "DGP-3": -0.39},
    "sonar": {"GP": -0.32, "DGP-1": -0.29, "DGP-2": -0.30, "DGP-3": -0.31},
}


def kept(name: str = "reproduce_deep.jsonl") -> Records:
    """Lines of a kept file."""
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def markdown(lines: list[list[str]]) -> str:
    """A table, its header first."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def grouped(records: Iterable[dict[str, Any]], names: tuple[str, ...]) -> dict[Any, Records]:
    """Records by data, inducing inputs, power, steps, type and model, in this order."""
    found = defaultdict(list)
    for record in records:
        if record["data"] in names:
            key = tuple(record[name] for name in ("data", "inducing", "power", "steps", "dtype"))
            found[(*key, record["model"])].append(record)
    return dict(sorted(found.items(), key=lambda item: (names.index(item[0][0]), item[0][1:])))


def spread(rows: Records, what: str) -> str:
    """Mean over splits and its standard error."""
    values = np.array([row[what] for row in rows if what in row])
    if not len(values):
        return "–"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def regression(records: Records | None = None) -> str:
    """Log-likelihood and RMSE by data, inducing inputs and model, beside the published."""
    header = ["data", "M", "model", "splits", "log-likelihood", "published"]
    lines = [[*header, "by 100 draws", "RMSE", "published", "CPU s a fit"]]
    for (data, m, power, _, dtype, model), rows in grouped(
        kept() if records is None else records, deep_data.REGRESSION
    ).items():
        theirs = PUBLISHED.get((data, model, m))
        cells = ["–", "–"]
        if theirs is not None:
            cells = [f"{theirs.log_density:.2f} ± {theirs.error:.2f}", f"{theirs.rmse:.2f}"]
        words = model if power == 1.0 else f"{model}, α = {power:g}"
        words += "" if dtype == "float64" else f", {dtype}"
        cpu = f"{np.median([row['cpu'] for row in rows]):.0f}"
        own = [spread(rows, name) for name in ("log_density", "log_density_drawn", "rmse")]
        lines.append(
            [data, str(m or "–"), words, str(len(rows)), own[0], cells[0], *own[1:], cells[1], cpu]
        )
    return markdown(lines)


def gains(records: Records | None = None) -> str:
    """What a hidden layer adds to the log-likelihood of the same splits, beside the published."""
    lines = [["data", "M", "model", "splits", "gain over GP", "published"]]
    groups = grouped(kept() if records is None else records, deep_data.REGRESSION)
    for (data, m, power, steps, dtype, model), rows in groups.items():
        single = groups.get((data, m, power, steps, dtype, model.replace(model[:5], "GP")), [])
        base = {row["split"]: row["log_density"] for row in single}
        both = [
            {"gain": row["log_density"] - base[row["split"]]}
            for row in rows
            if row["split"] in base
        ]
        if not model.startswith("DGP") or not both:
            continue
        pair = [PUBLISHED.get((data, name, m)) for name in (model, "GP")]
        stated = "–"
        if pair[0] is not None and pair[1] is not None:
            stated = f"{pair[0].log_density - pair[1].log_density:.2f}"
        lines.append([data, str(m), model, str(len(both)), spread(both, "gain"), stated])
    return markdown(lines)


def single(records: Records | None = None) -> str:
    """What single precision of pairs changes on the same splits."""
    header = ["data", "M", "model", "splits", "diverged", "change of energy"]
    lines = [[*header, "change of log-likelihood", "CPU time beside double"]]
    groups = grouped(kept() if records is None else records, deep_data.REGRESSION)
    for (data, m, power, steps, dtype, model), rows in groups.items():
        double = groups.get((data, m, power, steps, "float64", model), [])
        base = {row["split"]: row for row in double}
        pairs = [(row, base[row["split"]]) for row in rows if row["split"] in base]
        if dtype == "float64" or not pairs:
            continue
        own = ("energy_at_end", "log_density")
        changes = [{name: one[name] - two[name] for name in own} for one, two in pairs]
        ratio = np.median([one["cpu"] / two["cpu"] for one, two in pairs])
        diverged = sum(not one["converged"] for one, _ in pairs)
        cells = [str(diverged), *(spread(changes, name) for name in own), f"{ratio:.2f}"]
        lines.append([data, str(m), model, str(len(pairs)), *cells])
    return markdown(lines)


def binary(records: Records | None = None) -> str:
    """Log-likelihood and error rate of the binary sets."""
    lines = [["data", "M", "model", "splits", "log-likelihood", "published", "error rate"]]
    for (data, m, _, _, _, model), rows in grouped(
        kept() if records is None else records, deep_data.BINARY
    ).items():
        theirs = PUBLISHED_BINARY[data][model]
        own = spread(rows, "log_density"), f"{np.mean([row['error'] for row in rows]):.3f}"
        lines.append([data, str(m), model, str(len(rows)), own[0], f"{theirs:.2f}", own[1]])
    return markdown(lines)


def bound(records: Records | None = None) -> str:
    """What the noise of an exact dense model leaves to be had, beside the highest published."""
    header = ["data", "splits", "dense GP", "its noise", "noise alone", "highest published"]
    lines = [header]
    groups = grouped(kept() if records is None else records, deep_data.REGRESSION)
    for (data, *_, model), rows in groups.items():
        if model != "dense GP":
            continue
        alone = [
            {"alone": -np.log(row["noise"]) - 0.5 * np.log(2.0 * np.pi * np.e)} for row in rows
        ]
        theirs = [one.log_density for key, one in PUBLISHED.items() if key[0] == data]
        own = [spread(rows, "log_density"), spread(rows, "noise"), spread(alone, "alone")]
        lines.append([data, str(len(rows)), *own, f"{max(theirs):.2f}" if theirs else "–"])
    return markdown(lines)


def streamed(records: Records | None = None) -> str:
    """Rows of zarr arrays: seconds and memory, as bench_deep.py --rows measured them."""
    lines = [["rows", "CPU s", "memory before, MB", "at most, MB", "RMSE of the function"]]
    for record in kept("bench_deep_rows.jsonl") if records is None else records:
        figures = [f"{record[name]:.0f}" for name in ("cpu", "before", "memory")]
        lines.append([f"{record['rows']:,}".replace(",", " "), *figures, f"{record['error']:.3f}"])
    return markdown(lines)


def peers(records: Records | None = None) -> str:
    """Marks of both programs by CPU seconds, as bench_deep.py measured them in one run."""
    lines = [["data", "program", "CPU s", "log-likelihood", "RMSE"]]
    for record in kept("bench_deep.jsonl") if records is None else records:
        for mark in record["marks"]:
            cells = [f"{mark['cpu']:.1f}", f"{mark['log_density']:.3f}", f"{mark['rmse']:.3f}"]
            lines.append([record["data"], record["program"], *cells])
    return markdown(lines)


def write(records: Iterable[dict[str, Any]], folder: Path = RESULTS) -> None:
    """Write reproduce_deep.md."""
    rows = list(records)
    parts = [
        "# Deep Gaussian processes beside the published",
        "By `scripts/reproduce_deep.py`. Means over test rows, then over splits, with standard "
        "errors of the mean; CPU seconds with compiling, on a machine that did other work "
        "meanwhile.",
        regression(rows),
        gains(rows),
    ]
    if any(row["data"] in deep_data.BINARY for row in rows):
        parts.append(binary(rows))
    (folder / "reproduce_deep.md").write_text("\n\n".join(parts) + "\n")
