"""Tables of docs/bench-cost.md: speed and series by size, inducing points, and errors of sigma*."""

import csv
from collections.abc import Iterable

import numpy as np

from qpruntime import likelihoods, project
from qpruntime.projection.projector import project_arrays
from scripts.records import TOP, document, lines
from scripts.reports.tables import Record, Table, number, size, spaced, table

_FITS = {
    "`GPClassifier`, EP": "fit, ep",
    "`GPClassifier`, QP": "fit, qp",
    "scikit-learn (Laplace)": "fit, scikit-learn (Laplace)",
    "GPBoost (Laplace, C++, 2 threads)": "fit, GPBoost (Laplace)",
    "GPy (EP at every step), ratio to ours": "fit, GPy (nested EP) / ep",
}


_SERIES = {
    "fixed point, probit, EP": "probit, EP",
    "… ratio of QP to EP": "probit, QP / EP",
    "fixed point, Poisson e^f, EP": "poisson-exp, EP",
    "fit of two parameters, probit": "fit, probit",
    "… Poisson e^f": "fit, poisson-exp",
    "GPBoost, fit, probit": "GPBoost, fit",
    "… ours in the same run": "ours, fit",
}


def by_size(head: str, found: dict[str, str], rows: dict[str, str], sizes: dict[int, str]) -> str:
    """One line for each quantity, one cell for each N; `rows` are names behind "N=...: "."""
    lines = [
        [words, *(found.get(f"N={n}: {what}", "") for n in sizes)] for words, what in rows.items()
    ]
    return table([head, *sizes.values()], [line for line in lines if any(line[1:])])


def numbers() -> dict[str, float]:
    """Return every kept number of the benchmark of speed by its name."""
    kept = document("bench.json")["results"].values()
    return {row["what"]: row["value"] for rows in kept for row in rows}


def _measured(rows: dict[str, str], sizes: tuple[int, ...]) -> str:
    kept = document("bench.json")["results"].values()
    cells = {row["what"]: number(row["value"]) for some in kept for row in some}
    return by_size("", cells, rows, {n: f"N = {n}" for n in sizes})


def series() -> str:
    """CPU seconds of series by size."""
    kept = document("bench_series.json")
    found = {name: f"{value:.3g}" for name, (value, _) in kept.items()}
    return by_size("CPU seconds", found, _SERIES, {10**k: f"N = 1e{k}" for k in (4, 5, 6, 7)})


def fits() -> str:
    """What a fit costs, beside others."""
    return _measured(_FITS, (200, 500, 1000))


def costs() -> str:
    """Return the cost of corrections relative to the same call without them."""
    rows = [r for r in document("bench.json")["results"]["corrections"] if r["unit"] == "x"]
    return table(["ratio", "value"], [[r["what"], f"{r['value']:.3g}"] for r in rows])


