"""Tables of deep Gaussian processes beside the published, from what study and benchmark keep."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.data import deep as deep_data
from scripts.records import lines
from scripts.reports import tables


class Published(NamedTuple):
    """Mean log-likelihood, its standard error over splits, RMSE."""

    log_density: float
    error: float
    rmse: float


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
_FIT = ("data", "inducing", "power", "steps", "dtype", "model")


def _stated(form: Callable[[Published], str]) -> tables.Cell:
    """What was published of this fit."""

    def cell(rows: list[tables.Record]) -> str:
        found = PUBLISHED.get((rows[0]["data"], rows[0]["model"], rows[0]["inducing"]))
        return "–" if found is None else form(found)

    return cell


def _named(rows: list[tables.Record]) -> str:
    first = rows[0]
    power = "" if first["power"] == 1.0 else f", α = {first['power']:g}"
    return first["model"] + power + ("" if first["dtype"] == "float64" else f", {first['dtype']}")


def _fits(names: tuple[str, ...], columns: Any) -> tables.Table:
    """A line for each kind of fit, sets in the order of their names."""
    return tables.Table(
        "reproduce_deep.jsonl",
        columns,
        group=_FIT,
        where=lambda r: r["data"] in names,
        order=lambda key: (names.index(key[0]), key[1:]),
    )


_REGRESSION: list[tuple[str, tables.Cell]] = [
    ("data", "{data}"),
    ("M", lambda rows: str(rows[0]["inducing"] or "–")),
    ("model", _named),
    ("splits", tables.count),
    ("log-likelihood", tables.spread("log_density")),
    ("published", _stated(lambda p: f"{p.log_density:.2f} ± {p.error:.2f}")),
    ("by 100 draws", tables.spread("log_density_drawn")),
    ("RMSE", tables.spread("rmse")),
    ("RMSE, published", _stated(lambda p: f"{p.rmse:.2f}")),
    ("CPU s a fit", tables.average("cpu", ".0f", np.median)),
]
#: Log-likelihood and RMSE by data, inducing inputs and model.
regression = _fits(deep_data.REGRESSION, _REGRESSION)


def _stated_binary(model: str) -> tables.Cell:
    return lambda rows: f"{PUBLISHED_BINARY[rows[0]['data']][model]:.2f}"


#: Log-likelihoods of the binary sets, a line for each set.
by_depth = tables.Table(
    "reproduce_deep.jsonl",
    {
        "data": "{data}",
        **tables.across("model", ("GP", "DGP-1", "DGP-2", "DGP-3"), tables.spread("log_density")),
        "GP, published": _stated_binary("GP"),
        "DGP-3, published": _stated_binary("DGP-3"),
    },
    group=("data",),
    where=lambda r: r["data"] in deep_data.BINARY,
    order=lambda key: key,
)


def _pairs(
    groups: dict[Any, list[tables.Record]], key: Any, other: Any
) -> list[tuple[tables.Record, tables.Record]]:
    """Records of one kind of fit, and those of another of the same split."""
    base = {row["split"]: row for row in groups.get(other, [])}
    return [(row, base[row["split"]]) for row in groups[key] if row["split"] in base]


def beside_published(records: Iterable[tables.Record] | None = None) -> str:
    """Return log-likelihoods of the published models and of one more hidden unit, with gains."""
    rows, groups = [], regression.groups(records)
    for key, some in groups.items():
        *fit, model = key
        if model not in ("dense GP", "GP", "DGP-2", "DGP-3") or "float32" in fit:
            continue
        pairs = _pairs(groups, key, (*fit, "GP")) if model[:3] == "DGP" else []
        gain = tables.mean_error([deep["log_density"] - one["log_density"] for deep, one in pairs])
        cells = [
            tables.filled(cell, some)
            for header, cell in _REGRESSION
            if header in ("data", "M", "model", "log-likelihood", "published", "CPU s a fit")
        ]
        rows.append([*cells[:-1], gain, cells[-1]])
    head = ["data", "M", "model", "log-likelihood", "published", "gain over GP", "CPU s a fit"]
    return tables.table(head, rows)


#: Last marks of all programs, as ``benchmarks deep`` measured them in one run.
peers = tables.Table(
    lambda: [{**r, **r["marks"][-1]} for r in lines("bench_deep.jsonl")],
    {
        "data": "{data}",
        "program": "{program}",
        "CPU s": "{cpu:.1f}",
        "log-likelihood": "{log_density:.3f}",
        "RMSE": "{rmse:.3f}",
    },
)
