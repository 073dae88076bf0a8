"""Tables of kinds of y beside usual models, of classes and of survival times, as studies keep."""

import numpy as np

from scripts.records import lines
from scripts.reports.tables import Cell, Record, Table, across, average, beside, grouped, of, table


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


_LINE = "linear + Matérn"
_MODELS = ("default", _LINE, f"{_LINE}, priors", "lifelines WeibullAFTFitter")


def kernels() -> str:
    """Log densities of survival times by set and kernel, concordances in brackets; their means."""
    found: list[Record] = []
    for some in grouped(lines("survival_kernels.jsonl"), ("set",)).values():
        if {r["model"] for r in some} >= set(_MODELS):
            found += some
    found += [{**r, "set": "mean", "rows": ""} for r in found]
    columns = {"set": "{set}", "rows": "{rows}"}
    columns |= across("model", _MODELS, beside("density", "concordance"))
    return Table("", columns, ("set",))(found).replace("|  |", "| |")


#: What the page shows: one cut of every set.
largest_classes = classes._replace(file=_largest_cuts)
