"""Tables and the picture of docs/other-libraries.md, of ``tables/results/certified.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scripts.records import document
from scripts.reports.tables import number, table

__all__ = ["costs", "draw", "failures"]

_FILE = "certified.json"
_COLUMNS = {
    "arrays, value": "arrays",
    "and both derivatives": "derivatives",
    "numba": "numba",
    "JAX": "jax",
    "its gradient": "jax_gradient",
    "PyTorch": "torch",
    "its gradient ": "torch_gradient",
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
    """The worst of 20 points on every curve, and where it is."""
    rows = []
    for title, records in _curves(document(_FILE)["failures"]).items():
        cells = [title]
        for name, size in (("log_z", abs), ("std", lambda v: abs(np.log(v))), ("slope", abs)):
            worst = max(records, key=lambda r, name=name, size=size: size(r[name]))
            text = f"{worst[name]:+.2g}" if name == "log_z" else f"× {_factor(worst, name):.2g}"
            cells.append(f"{text} (σ = {worst['sigma']:.2g})")
        rows.append(cells)
    return table(["q and p(y\\|f)", "log Z, nats", "tilted deviation", "slope of E log p"], rows)


def _factor(record: dict[str, Any], name: str) -> float:
    return float(record[name] if name == "std" else 1.0 + record[name])


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
            axes[1].semilogx(sigma, [r["std"] for r in some])
            axes[2].loglog(sigma, [max(abs(r["slope"]), 1e-16) for r in some])
        axes[1].set_yscale("log")
        titles = ("log Z: error in nats", "tilted deviation: ratio", "slope of E log p: relative")
        for axis, words in zip(axes, titles, strict=True):
            axis.set(xlabel="standard deviation of q", title=words)
        axes[0].axhline(1e-9, color="0.6", linestyle=":")
        axes[0].legend(fontsize=6)
