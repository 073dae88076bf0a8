"""Tables of models of effects beside others, from what three studies have kept."""

from typing import Any

from scripts.records import lines
from scripts.reports.tables import Cell, Record, Table, spaced


def _pair(values: Any, form: str = ".3f") -> str:
    return f"{values[0]:{form}} ({values[1]:{form}})"


def _covered(rows: list[Record]) -> str:
    values = [*rows[0]["covered"], *([rows[0]["sd_covered"]] if "sd_covered" in rows[0] else [])]
    return ", ".join(f"{100 * value:.0f}" for value in values)


_SIMULATED = ("EP, maximum of the evidence", "EP, integrated", "GPBoost, Laplace")

#: Simulations of small groups: bias of the standard deviation, coverage and time.
simulations = Table(
    "effects.jsonl",
    {
        "groups × rows": lambda rows: rows[0]["problem"].replace(" x ", " × "),
        "model": "{model}",
        "sd: mean (rmse)": lambda rows: _pair(rows[0]["sd"]),
        "coverage, %": _covered,
        "CPU ms": lambda rows: f"{1000 * rows[0]['cpu_seconds']:.0f}",
    },
    group=("problem", "model"),
    where=lambda r: "seeds" in r and r["model"] in _SIMULATED,
    order=lambda key: key[0],
)


def _estimate(name: str) -> Cell:
    def cell(rows: list[Record]) -> str:
        values = rows[0].get("rows", {}).get(name)
        if values is None:
            return ""
        return f"{values[0]:.3f} ± {values[1]:.3f}" if len(values) > 1 else f"{values[0]:.3f}"

    return cell


#: Counts at many places.
places = Table(
    lambda: [r for r in lines("places.jsonl") if "fit_seconds" in r],
    {
        "places": lambda rows: spaced(rows[0]["rows"]),
        "model": "{model}",
        "fit, s": "{fit_seconds:.1f}",
        "predict, s": "{predict_seconds:.1f}",
        "GB": "{gigabytes:.1f}",
        "log density": "{log_density:.4f}",
        "rmse": "{rmse:.3f}",
        "in 90 %": lambda rows: f"{100 * rows[0]['covered']:.0f}",
    },
    group=("rows", "model"),
    order=lambda key: key[0],
)

#: Labels of children beside long chains and point estimates.
bacteria = Table(
    "effects.jsonl",
    {
        "model": "{model}",
        "effect of the drug": _estimate("drug"),
        "sd between children": _estimate("child: sd"),
        "CPU s": lambda rows: f"{rows[0]['cpu_seconds']:.2f}",
    },
    group=("model",),
    where=lambda r: r["problem"] == "bacteria",
)


def _by_model(rows: list[Record]) -> dict[str, Record]:
    return {row["model"]: row for row in rows}


def _seconds(model: str) -> Cell:
    def cell(rows: list[Record]) -> str:
        record = _by_model(rows).get(model)
        return f"{record['cpu']:.2f}" if record else ""

    return cell


def _deviations(model: str) -> Cell:
    def cell(rows: list[Record]) -> str:
        record = _by_model(rows).get(model)
        return ", ".join(f"{sd:.2f}" for sd in record["deviations"].values()) if record else ""

    return cell


def _distance(rows: list[Record]) -> str:
    """Largest difference of coefficients to glmmTMB's, in our standard deviations."""
    models = _by_model(rows)
    if "glmmTMB" not in models:
        return ""
    theirs = models["glmmTMB"]["coefficients"]
    pairs = models["EffectsModel"]["coefficients"].items()
    return f"{max(abs(mean - theirs[name][0]) / sd for name, (mean, sd) in pairs):.2f}"


#: Published sets beside packages of R.
mixed_sets = Table(
    "mixed_models.jsonl",
    {
        "set": "{set}",
        "rows": lambda rows: spaced(rows[0]["rows"]),
        "EffectsModel, s": _seconds("EffectsModel"),
        "glmmTMB, s": _seconds("glmmTMB"),
        "lme4, s": _seconds("lme4"),
        "sd between groups": _deviations("EffectsModel"),
        "by glmmTMB": _deviations("glmmTMB"),
        "coefficients differ by": _distance,
    },
    group=("set",),
    right=1,
)
