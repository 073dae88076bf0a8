"""Tables of what benchmarks of speed and of series keep by size, and errors of sigma*.

Tables of docs/bench-cost.md.
"""

import csv

import numpy as np

from qpruntime import likelihoods, project
from qpruntime.projection.projector import project_arrays
from scripts.records import TOP, document
from scripts.reports.tables import number, table

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
