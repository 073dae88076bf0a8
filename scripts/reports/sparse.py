"""Tables of docs/million-rows.md: what bench_sparse*.py and sparse_curve.py keep."""

from __future__ import annotations

from typing import Any, NamedTuple

from scripts.benchmarks.sparse import Row as PeerRow
from scripts.benchmarks.sparse_curve import Row as CurveRow
from scripts.benchmarks.sparse_noise import NOISY
from scripts.benchmarks.sparse_size import PARTS
from scripts.records import RESULTS, Records
from scripts.reports.truth import table

__all__ = ["curve", "dense", "noise", "peers", "products", "sizes"]

PEERS, CURVE = RESULTS / "bench_sparse.jsonl", RESULTS / "sparse_curve.jsonl"
SIZES = RESULTS / "sparse_sizes.jsonl"
_NAMES = {"svgp": "SVGP", "fitc": "FITC", "vecchia": "Vecchia"}


def _spoken(case: str) -> str:
    name, n, m = case.split("-")
    return f"{name}, N = {int(n):,}, M = {m}".replace(",0", " 0").replace(",9", " 9")


def _pairs(noisy: bool) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Case, peer, our record and the peer's, in the order of the file."""
    kept = Records(PEERS, PeerRow).records
    names = {"-".join(map(str, case)) for case in NOISY}
    found = []
    for key, record in kept.items():
        own = kept.get(PeerRow(key.case, "own"))
        if key.peer != "own" and own is not None and (key.case in names) == noisy:
            found.append((key.case, key.peer, own, record))
    return found


def peers() -> str:
    """Labels: how soon the peer's last figure is passed, and both ends."""
    lines = []
    for case, name, ours, theirs in _pairs(noisy=False):
        own = ours["path"][-1]
        row = [_spoken(case), _NAMES[name]]
        if not theirs["path"]:
            lines.append([*row, theirs["ended"], "", f"{own[1]:.4f}", f"{own[0]:.0f} s", "", ""])
            continue
        end = theirs["path"][-1]
        passed = [at for at, nll, _ in ours["path"] if nll <= end[1]]
        share = f"{min(passed) / end[0]:.2f}" if passed else "not passed"
        row += [f"{end[1]:.4f}", f"{end[0]:.0f} s", f"{own[1]:.4f}", f"{own[0]:.0f} s"]
        lines.append([*row, share, f"{end[2]:.4f}, {own[2]:.4f}"])
    header = ["", "peer", "its NLL", "after", "ours", "after", "its NLL passed, share of its time"]
    return table([*header, "calibration errors"], lines)


def noise() -> str:
    """Counts and outliers: seconds, log density and coverage of both."""
    kept = Records(PEERS, PeerRow).records
    lines = []
    for case in NOISY:
        title = "-".join(map(str, case))
        for key, record in kept.items():
            if key.case == title:
                spent, nlpd, covered = record["path"][-1]
                who = "ours" if key.peer == "own" else _NAMES[key.peer]
                lines.append(
                    [
                        _spoken(title),
                        who,
                        f"{spent:.0f} s",
                        f"{nlpd:.4f}",
                        f"{100.0 * covered:.1f} %",
                    ]
                )
    return table(["", "", "CPU time", "NLPD", "coverage of 90 % intervals"], lines)


def curve() -> str:
    """What M buys."""
    kept = Records(CURVE, CurveRow).records
    found = sorted((key.inducing, record) for key, record in kept.items() if key.what == "m")
    lines = [
        [str(m), f"{r['evidence']:.0f}", f"{r['nll']:.4f}", f"{r['seconds']:.0f} s"]
        for m, r in found
    ]
    return table(["M", "log evidence", "test NLL", "CPU time"], lines)


class Size(NamedTuple):
    """Which fit one of bench_sparse_size.py was."""

    rows: int
    inducing: int
    method: str


def sizes() -> str:
    """Seconds and memory of fits by rows."""
    lines = []
    for key, record in sorted(Records(SIZES, Size).records.items()):
        lines.append(
            [
                f"{key.rows:,}".replace(",", " ") + (", from zarr" if record["zarr"] else ""),
                f"{record['seconds']:.0f} s",
                f"{record['cpu']:.0f} s",
                f"{record['peak'] / 1000.0:.1f} GB",
                f"{record['nll']:.4f}",
            ]
        )
    return table(["rows", "two cores", "CPU time", "memory at most", "test NLL"], lines)


class Products(NamedTuple):
    """Of which evaluation."""

    inducing: int
    dtype: str


def products() -> str:
    """What an evaluation takes, in products of (N, M) and (M, M)."""
    lines = [
        [str(key.inducing), key.dtype, *(f"{record[name]:.1f}" for name in PARTS)]
        for key, record in Records(SIZES, Products).records.items()
    ]
    return table(["M", "", *PARTS], lines)


def dense() -> str:
    """Both engines by rows."""
    kept = Records(CURVE, CurveRow).records
    sizes = sorted({key.rows for key in kept if key.what == "dense" and not key.inducing})
    lines = []
    for n in sizes:
        pair = [r for key, r in kept.items() if key.what == "dense" and key.rows == n]
        if len(pair) < 2:
            continue
        pair.sort(key=lambda r: r["inducing"])
        cells = [f"{r['seconds']:.1f} s, {r['nll']:.4f}" for r in pair]
        lines.append([str(n), *cells])
    return table(["N", "dense: CPU time, test NLL", "M = 100"], lines)
