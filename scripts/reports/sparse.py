"""Tables of inducing points of docs/bench-cost.md."""

from collections.abc import Iterable

from scripts.records import lines
from scripts.reports.tables import Record, Table, size, spaced, table

_NAMES = {"own": "ours", "svgp": "SVGP", "fitc": "FITC", "vecchia": "Vecchia"}
# Other cases of the file have the density of numbers and counts.
_LABELS = ("synthetic", "flights")
# From so many rows on those of the default are on the disk.
_MAPPED = 1_000_000


def _spoken(record: Record) -> str:
    name, n, m = record["case"].split("-")
    return f"{name}, N = {int(n):,}, M = {m}".replace(",0", " 0").replace(",9", " 9")


def peers(records: Iterable[Record] | None = None) -> str:
    """Labels: how soon the peer's last figure is passed, and both ends."""
    found = lines("bench_sparse.jsonl") if records is None else records
    kept = {(r["case"], r["peer"]): r for r in found if r["case"].startswith(_LABELS)}
    rows = []
    for (case, name), theirs in kept.items():
        if name == "own" or (case, "own") not in kept:
            continue
        path = kept[case, "own"]["path"]
        own, row = path[-1], [_spoken(theirs), _NAMES[name]]
        if not theirs["path"]:
            rows.append([*row, theirs["ended"], "", f"{own[1]:.4f}", f"{own[0]:.0f}", "", ""])
            continue
        end = theirs["path"][-1]
        passed = [at for at, nll, _ in path if nll <= end[1]]
        share = f"{min(passed) / end[0]:.2f}" if passed else "not passed"
        row += [f"{end[1]:.4f}", f"{end[0]:.0f}", f"{own[1]:.4f}", f"{own[0]:.0f}"]
        rows.append([*row, share, f"{end[2]:.4f}, {own[2]:.4f}"])
    header = ["", "peer", "its NLL", "after", "ours", "after", "share"]
    return table([*header, "calibration errors"], rows)


#: The default at 10^5 rows and more: the last record of every size.
scale = Table(
    "scale.jsonl",
    {
        "rows": lambda some: spaced(some[-1]["rows"]) + ", mapped" * (some[-1]["rows"] >= _MAPPED),
        "elapsed s, two cores": "{wall:.0f}",
        "CPU s": "{cpu:.0f}",
        "own memory, GB": lambda some: f"{some[-1]['own'] / 1e9:.2f}",
        "log loss": "{loss:.4f}",
        "µs a prediction": lambda some: f"{1e6 * some[-1]['later']:.0f}",
    },
    group=("rows",),
    where=lambda r: "model" not in r,
    order=lambda key: key,
)
scale_peers = Table(
    "scale.jsonl",
    {
        "model": "{model}",
        "rows": size("rows"),
        "elapsed s, two cores": "{wall:.0f}",
        "CPU s": "{cpu:.0f}",
        "memory, GB": lambda some: f"{some[-1]['bytes'] / 1e9:.2f}",
        "log loss": "{loss:.4f}",
        "µs a prediction": lambda some: f"{1e6 * some[-1]['later']:.0f}",
    },
    group=("model", "rows"),
    where=lambda r: "model" in r,
    order=lambda key: key,
)


#: Drift of rows in parts from all rows at once, with one site per row.
drift = Table(
    "study_streams.jsonl",
    {
        "rows": lambda some: some[-1]["data"].replace("-", ", "),
        "order and rows in a part": "{order}, {size}",
        "evidence, nats": "{evidence:+.2f}",
        "means, sd": "{means:.3f}",
        "NLL × 1000": lambda some: f"{1000.0 * some[-1]['nll']:+.2f}",
    },
    where=lambda r: r["sites"] == "own" and r["data"].startswith("labels"),
)
