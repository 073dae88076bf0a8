"""Tables and the picture of docs/other-libraries.md, of ``tables/results/certified.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.records import document
from scripts.reports.tables import number, table

__all__ = ["costs", "draw", "failures"]

_FILE = "certified.json"
_COLUMNS = {
    "arrays, value": "arrays",
    "and both derivatives": "derivatives",
    "numba": "numba",
    "JAX": "jax",
    "gradient by JAX": "jax_gradient",
    "PyTorch": "torch",
    "gradient by PyTorch": "torch_gradient",
}


def costs() -> str:
    """Microseconds a cavity."""
    rows = [
        [
            f"`{record['method']}`",
            record["likelihood"],
            *(_microseconds(record.get(name)) for name in _COLUMNS.values()),
        ]
        for record in document(_FILE)["costs"]
    ]
    return table(["function", "likelihood", *_COLUMNS], rows, right=2)


def _microseconds(nanoseconds: float | None) -> str:
    return number(None if nanoseconds is None else 1e-3 * nanoseconds)


def failures() -> str:
    """Errors of 20 points on every curve, at two deviations of q."""
    rows = []
    for title, records in _curves(document(_FILE)["failures"]).items():
        for sigma in (3.162278, 10.0):
            (at,) = (r for r in records if r["sigma"] == sigma)
            cells = [f"{at['log_z']:+.2g}", _factor(at["std"]), _factor(1.0 + at["slope"])]
            rows.append([title, f"{sigma:.2g}", *cells])
    header = ["q and p(y\\|f)", "σ", "log Z, nats", "tilted deviation", "slope of E log p"]
    return table(header, rows, right=1)


def _factor(value: float) -> str:
    return "× 0" if abs(value) < 1e-3 else f"× {value:.3g}"


def _curves(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record["curve"], []).append(record)
    return found


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Errors of 20 points along the deviation of q: log Z, tilted deviation, slope."""
    from scripts.reports.figures import canvas

    with canvas(path, (10.0, 3.6), 120, (1, 3)) as axes:
        for title, some in _curves(records).items():
            sigma = [r["sigma"] for r in some]
            axes[0].loglog(sigma, [max(abs(r["log_z"]), 1e-16) for r in some], label=title)
            axes[1].loglog(sigma, [max(r["std"], 1e-4) for r in some])
            axes[2].loglog(sigma, [max(abs(r["slope"]), 1e-16) for r in some])
        titles = ("log Z: error in nats", "tilted deviation: ratio", "slope of E log p: relative")
        for axis, words in zip(axes, titles, strict=True):
            axis.set(xlabel="standard deviation of q", title=words)
        axes[0].axhline(1e-9, color="0.6", linestyle=":")
        axes[0].legend(fontsize=6)
