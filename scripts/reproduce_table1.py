"""Reproduce the paper's Table 1: EP, QP and VB on ten data sets, by one command.

Each finished fit is one line of a results file and is never computed again: stop this command at
any time and start it again. When all fits asked for are there, or with ``--report``, the table is
written by `table1_report`. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# One BLAS thread for each worker, here and in the processes dask starts.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import datasets  # noqa: E402
import experiment  # noqa: E402
from experiment import Task  # noqa: E402
from qpruntime.errors import InputError  # noqa: E402
from qpruntime.execution.calls import ExecutorError  # noqa: E402
from records import Records  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
#: CPU seconds a fit takes beside the others, to tell the time left before it is measured.
_WEIGHT = {"ionosphere": 6.0, "cancer": 20.0, "pima": 20.0, "pima532": 12.0, "mining": 0.5}


class Results(Records[Task]):
    """The finished fits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Task)


def plan(names: Iterable[str], blocks: Iterable[str], rounds: int | None) -> list[Task]:
    """Return all fits asked for, round by round, so that a stopped run has whole rounds."""
    tasks = []
    for name in names:
        limit = experiment.rounds(name)
        # A round of the whole table holds two splits of Mining.
        asked = limit if rounds is None else min(limit, rounds * limit // 100)
        for block in blocks:
            if name == "mining" and block in ("grid", "all", "loo", "ard"):
                continue  # one feature, no folds, and the paper's grid is the probit's
            for turn in range(max(asked, 1)):
                for fold in range(experiment.folds(name, block)):
                    tasks.append(Task(name, block, turn, fold))
    return sorted(tasks, key=lambda t: (t.round * 100 // experiment.rounds(t.data), t.block))


def work(
    tasks: list[Task],
    prepare: Callable[[Task], tuple],
    take: Callable[[dict[str, Any]], None],
    options: argparse.Namespace,
) -> None:
    """Call `take` with the records of `tasks` as they finish: in this process, or by dask."""
    if options.scheduler is None and options.workers == 1:
        for task in tasks:
            take(experiment.run(*prepare(task)))
        return
    from qpruntime.execution.cluster import Cluster

    with ExitStack() as stack:
        address = options.scheduler
        if address is None:
            from dask.distributed import LocalCluster

            local = LocalCluster(
                n_workers=options.workers, threads_per_worker=1, dashboard_address=":0"
            )
            address = stack.enter_context(local).scheduler_address
        # Fits need not come out alike to the last bit: processors may differ.
        cluster = Cluster(
            address, options.timeout, same_rounding=False, modules=[experiment.__file__]
        )
        executor = stack.enter_context(cluster)
        calls = ((experiment.run_packed, prepare(task)) for task in tasks)
        executor.each(calls, lambda number, record: take(record))


class Progress:
    """Fits done, and the time left by the seconds that fits of each kind took here."""

    def __init__(self, tasks: list[Task], kept: int, workers: int) -> None:
        self.left = Counter((t.data, t.block) for t in tasks)
        self.total, self.done, self.kept, self.workers = len(tasks), 0, kept, workers
        self.start = self.shown = time.monotonic()
        self.seconds: dict[tuple[str, str], list[float]] = {}
        if kept:
            print(f"{kept} fits are kept from earlier runs", file=sys.stderr)

    def step(self, record: dict[str, Any]) -> None:
        """Count one fit, and say how far things are: always on a terminal, else now and then."""
        kind = record["data"], record["block"]
        self.done += 1
        self.left[kind] -= 1
        self.seconds.setdefault(kind, []).append(record["cpu"])
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if not (terminal or now - self.shown > 30.0 or self.done == self.total):
            return
        self.shown = now
        left = self._left() * (now - self.start) / max(sum(map(sum, self.seconds.values())), 1e-9)
        hours, minutes, seconds = int(left // 3600), int(left // 60 % 60), int(left % 60)
        text = (
            f"{self.done}/{self.total} fits, {record['data']} {record['block']} round "
            f"{record['round']}; {hours}:{minutes:02d}:{seconds:02d} left"
        )
        print(
            f"\r\x1b[K{text}" if terminal else text, file=sys.stderr, end="" if terminal else "\n"
        )
        if terminal and self.done == self.total:
            print(file=sys.stderr)

    def _left(self) -> float:
        """Return the CPU seconds of what is left, kinds not yet seen by their usual weight."""
        rate = {k: sum(v) / len(v) for k, v in self.seconds.items()}
        unit = sum(r / _WEIGHT.get(k[0], 1.0) for k, r in rate.items()) / len(rate)
        return sum(
            count * rate.get(kind, unit * _WEIGHT.get(kind[0], 1.0))
            for kind, count in self.left.items()
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    known = (*datasets.NAMES, *datasets.VARIANTS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("QP_DATA"),
        help="directory of the raw files (default $QP_DATA); missing ones are fetched",
    )
    parser.add_argument("--data-sets", nargs="+", choices=known, default=list(datasets.NAMES))
    parser.add_argument(
        "--blocks", nargs="+", choices=experiment.BLOCKS, default=["main", "vb"], metavar="BLOCK"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help="rounds of 10 folds, and twice as many splits of Mining",
    )
    parser.add_argument("--workers", type=int, help="processes (default: all cores)")
    parser.add_argument("--scheduler", help="address of a dask.distributed scheduler")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for it, or for a first worker"
    )
    parser.add_argument("--grid", help="table on the paper's grid, for blocks 'grid', 'time'")
    parser.add_argument(
        "--folds", type=Path, default=ROOT / "tables/.table1-folds.jsonl", help="finished fits"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "tables/results", help="where table1.* go"
    )
    parser.add_argument("--report", action="store_true", help="only report what is kept")
    options = parser.parse_args(arguments)
    if options.data is None and not options.report:
        parser.error("--data DIRECTORY is needed, or QP_DATA in the environment")
    if {"grid", "time"} & set(options.blocks) and not options.grid:
        parser.error("blocks 'grid' and 'time' need --grid: tablegen build --likelihood probit")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.workers is None:
        options.workers = len(os.sched_getaffinity(0))
    elif options.workers < 1:
        parser.error("--workers must be at least 1")
    return options


def compute(options: argparse.Namespace, results: Results) -> None:
    """Do what is asked for and not kept."""
    data = {n: datasets.load(n, options.data, download=True) for n in options.data_sets}
    asked = plan(options.data_sets, options.blocks, options.rounds)
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

    progress = Progress(tasks, len(asked) - len(tasks), options.workers)

    def take(record: dict[str, Any]) -> None:
        results.add(record)
        progress.step(record)

    work(tasks, prepare, take, options)


def main(arguments: list[str] | None = None) -> int:
    """Run, then write the table."""
    options = parse(arguments)
    results = Results(options.folds)
    try:
        if not options.report:
            compute(options, results)
    except datasets.DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ExecutorError as error:
        again = shlex.join(["python", *sys.argv])
        print(f"error: {error}; finished fits are kept, to go on: {again}", file=sys.stderr)
        return 1
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; finished fits are kept, the same command goes on", file=sys.stderr)
        return 130
    import table1_report

    table1_report.write(list(results.records.values()), options.output)
    if options.blocks != ["corrected"]:
        print((options.output / "table1.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
