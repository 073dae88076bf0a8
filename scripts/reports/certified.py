"""Tables of docs/bench-integrals.md, from ``tables/results/certified.json``."""

from collections.abc import Iterable
from functools import partial

from scripts.records import document
from scripts.reports.tables import Cell, Record, Table, number

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
#: Costs of the page.
some_costs = costs.select(
    *("function", "likelihood", "arrays, value", "and both derivatives", "numba", "JAX", "PyTorch"),
    where=lambda r: r["likelihood"] in ("probit", "student-t"),
)
