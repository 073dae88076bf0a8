"""Defaults on raw data: `GPClassifier()` and its kin beside scikit-learn's models, in 5 folds.

    python scripts/bench_defaults.py --data DIRECTORY              # all sets, then the table
    python scripts/bench_defaults.py --only moons_small xor        # these sets
    python scripts/bench_defaults.py --kernel "ConstantKernel() * RBF(p ** 0.5)" --scaled
    python scripts/bench_defaults.py --data DIRECTORY --report     # write tables/results/defaults.*

The data are in `raw_data`, the peers in `raw_peers`, the table in `defaults_report`. A fit that is
done is a line of the cache and is not done again: those of peers until scikit-learn, the data or
their definition change, ours until a line of qpruntime does. An expression for ``--kernel`` knows
scikit-learn's kernels, ``np``, and of the training features ``p``, their number, ``spread``, their
standard deviations, and ``distance``, the median between rows.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

# One BLAS thread for each worker, here and in the processes joblib starts.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import sklearn  # noqa: E402
from joblib import Parallel, delayed  # noqa: E402

import datasets  # noqa: E402
import defaults_report  # noqa: E402
import qpruntime  # noqa: E402
import raw_data  # noqa: E402
import raw_peers  # noqa: E402
from raw_data import RawSet  # noqa: E402
from raw_fits import FOLDS, Own, Task, digest, run  # noqa: E402
from records import Records  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


@cache
def our_version() -> str:
    """Hash of qpruntime's code."""
    found = hashlib.sha256()
    home = Path(qpruntime.__file__).parent
    for path in sorted(home.rglob("*.py")):
        found.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return found.hexdigest()[:12]


@cache
def peers_version() -> str:
    """scikit-learn's version, and a hash of the peers' code without its comments."""
    tree = ast.dump(ast.parse(Path(raw_peers.__file__).read_text()))
    return f"{sklearn.__version__} {hashlib.sha256(tree.encode()).hexdigest()[:12]}"


def plan(sets: Iterable[RawSet], own: Own) -> list[tuple[Task, RawSet]]:
    """All fits of these sets, the quick ones of a set last."""
    tasks = []
    for raw in sets:
        models = [(own.label, our_version())]
        models += [(name, peers_version()) for name in raw_peers.PEERS[raw.kind]]
        made = digest(raw)
        tasks += [(Task(raw.name, made, k, *m), raw) for m in models for k in range(FOLDS)]
    return tasks


def compute(
    options: argparse.Namespace, sets: Sequence[RawSet], records: Records[Task]
) -> list[dict[str, Any]]:
    """Do what is not in the cache, and return all records asked for."""
    asked = plan(sets, options.own)
    if options.no_peers:
        own = options.own.label
        asked = [(task, raw) for task, raw in asked if task.model == own or task in records]
    left = [(task, raw) for task, raw in asked if task not in records]
    if left:
        print(f"{len(left)} fits, {len(asked) - len(left)} are kept", file=sys.stderr)
    calls = (delayed(run)(task, raw, options.own) for task, raw in left)
    work = Parallel(n_jobs=options.jobs, return_as="generator_unordered", batch_size=1)
    start = shown = time.monotonic()
    for done, record in enumerate(work(calls), 1):
        records.add(record)
        if (now := time.monotonic()) - shown > 20.0 or done == len(left):
            shown = now
            print(
                f"{done}/{len(left)} fits in {now - start:.0f} s, last {record['set']} "
                f"{record['model']}",
                file=sys.stderr,
            )
    return [records.records[task] for task, _ in asked]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("QP_DATA"),
        help="directory of the raw files (default $QP_DATA); their sets are left out without one",
    )
    parser.add_argument("--only", nargs="+", choices=raw_data.names(), metavar="NAME")
    parser.add_argument("--kinds", nargs="+", choices=raw_data.KINDS, default=raw_data.KINDS)
    parser.add_argument(
        "--half", choices=("choosing", "reported"), help="sets of even numbers only, or of odd"
    )
    parser.add_argument("--kernel", metavar="EXPR", help="of our estimators, instead of None")
    parser.add_argument("--scaled", action="store_true", help="standardise features for ours")
    parser.add_argument(
        "--no-peers",
        action="store_true",
        help="fit ours alone, beside peers that are kept",
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cache", type=Path, default=ROOT / "tables/.defaults.jsonl")
    parser.add_argument("--output", type=Path, default=ROOT / "tables/results")
    parser.add_argument("--report", action="store_true", help="write defaults.md and defaults.csv")
    options = parser.parse_args(arguments)
    options.own = Own(options.kernel, options.scaled)
    if options.report and (options.no_peers or options.kernel or options.scaled):
        parser.error("--report is of the default kernel on raw data, beside its peers")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print or write the table."""
    options = parse(arguments)
    wanted = [n for k in options.kinds for n in raw_data.names(k)]
    if options.only:
        wanted = [name for name in wanted if name in options.only]
    try:
        found = [raw_data.load(name, options.data) for name in wanted]
    except datasets.DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    missing = [name for name, raw in zip(wanted, found, strict=True) if raw is None]
    if missing:
        print(f"without --data DIRECTORY: {', '.join(missing)} are left out", file=sys.stderr)
    remainder = {"choosing": (0,), "reported": (1,), None: (0, 1)}[options.half]
    sets = [raw for raw in found if raw and raw.number % 2 in remainder]
    records: Records[Task] = Records(options.cache, Task)
    try:
        kept = compute(options, sets, records)
    except KeyboardInterrupt:
        print("\ninterrupted; finished fits are kept, the same command goes on", file=sys.stderr)
        return 130
    results = defaults_report.summarise(sets, kept, options.own.label)
    print(defaults_report.plain(results))
    if options.report:
        defaults_report.write(results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
