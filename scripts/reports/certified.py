"""Tables and the picture of docs/models-measured.md, of ``tables/results/certified.json``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from scripts.records import document
from scripts.reports.figures import canvas
from scripts.reports.tables import Cell, Record, Table, grouped, number

_LIBRARIES = {
    "arrays, value": "arrays",
    "and both derivatives": "derivatives",
    "numba": "numba",
    "JAX": "jax",
    "gradient by JAX": "jax_gradient",
    "PyTorch": "torch",
    "gradient by PyTorch": "torch_gradient",
}


def _microseconds(name: str) -> Cell:
    """Of what is kept in nanoseconds, where there is such a library."""
    return lambda some: number(1e-3 * some[-1][name] if name in some[-1] else None)


def _factor(name: str, more: float = 0.0) -> Cell:
    """What a number is multiplied with."""

    def cell(some: list[Record]) -> str:
        value = some[-1][name] + more
        return "× 0" if abs(value) < 1e-3 else f"× {value:.3g}"

    return cell


def _kept(what: str) -> Iterable[Record]:
    return document("certified.json")[what]


#: Microseconds a cavity.
costs = Table(
    partial(_kept, "costs"),
    {
        "function": "`{method}`",
        "likelihood": "{likelihood}",
        **{words: _microseconds(name) for words, name in _LIBRARIES.items()},
    },
    right=2,
)
#: Errors of 20 points on every curve, at two deviations of q.
failures = Table(
    partial(_kept, "failures"),
    {
        "q and p(y\\|f)": "{curve}",
        "σ": "{sigma:.2g}",
        "log Z, nats": "{log_z:+.2g}",
        "tilted deviation": _factor("std"),
        "slope of E log p": _factor("slope", 1.0),
    },
    where=lambda r: r["sigma"] in (3.162278, 10.0),
    right=1,
)


def draw(records: list[Record], path: Path) -> None:
    """Errors of 20 points along the deviation of q: log Z, tilted deviation, slope."""
    with canvas(path, (10.0, 3.6), 120, (1, 3)) as axes:
        for (title,), some in grouped(records, ("curve",)).items():
            sigma = [r["sigma"] for r in some]
            axes[0].loglog(sigma, [max(abs(r["log_z"]), 1e-16) for r in some], label=title)
            axes[1].loglog(sigma, [max(r["std"], 1e-4) for r in some])
            axes[2].loglog(sigma, [max(abs(r["slope"]), 1e-16) for r in some])
        titles = ("log Z: error in nats", "tilted deviation: ratio", "slope of E log p: relative")
        for axis, words in zip(axes, titles, strict=True):
            axis.set(xlabel="standard deviation of q", title=words)
        axes[0].axhline(1e-9, color="0.6", linestyle=":")
        axes[0].legend(fontsize=6)
