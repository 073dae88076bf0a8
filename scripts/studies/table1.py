"""Reproduce the paper's Table 1: EP, QP and VB on ten data sets, by one command.

    python -m scripts.studies table1 --data DIRECTORY
    python -m scripts.studies table1 --report          # tables/results/table1.*

Each finished fit is one line of a results file and is never computed again: stop this command at
any time and start it again. When all fits asked for are there the table is written, too. Progress
goes to stderr.
"""

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from qpruntime.errors import InputError
from qpruntime.execution.threads import ExecutorError
from scripts.benchmarks.data import paper, protocol
from scripts.benchmarks.data.protocol import Task
from scripts.cluster import Progress, each
from scripts.command_line import Failure, Usage
from scripts.records import RESULTS, TOP, Records
from scripts.reports import table1 as report
from scripts.studies import experiment

ONE_THREAD = True


def plan(names: Iterable[str], blocks: Iterable[str], rounds: int | None) -> list[Task]:
    """Return all fits asked for, round by round, so that a stopped run has whole rounds."""
    tasks = []
    for name in names:
        limit = protocol.rounds(name)
        # A round of the whole table holds two splits of Mining.
        asked = limit if rounds is None else min(limit, rounds * limit // 100)
        for block in blocks:
            if name == "mining" and block in ("grid", "all", "loo", "ard"):
                continue  # one feature, no folds, and the paper's grid is the probit's
            for turn in range(max(asked, 1)):
                for fold in range(protocol.folds(name)):
                    tasks.append(Task(name, block, turn, fold))
    return sorted(tasks, key=lambda t: (t.round * 100 // protocol.rounds(t.data), t.block))


OPTIONS = {
    "data": {"help": "directory of the raw files (default $QP_DATA); missing ones are fetched"},
    "sets": {"choices": (*paper.NAMES, *paper.VARIANTS), "default": list(paper.NAMES)},
    "blocks": {
        "nargs": "+",
        "choices": protocol.BLOCKS,
        "default": ["main", "vb"],
        "metavar": "BLOCK",
    },
    "rounds": {"help": "rounds of 10 folds, and twice as many splits of Mining"},
    "workers": {"help": "processes (default: all cores)"},
    "scheduler": {},
    "timeout": {},
    "grid": {"help": "table on the paper's grid, for blocks 'grid', 'time'"},
    "kept": {"default": TOP / "tables/.table1-folds.jsonl"},
    "out": {"default": RESULTS, "help": "where table1.* go"},
    "report": {},
}


def checked(options: Namespace) -> Namespace:
    """Refuse what does not go together, and fill in what is left open."""
    if options.data is None and not options.report:
        raise Usage("--data DIRECTORY is needed, or QP_DATA in the environment")
    if {"grid", "time"} & set(options.blocks) and not options.grid:
        raise Usage("blocks 'grid' and 'time' need --grid: tablegen build --likelihood probit")
    if options.rounds is not None and options.rounds < 1:
        raise Usage("--rounds must be at least 1")
    if options.workers is None:
        options.workers = len(os.sched_getaffinity(0))
    elif options.workers < 1:
        raise Usage("--workers must be at least 1")
    return options


def compute(options: Namespace, results: Records[Task]) -> None:
    """Do what is asked for and not kept."""
    data = {n: paper.load(n, options.data, download=True) for n in options.sets}
    asked = plan(options.sets, options.blocks, options.rounds)
    tasks = [task for task in asked if task not in results]

    def prepare(task: Task) -> tuple:
        fit: dict[str, Any] = {
            "variances": task.round < (10 if task.data == "mining" else 1),
            "grid": options.grid,
        }
        known = results.records.get(task._replace(block="main"))
        if task.block in ("grid", "time") and known is not None:
            fit["theta"] = known["theta"]
        return task, *data[task.data], fit

    progress = Progress(len(tasks), len(asked) - len(tasks))

    def take(record: dict[str, Any]) -> None:
        results.add(record)
        progress.step("{data} {block} round {round}".format(**record))

    each(experiment.run, (prepare(task) for task in tasks), take, options)


def main(options: Namespace) -> int:
    """Run, then write the table."""
    checked(options)
    results = Records(options.kept, Task)
    try:
        if not options.report:
            compute(options, results)
    except ExecutorError as error:
        again = shlex.join(["python", *sys.argv])
        raise Failure(f"{error}; finished fits are kept, to go on: {again}") from error
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report.write(list(results.records.values()), options.out)
    if options.blocks != ["corrected"]:
        print((options.out / "table1.md").read_text())
    return 0