def accuracy() -> str:
    """Largest relative errors against mpmath over the stored cavities, of each likelihood."""
    worst: dict[str, np.ndarray] = {}
    for path in sorted((TOP / "tests" / "reference").glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        name = path.stem.split("_")[0]
        base = name.split("(")[0]
        if "sigma_star" not in rows[0] or base not in likelihoods.names():
            continue
        held = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
        y = held["y"] if "y" in held else np.column_stack([held["successes"], held["trials"]])
        cavity = held["mu"], held["sigma"], y
        ep = project_arrays(name, *cavity, "ep")
        exact = project(name, *cavity, table="exact")[1]
        errors = (
            np.abs(ep.log_z - held["log_z"]) / np.maximum(1.0, np.abs(held["log_z"])),
            np.abs(ep.std / np.sqrt(held["variance"]) - 1.0),
            np.abs(exact / held["sigma_star"] - 1.0),
        )
        largest = np.max(errors, axis=1)
        worst[base] = np.maximum(worst.get(base, np.zeros(3)), largest)
    # Rounding differs between processors in the last digits: powers of ten are what is stated.
    lines = [
        [f"`{name}`", *(f"< 1e{int(np.ceil(np.log10(max(e, 1e-17))))}" for e in errors)]
        for name, errors in worst.items()
    ]
    return table(["likelihood", "log Z", "σ_EP", "σ\\*"], lines)


_NAMES = {"own": "ours", "svgp": "SVGP", "fitc": "FITC", "vecchia": "Vecchia"}
# Other cases of the file have the density of numbers and counts.
_LABELS = ("synthetic", "flights")
# From so many rows on those of the default are on the disk.
_MAPPED = 1_000_000


def _spoken(record: Record) -> str:
    name, n, m = record["case"].split("-")
    return f"{name}, N = {int(n):,}, M = {m}".replace(",0", " 0").replace(",9", " 9")


def peers(records: Iterable[Record] | None = None) -> str:
    """Labels: how soon the peer's last figure is passed, and both ends."""
    found = lines("bench_sparse.jsonl") if records is None else records
    kept = {(r["case"], r["peer"]): r for r in found if r["case"].startswith(_LABELS)}
    rows = []
    for (case, name), theirs in kept.items():
        if name == "own" or (case, "own") not in kept:
            continue
        path = kept[case, "own"]["path"]
        own, row = path[-1], [_spoken(theirs), _NAMES[name]]
        if not theirs["path"]:
            rows.append([*row, theirs["ended"], "", f"{own[1]:.4f}", f"{own[0]:.0f}", "", ""])
            continue
        end = theirs["path"][-1]
        passed = [at for at, nll, _ in path if nll <= end[1]]
        share = f"{min(passed) / end[0]:.2f}" if passed else "not passed"
        row += [f"{end[1]:.4f}", f"{end[0]:.0f}", f"{own[1]:.4f}", f"{own[0]:.0f}"]
        rows.append([*row, share, f"{end[2]:.4f}, {own[2]:.4f}"])
    header = ["", "peer", "its NLL", "after", "ours", "after", "share"]
    return table([*header, "calibration errors"], rows)


#: The default at 10^5 rows and more: the last record of every size.
scale = Table(
    "scale.jsonl",
    {
        "rows": lambda some: spaced(some[-1]["rows"]) + ", mapped" * (some[-1]["rows"] >= _MAPPED),
        "elapsed s, two cores": "{wall:.0f}",
        "CPU s": "{cpu:.0f}",
        "own memory, GB": lambda some: f"{some[-1]['own'] / 1e9:.2f}",
        "log loss": "{loss:.4f}",
        "µs a prediction": lambda some: f"{1e6 * some[-1]['later']:.0f}",
    },
    group=("rows",),
    where=lambda r: "model" not in r,
    order=lambda key: key,
)
scale_peers = Table(
    "scale.jsonl",
    {
        "model": "{model}",
        "rows": size("rows"),
        "elapsed s, two cores": "{wall:.0f}",
        "CPU s": "{cpu:.0f}",
        "memory, GB": lambda some: f"{some[-1]['bytes'] / 1e9:.2f}",
        "log loss": "{loss:.4f}",
        "µs a prediction": lambda some: f"{1e6 * some[-1]['later']:.0f}",
    },
    group=("model", "rows"),
    where=lambda r: "model" in r,
    order=lambda key: key,
)


#: Drift of rows in parts from all rows at once, with one site per row.
drift = Table(
    "study_streams.jsonl",
    {
        "rows": lambda some: some[-1]["data"].replace("-", ", "),
        "order and rows in a part": "{order}, {size}",
        "evidence, nats": "{evidence:+.2f}",
        "means, sd": "{means:.3f}",
        "NLL × 1000": lambda some: f"{1000.0 * some[-1]['nll']:+.2f}",
    },
    where=lambda r: r["sites"] == "own" and r["data"].startswith("labels"),
)
