"""Tables of docs/time-series.md: what ``benchmarks series`` keeps."""

from __future__ import annotations

from scripts.records import document
from scripts.reports.speed import by_size
from scripts.reports.tables import table

__all__ = ["cost", "times"]

_SIZES = {10**k: f"N = 1e{k}" for k in (4, 5, 6, 7)}
_ROWS = {
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
}
#: Of the estimate for 1e9 points.
_CORES = 32
#: Bytes a point that go to workers once, with the rows around blocks, and come back at the end.
_OUT, _BACK = 26, 40


def kept() -> dict[str, float]:
    """Values by what they are of."""
    return {name: value for name, (value, _) in document("bench_series.json").items()}


def times() -> str:
    """Seconds by size."""
    found = {name: f"{value:.3g}" for name, value in kept().items()}
    (_, *header), *lines = by_size(found, _ROWS, _SIZES)
    return table(["CPU seconds", *header], lines)


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
