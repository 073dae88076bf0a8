"""Write tables, findings and charts of the benchmark pages from kept results.

    python -m scripts.reports pages                  # all
    python -m scripts.reports pages bench-paper.md bench-deep.md

Nobody types a number between the marks.
"""

import re
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from scripts.records import TOP
from scripts.reports import (
    bayesopt,
    certified,
    charts,
    deep,
    effects,
    findings,
    forecasts,
    frames,
    integrated,
    kinds,
    middle,
    speed,
    table1,
    truth,
)
from scripts.reports.tables import printed

#: Text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, by page.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "bench-boosting.md": {
        "findings": findings.boosting,
        "sets": middle.sets,
        "intervals": middle.intervals,
        "frames": frames.peers,
        "large": middle.large,
        "monotone": printed(
            "monotone.csv", "function of the first feature", "rows", "gain", "gain of boosting"
        ),
        "losses": findings.boosting_losses,
    },
    "bench-mixed-models.md": {
        "findings": findings.mixed_models,
        "simulations": effects.simulations,
        "bias": printed("effects_bias.csv"),
        "sets": effects.mixed_sets,
        "bacteria": effects.bacteria,
        "groups": printed("sparse_precisions.csv"),
        "places": effects.places,
    },
    "bench-forecasts.md": {
        "findings": findings.forecasts,
        "others": forecasts.others,
        "zeros": forecasts.zeros,
        "held out": forecasts.held_out,
        "panels": forecasts.panels,
        "losses": findings.forecast_losses,
    },
    "bench-cost.md": {
        "findings": findings.cost,
        "fits": speed.fits,
        "scale": speed.scale,
        "scale peers": speed.scale_peers,
        "peers": speed.peers,
        "series": speed.series,
        "parts": findings.parts,
        "drift": speed.drift,
    },
    "bench-posterior.md": {
        "findings": findings.posterior,
        "by method": truth.by_method,
        "by kind": truth.by_kind,
        "said": truth.by_word,
        "costs": speed.costs,
        "wrong": truth.wrong,
        "table 1": table1.corrected,
        "averaging": findings.averaging,
        "few": integrated.few_rows,
        "sets": integrated.change,
    },
    "bench-paper.md": {"findings": findings.paper, "table1": table1.page},
    "bench-classes.md": {
        "findings": findings.classes,
        "coupling": kinds.largest_classes,
        "joint": printed("joint_classes.csv"),
        "many": printed("many_classes.csv"),
    },
    "bench-bayesopt.md": {
        "findings": findings.optimisation,
        "gaps": partial(bayesopt.gaps, decoupled=False),
        "pays": bayesopt.pays,
        "times": bayesopt.times,
    },
    "bench-deep.md": {
        "findings": findings.deep,
        "published": deep.beside_published,
        "binary": deep.by_depth,
        "peers": deep.peers,
    },
    "bench-families.md": {
        "findings": findings.families,
        "kinds": kinds.best,
        "models": kinds.models,
        "preferences": printed("preferences.csv"),
        "losses": findings.families_losses,
    },
    "bench-integrals.md": {
        "findings": findings.integrals,
        "failures": certified.failures,
        "accuracy": speed.accuracy,
        "costs": certified.some_costs,
    },
}

OPTIONS = {"*pages": {"nargs": "*", "metavar": "PAGE", "help": "pages to write (default all)"}}


def written(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return the page with every marked part made anew; raise `ValueError` if a mark is missing."""
    for name, make in parts.items():
        marks = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(
            marks, lambda m, new=make: f"{m[1]}\n{new()}\n\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} places are marked {name!r}, not one")
    return text


def main(options: Namespace) -> None:
    """Write every page and its chart, or those that are named."""
    charts.FOLDER.mkdir(parents=True, exist_ok=True)
    for page in options.pages or PAGES:
        path = TOP / "docs" / page
        path.write_text(written(path.read_text(), PAGES[page]))
        name = path.stem.removeprefix("bench-")
        charts.CHARTS[name](charts.path_of(name))
        print(f"docs/{page}")
