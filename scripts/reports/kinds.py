"""Tables of kinds of y beside usual models, of classes and of survival times, as studies keep."""

from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.records import lines
from scripts.reports import tables


def _known(name: str) -> tables.Cell:
    """Mean over folds, where models have such a field."""
    return lambda some: "" if some[0].get(name) is None else tables.average(name, ".3f")(some)


#: Means over folds.
kinds = tables.Table(
    "kinds.jsonl",
    {
        "set": "{set}",
        "rows": "{rows}",
        "model": "{model}",
        "concordance": _known("concordance"),
        "log density a row": _known("density"),
        "CPU s": tables.average("cpu", ".1f"),
    },
    group=("set", "model"),
)


def _largest_cuts() -> list[tables.Record]:
    """Return the records of the largest cut of every set."""
    kept = lines("coupling.jsonl")
    most: dict[str, int] = {}
    for r in kept:
        most[r["set"]] = max(most.get(r["set"], 0), r["fitted"])
    return [r for r in kept if r["fitted"] == most[r["set"]]]


#: Several classes by each way to join processes of one against the rest: log loss, calibration
#: error, means over seeds. Sets that have fewer rows than are asked for are once in the table.
classes = tables.Table(
    "coupling.jsonl",
    {
        "set, rows, classes": "{set}, {fitted} rows, {classes}",
        "b": tables.of("model", "default", tables.average("b", ".2f")),
        **tables.across("model", ("default", "scaled"), tables.beside("loss", "calibration")),
        **tables.across("model", ("linear", "boosting"), tables.average("loss", ".3f")),
    },
    group=("fitted", "set"),
    right=1,
    last=("model", "seed"),
)


def side(model: str) -> str:
    """Return whose model it is: "default", "other options", "R" or "other package"."""
    first = model.split()[0]
    if first[:2] == "GP":
        tuned = any(word in model for word in ("priors", "hurdle", "alone", "noise"))
        return "other options" if tuned else "default"
    return "R" if first in ("survival", "ordinal", "mgcv") else "other package"


SIDES = ("default", "other options", "R", "other package")
_KINDS = ("times", "levels", "counts", "positive")


def by_set() -> dict[str, dict[str, tables.Record]]:
    """Return means over folds of every model by set, and the gap to the highest log density."""
    means: dict[str, dict[str, tables.Record]] = {}
    for (name, model), some in tables.grouped(lines("kinds.jsonl"), ("set", "model")).items():
        known = [key for key in ("density", "concordance", "cpu") if key in some[0]]
        own = {key: float(np.mean([r[key] for r in some])) for key in known}
        kind = name.split("(")[1][:-1]
        means.setdefault(name, {})[model] = {
            **{"set": name, "kind": kind, "model": model, "rows": some[0]["rows"]},
            **own,
        }
    for models in means.values():
        top = max(r["density"] for r in models.values() if "density" in r)
        for r in models.values():
            if "density" in r:
                r["gap"] = top - r["density"]
    place = {name: _KINDS.index(next(iter(own.values()))["kind"]) for name, own in means.items()}
    return {name: means[name] for name in sorted(means, key=lambda name: place[name])}


def leaders(models: dict[str, tables.Record]) -> dict[str, tables.Record]:
    """Return the model with the highest log density of each side that has one."""
    found: dict[str, tables.Record] = {}
    for r in models.values():
        own = found.get(side(r["model"]))
        if "density" in r and (own is None or r["density"] > own["density"]):
            found[side(r["model"])] = r
    return found


def best() -> str:
    """Return the best log density of defaults, other options, R and other packages by set."""
    rows = []
    for name, models in by_set().items():
        top = leaders(models)
        cells = [_known("density")([top[s]]) if s in top else "" for s in SIDES]
        names = [top[s]["model"] if s in top else "" for s in SIDES[2:]]
        rows.append([name, str(next(iter(models.values()))["rows"]), *cells, *names])
    head = ["set", "rows", *SIDES, "which of R", "which other package"]
    return tables.table(head, rows)


def _over_sets(name: str, form: str, way: Callable[[list[float]], Any] = np.mean) -> tables.Cell:
    """Mean, or what `way` makes, of the records that have a field."""

    def cell(some: list[tables.Record]) -> str:
        known = [r[name] for r in some if name in r]
        return f"{way(known):{form}}" if known else ""

    return cell


#: Means over sets by model; the gap to the best log density has a median and a largest value.
models = tables.Table(
    lambda: [r for models in by_set().values() for r in models.values()],
    {
        "y": "{kind}",
        "model": "{model}",
        "sets": tables.count,
        "below the best": _over_sets("gap", ".3f", np.median),
        "at most": _over_sets("gap", ".3f", max),
        "concordance": _over_sets("concordance", ".3f"),
        "CPU s": _over_sets("cpu", ".2f"),
    },
    group=("kind", "model"),
    order=lambda key: (_KINDS.index(key[0]), SIDES.index(side(key[1]))),
    right=2,
)


#: What the page shows: one cut of every set.
largest_classes = classes._replace(file=_largest_cuts)
