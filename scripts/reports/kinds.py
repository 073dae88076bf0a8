"""Tables of kinds of y beside usual models, of classes and of survival times, as studies keep."""

from __future__ import annotations

from collections.abc import Iterable

from scripts.records import lines
from scripts.reports.tables import (
    Cell,
    Record,
    Table,
    across,
    average,
    beside,
    count,
    grouped,
    mean_error,
    of,
    spread,
)


def _known(name: str) -> Cell:
    """Mean over folds, where models have such a field."""
    return lambda some: "" if some[0].get(name) is None else average(name, ".3f")(some)


#: Means over folds.
kinds = Table(
    "kinds.jsonl",
    {
        "set": "{set}",
        "rows": "{rows}",
        "model": "{model}",
        "concordance": _known("concordance"),
        "log density a row": _known("density"),
        "CPU s": average("cpu", ".1f"),
    },
    group=("set", "model"),
    tight=True,
)

#: Several classes by each way to join processes of one against the rest: log loss, calibration
#: error, means over seeds. Sets that have fewer rows than are asked for are once in the table.
classes = Table(
    "coupling.jsonl",
    {
        "set, rows, classes": "{set}, {fitted} rows, {classes}",
        "b": of("model", "default", average("b", ".2f")),
        **across(
            "model",
            ("default", "scaled", "exactly one", "linear", "boosting"),
            beside("loss", "calibration"),
        ),
    },
    group=("fitted", "set"),
    right=1,
    last=("model", "seed"),
)


def is_tuned(model: str) -> bool:
    """Decide whether a model of ours was changed after its default had been seen."""
    return any(word in model for word in ("kernel", "priors", "hurdle")) and model[:2] == "GP"


def _gain(name: str) -> Cell:
    """What integrating gains over the mode, on the same seeds."""

    def cell(some: list[Record]) -> str:
        mode, integrated = (
            {r["seed"]: r[name] for r in some if r["how"] == how} for how in ("mode", "integrate")
        )
        return mean_error([integrated[seed] - mode[seed] for seed in mode if seed in integrated])

    return cell


#: Intervals of survival times of the mode and integrated, a line for each number of rows.
cover = Table(
    "survival_cover.jsonl",
    [
        ("rows", "{rows}"),
        ("sets", of("how", "mode", count)),
        ("covered, mode", of("how", "mode", spread("covered"))),
        ("… integrated", of("how", "integrate", spread("covered"))),
        ("integrated - mode", _gain("covered")),
        ("log density, mode", of("how", "mode", average("density", ".3f"))),
        ("integrated - mode", _gain("density")),
        ("CPU s, mode", of("how", "mode", average("cpu", ".1f"))),
        ("… integrated", of("how", "integrate", average("cpu", ".1f"))),
    ],
    group=("rows",),
    order=lambda key: key,
    tight=True,
)

_LINE = "linear + Matérn"
#: Of the default and the kernel with a line the one with more of this in a fold.
_CHOSEN = {"by evidence": "evidence", "by rows left out": "loo"}
_MODELS = ("default", _LINE, f"{_LINE}, priors", *_CHOSEN, "lifelines WeibullAFTFitter")


def kernels(records: Iterable[Record] | None = None) -> str:
    """Log densities of survival times by set and kernel, concordances in brackets; their means."""
    found = []
    kept = lines("survival_kernels.jsonl") if records is None else records
    for some in grouped(kept, ("set",)).values():
        pairs = grouped([r for r in some if r["model"] in _MODELS[:2]], ("fold",)).values()
        for model, what in _CHOSEN.items():
            some += [{**max(pair, key=lambda r: r[what]), "model": model} for pair in pairs]
        if {r["model"] for r in some} >= set(_MODELS):
            found += some
    found += [{**r, "set": "mean", "rows": ""} for r in found]
    columns = {"set": "{set}", "rows": "{rows}"}
    columns |= across("model", _MODELS, beside("density", "concordance"))
    return Table("", columns, ("set",), tight=True)(found).replace("|  |", "| |")
