"""Tables of docs/time-series.md: what bench_series.py keeps."""

from __future__ import annotations

import json

from scripts.records import RESULTS
from scripts.reports.truth import table

KEPT = RESULTS / "bench_series.json"
_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
#: Of the estimate for 1e9 points.
_CORES = 32
#: Bytes a point that go to workers once, with the rows around blocks, and come back at the end.
_OUT, _BACK = 26, 40


def kept() -> dict[str, float]:
    """Values by what they are of."""
    return {name: value for name, (value, _) in json.loads(KEPT.read_text()).items()}


def times() -> str:
    """Seconds by size."""
    found, rows = (
        kept(),
        {
            "fixed point, probit, EP": "probit, EP",
            "… a point, ns": "probit, EP, a point",
            "… QP against EP": "probit, QP / EP",
            "fixed point, Poisson e^f, EP": "poisson-exp, EP",
            "fit of two parameters, probit": "fit, probit",
            "… Poisson e^f": "fit, poisson-exp",
            "GPBoost, fit, probit": "GPBoost, fit",
            "… it predicts N": "GPBoost, predict",
            "ours in that run, fit": "ours, fit",
            "… ours predict N": "ours, predict",
        },
    )
    lines = []
    for words, what in rows.items():
        cells = [found.get(f"N={n}: {what}") for n in _SIZES]
        if any(cell is not None for cell in cells):
            lines.append([words, *("" if cell is None else f"{cell:.3g}" for cell in cells)])
    return table(["CPU seconds", *(f"N = 1e{len(str(n)) - 1}" for n in _SIZES)], lines)


def cost() -> str:
    """What a point costs in blocks, and a billion of them."""
    found = kept()
    most = max(n for n in _SIZES if f"N={n}: probit, EP, a point" in found)
    whole = found[f"N={most}: probit, EP, a point"]
    sweep, fold, messages, summary = (
        found[f"{name}, a point"] for name in ("a sweep", "a fold", "messages", "the summary")
    )
    # Two rounds more than in one piece, of one sweep each.
    blocks = whole + 2.0 * (messages + sweep + fold) + fold + messages
    minutes = blocks / 60.0
    return (
        f"A point costs {sweep:.0f} ns a sweep, {fold:.0f} a fold, {messages:.0f} for the messages "
        f"of a round and {summary:.0f} for the summary: {blocks:.0f} ns in blocks, {whole:.0f} in "
        f"one piece of {most:,} rows. A billion points are then about {minutes:.0f} core-minutes, "
        f"or {60.0 * minutes / _CORES:.0f} seconds on {_CORES} cores, and {_OUT + _BACK} bytes a "
        f"point over the network, {_OUT + _BACK} seconds at 1 GB/s."
    ).replace(",000", " 000")


def places() -> str:
    """Seconds on one and two workers."""
    found, lines = kept(), []
    for n in _SIZES:
        names = "in one piece", "1 worker(s)", "2 worker(s)", "two threads of this process"
        cells = [
            found.get(f"N={n}: probit, EP, {name}" if k == 0 else f"N={n}: {name}")
            for k, name in enumerate(names)
        ]
        if all(cell is not None for cell in cells):
            off = found[f"N={n}: 2 worker(s), largest difference"]
            words = [f"{cell:.2f}" for cell in cells if cell is not None]
            lines.append([f"1e{len(str(n)) - 1}", *words, f"{off:.1g}"])
    head = ["N", "in one piece, s", "one worker", "two workers", "two threads", "difference"]
    return table(head, lines)
