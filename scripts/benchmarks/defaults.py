"""Defaults on raw data: `GPClassifier()` and its kin beside scikit-learn's models, in 5 folds.

    python -m scripts.benchmarks defaults --data DIRECTORY         # all sets, then the table
    python -m scripts.benchmarks defaults --sets moons_small xor   # these sets
    python -m scripts.benchmarks defaults --data DIRECTORY --report  # tables/results/defaults.*

The data are in `data.small`, the peers in `peers.small`, a fit is in `defaults_fits`. A fit that is
done is a line of the cache and is not done again: those of peers until scikit-learn, the data or
their definition change, ours until a line of qpruntime does.
"""

import ast
import hashlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sklearn
from joblib import Parallel, delayed

import qpruntime
from scripts.benchmarks.data import small
from scripts.benchmarks.data.registry import KINDS
from scripts.benchmarks.data.small import RawSet
from scripts.benchmarks.defaults_fits import FOLDS, OURS, Task, digest, run
from scripts.benchmarks.peers import small as peers
from scripts.cluster import Progress
from scripts.records import RESULTS, TOP, Records
from scripts.reports import defaults as report

ONE_THREAD = True


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
    tree = ast.dump(ast.parse(Path(peers.__file__).read_text()))
    return f"{sklearn.__version__} {hashlib.sha256(tree.encode()).hexdigest()[:12]}"


def plan(sets: Iterable[RawSet]) -> list[tuple[Task, RawSet]]:
    """All fits of these sets, the quick ones of a set last."""
    tasks = []
    for raw in sets:
        models = [(OURS, our_version())]
        models += [(name, peers_version()) for name in peers.PEERS[raw.kind]]
        made = digest(raw)
        tasks += [(Task(raw.name, made, k, *m), raw) for m in models for k in range(FOLDS)]
    return tasks


def compute(
    options: Namespace, sets: Sequence[RawSet], records: Records[Task]
) -> list[dict[str, Any]]:
    """Do what is not in the cache, and return all records asked for."""
    asked = plan(sets)
    if options.no_peers:
        asked = [(task, raw) for task, raw in asked if task.model == OURS or task in records]
    left = [(task, raw) for task, raw in asked if task not in records]
    progress = Progress(len(left), len(asked) - len(left))
    calls = (delayed(run)(task, raw) for task, raw in left)
    work = Parallel(n_jobs=options.workers, return_as="generator_unordered", batch_size=1)
    for record in work(calls):
        records.add(record)
        progress.step("{set} {model}".format(**record))
    return [records.records[task] for task, _ in asked]


OPTIONS = {
    "data": {
        "help": "directory of the raw files (default $QP_DATA); their sets are left out without one"
    },
    "sets": {"choices": small.names()},
    "kinds": {"nargs": "+", "choices": KINDS, "default": KINDS},
    "no_peers": {"action": "store_true", "help": "fit ours alone, beside peers that are kept"},
    "workers": {"default": len(os.sched_getaffinity(0))},
    "kept": {"default": TOP / "tables/.defaults.jsonl"},
    "out": {"default": RESULTS},
    "report": {"help": "write defaults.md and defaults.csv"},
}


def main(options: Namespace) -> None:
    """Run, and print or write the table."""
    wanted = [n for k in options.kinds for n in small.names(k)]
    if options.sets:
        wanted = [name for name in wanted if name in options.sets]
    found = [small.load(name, options.data) for name in wanted]
    missing = [name for name, raw in zip(wanted, found, strict=True) if raw is None]
    if missing:
        print(f"without --data DIRECTORY: {', '.join(missing)} are left out", file=sys.stderr)
    sets = [raw for raw in found if raw]
    kept = compute(options, sets, Records(options.kept, Task))
    results = report.summarise(sets, kept, OURS)
    print(report.tables(results), report.notes(results), sep="\n")
    if options.report:
        report.write(results, options.out)
