"""Tables of kinds of y beside usual models, of classes and of survival times, as studies keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

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
    table,
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
)


def _largest_cuts() -> list[Record]:
    """Return the records of the largest cut of every set."""
    kept = lines("coupling.jsonl")
    most: dict[str, int] = {}
    for r in kept:
        most[r["set"]] = max(most.get(r["set"], 0), r["fitted"])
    return [r for r in kept if r["fitted"] == most[r["set"]]]


#: Several classes by each way to join processes of one against the rest: log loss, calibration
#: error, means over seeds. Sets that have fewer rows than are asked for are once in the table.
classes = Table(
    "coupling.jsonl",
    {
        "set, rows, classes": "{set}, {fitted} rows, {classes}",
        "b": of("model", "default", average("b", ".2f")),
        **across("model", ("default", "scaled"), beside("loss", "calibration")),
        **across("model", ("linear", "boosting"), average("loss", ".3f")),
    },
    group=("fitted", "set"),
    right=1,
    last=("model", "seed"),
)


def is_tuned(model: str) -> bool:
    """Decide whether a model of ours was changed after its default had been seen."""
    return any(word in model for word in ("kernel", "priors", "hurdle")) and model[:2] == "GP"


def _best(some: list[Record]) -> Record | None:
    """Means of the model with the highest mean log density, if there is one."""
    means = [
        {
            "model": model,
            "density": float(np.mean([r["density"] for r in own])),
            "cell": _known("density")(own) + f" ({_known('concordance')(own)})".replace(" ()", ""),
        }
        for (model,), own in grouped(some, ("model",)).items()
        if own[0].get("density") is not None
    ]
    return max(means, key=lambda r: r["density"]) if means else None


def best() -> str:
    """Return the best log density of defaults, other kernels and packages by set."""
    rows = []
    for (name,), kept in grouped(lines("kinds.jsonl"), ("set",)).items():
        models = (
            _best([r for r in kept if r["model"][:2] == "GP" and not is_tuned(r["model"])]),
            _best([r for r in kept if is_tuned(r["model"])]),
            _best([r for r in kept if r["model"][:2] != "GP"]),
        )
        cells = ["" if model is None else model["cell"] for model in models]
        package = "" if models[2] is None else models[2]["model"]
        rows.append([name, str(kept[0]["rows"]), *cells, package])
    head = ["set", "rows", "default", "other kernel", "best package", "which package"]
    return table(head, rows)


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
)

_LINE = "linear + Matérn"
#: Of the default and the kernel with a line the one with more of this in a fold.
_CHOSEN = {"by evidence": "evidence", "by rows left out": "loo"}
_MODELS = ("default", _LINE, f"{_LINE}, priors", *_CHOSEN, "lifelines WeibullAFTFitter")


def kernels(records: Iterable[Record] | None = None, shown: Sequence[str] = _MODELS) -> str:
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
    columns |= across("model", shown, beside("density", "concordance"))
    return Table("", columns, ("set",))(found).replace("|  |", "| |")


#: What the page shows: one cut of every set, and kernels without the choice between them.
largest_classes = classes._replace(file=_largest_cuts)
some_kernels = partial(kernels, shown=(*_MODELS[:3], _MODELS[-1]))
