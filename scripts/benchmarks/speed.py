"""Measure everything docs/bench-cost.md states about speed, in one run, as a table or as JSON.

Peers (scikit-learn, GPy, GPBoost) are measured beside it where they are installed; times are the
best of several, ratios come from the same run.

    python -m scripts.benchmarks speed --sets sweep fit
"""

import contextlib
import json
import math
import os
import platform
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.benchmarks import speed_fits, speed_inference, speed_lookups
from scripts.benchmarks.timing import has

#: Libraries that need not be installed, and the sections they are measured in.
PEERS = {"GPy": ("sweep", "fit"), "gpboost": ("fit",)}
SECTIONS: dict[str, Callable] = {
    "startup": speed_inference.startup,
    "projection": speed_lookups.projection,
    "table": speed_lookups.table,
    "lookup": speed_lookups.lookups,
    "sweep": speed_inference.sweeps,
    "engine": speed_inference.engine,
    "memory": speed_inference.memory,
    "fit": speed_fits.fits,
    "corrections": speed_fits.corrections,
    "predict": speed_fits.predictions,
    "weights": speed_fits.weights,
}
#: Sections that take the path of a grid.
WITH_TABLE = ("table", "lookup", "sweep")
OPTIONS = {
    "sets": {"choices": list(SECTIONS), "default": list(SECTIONS), "help": "sections to run"},
    "table": {"default": "tables/probit.h5", "help": "a grid of the full size"},
    "json": {"action": "store_true", "help": "print one JSON document"},
}


@contextlib.contextmanager
def chatter_to_stderr() -> Iterator[None]:
    """Send what peers print, from C too, to stderr: stdout is for results."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def left_out(sections: list[str], path: str) -> list[str]:
    """What these sections do not measure, and why, a line each."""
    lines = []
    for peer, all_sections in PEERS.items():
        where = [name for name in all_sections if name in sections]
        if where and not has(peer):
            lines.append(f"{peer} is not installed (extra bench): skipped in {', '.join(where)}")
    where = [name for name in WITH_TABLE if name in sections]
    if where and not Path(path).is_file():
        lines.append(
            f"{path} is no file: the grid is skipped in {', '.join(where)}; "
            f"build it: tablegen build --likelihood probit --output {path}"
        )
    return lines


def main(options: Namespace) -> None:
    """Measure, print."""
    sections = options.sets
    skipped = left_out(sections, options.table)
    for line in skipped:
        print(line, file=sys.stderr, flush=True)
    results = {}
    for name in sections:
        run = SECTIONS[name]
        with chatter_to_stderr():
            rows = run(options.table) if name in WITH_TABLE else run()
        # JSON has no infinity and no NaN.
        results[name] = [
            {"what": w, "value": v if math.isfinite(v) else None, "unit": u} for w, v, u in rows
        ]
        if not options.json:
            print(f"\n{name}")
            for what, value, unit in rows:
                print(f"  {what:<52}{value:>12.4g} {unit}", flush=True)
    if options.json:
        document = {"python": platform.python_version(), "skipped": skipped, "results": results}
        print(json.dumps(document, indent=1, allow_nan=False))
