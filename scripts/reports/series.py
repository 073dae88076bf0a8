"""Tables of docs/series-measured.md: what ``benchmarks series`` keeps."""

from __future__ import annotations

from scripts.records import document
from scripts.reports.speed import by_size
from scripts.reports.tables import table

__all__ = ["times"]

_SIZES = {10**k: f"N = 1e{k}" for k in (4, 5, 6, 7)}
_ROWS = {
    "fixed point, probit, EP": "probit, EP",
    "… a point, ns": "probit, EP, a point",
    "… QP against EP": "probit, QP / EP",
    "fixed point, Poisson e^f, EP": "poisson-exp, EP",
    "fit of two parameters, probit": "fit, probit",
    "… Poisson e^f": "fit, poisson-exp",
    "GPBoost, fit, probit": "GPBoost, fit",
    "… it predicts N": "GPBoost, predict",
    "ours in that run, fit": "ours, fit",
    "… ours predict N": "ours, predict",
}


def kept() -> dict[str, float]:
    """Values by what they are of."""
    return {name: value for name, (value, _) in document("bench_series.json").items()}


def times() -> str:
    """Seconds by size."""
    found = {name: f"{value:.3g}" for name, value in kept().items()}
    (_, *header), *lines = by_size(found, _ROWS, _SIZES)
    return table(["CPU seconds", *header], lines)
