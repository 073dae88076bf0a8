"""Write the numbers on the pages in docs from kept results; what is between two marks is replaced.

    python -m scripts.reports pages                  # all
    python -m scripts.reports pages paper.md deep-measured.md

No number between the marks is typed by hand.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable

from scripts.records import TOP
from scripts.reports import (
    bayesopt,
    certified,
    deep,
    forecasts,
    frames,
    integrated,
    kinds,
    middle,
    passes,
    sparse,
    speed,
    table1,
    truth,
    weights,
)

#: What stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, by page.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "measurements.md": {
        "sweeps": speed.sweeps,
        "fits": speed.fits,
        "accuracy": speed.accuracy,
        "everything": speed.everything,
    },
    "paper.md": {"table1": table1.page},
    "bayesian-optimisation-measured.md": {
        "pays": bayesopt.pays,
        "gaps": bayesopt.gaps,
        "times": bayesopt.times,
    },
    "forecasts-measured.md": {
        "peers": forecasts.seen,
        "others": forecasts.others,
        "zeros": forecasts.zeros,
        "panels": forecasts.panels,
    },
    "models-measured.md": {
        "kinds": kinds.kinds,
        "kernels": kinds.kernels,
        "cover": kinds.cover,
        "peers": frames.peers,
        "forms": frames.forms,
        "gaps": frames.gaps,
        "designs": integrated.designs,
        "sets": integrated.sets,
        "few": integrated.few_rows,
        "failures": certified.failures,
        "costs": certified.costs,
    },
    "series-measured.md": {"times": speed.series},
    "deep-measured.md": {
        "published": deep.regression,
        "gains": deep.gains,
        "bound": deep.bound,
        "binary": deep.binary,
        "streamed": deep.streamed,
        "peers": deep.peers,
        "single": deep.single,
    },
    "rows-measured.md": {
        "curve": sparse.curve,
        "peers": sparse.peers,
        "noise": sparse.noise,
        "sizes": sparse.sizes,
        "products": sparse.products,
        "dense": sparse.dense,
    },
    "cluster-measured.md": {
        "passes": passes.passes,
        "constants": passes.constants,
        "estimates": passes.estimates,
    },
    "beside-trees.md": {
        "sets": middle.sets,
        "summary": middle.summary,
        "intervals": middle.intervals,
        "shapes": middle.shapes,
    },
    "default-at-scale.md": {
        "scale": sparse.scale,
        "peers": sparse.scale_peers,
        "large": middle.large,
    },
    "several-classes-measured.md": {"coupling": kinds.classes},
    "rows-in-parts-measured.md": {"drift": sparse.drift},
    "which-posterior.md": {
        "by method": truth.by_method,
        "by kind": truth.by_kind,
        "wrong": truth.wrong,
        "said": truth.by_word,
    },
    "corrections.md": {
        "weights": weights.by_group,
        "held out": weights.held_out,
        "loops": weights.by_loops,
        "table 1": weights.corrected_table1,
        "hyper": weights.hyper_parameters,
        "costs": speed.costs,
    },
}

OPTIONS = {"*pages": {"nargs": "*", "metavar": "PAGE", "help": "all, unless some are named"}}


def written(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """Return the page with every marked part made anew; `ValueError` if a mark is missing."""
    for name, make in parts.items():
        marks = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, count = re.subn(
            marks, lambda m, new=make: f"{m[1]}\n{new()}\n\n{m[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{count} places are marked {name!r}, not one")
    return text


def main(options: Namespace) -> None:
    """Write every page, or those that are named."""
    for page in options.pages or PAGES:
        path = TOP / "docs" / page
        path.write_text(written(path.read_text(), PAGES[page]))
        print(f"docs/{page}")
