"""Calls of one function here, by processes of this machine, or on a dask cluster; how far they are.

Workers elsewhere have no checkout: this package is sent to them, as one archive.
"""

import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def each(
    function: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    take: Callable[[Any], None],
    options: Namespace,
) -> None:
    """Call `take` with what `function` returns for each of `arguments`, as it comes.

    Without ``options.scheduler``, and of ``options.workers`` no more than one, in this process. To
    the last bit results need not come out alike: processors may differ.
    """
    if options.scheduler is None and getattr(options, "workers", 1) == 1:
        for some in arguments:
            take(function(*some))
        return
    from qpruntime.execution.dask import Cluster

    with ExitStack() as stack:
        address = options.scheduler
        if address is None:
            from dask.distributed import LocalCluster

            local = LocalCluster(
                n_workers=options.workers, threads_per_worker=1, dashboard_address=":0"
            )
            address = stack.enter_context(local).scheduler_address
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        modules = [_archive(Path(folder))]
        cluster = Cluster(address, options.timeout, same_rounding=False, modules=modules)
        executor = stack.enter_context(cluster)
        call = partial(_call, function)
        executor.each(((call, some) for some in arguments), lambda _, found: take(found))


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What executors call, with one argument."""
    return function(*arguments)


class Progress:
    """Says on stderr how far work is: always on a terminal, else now and then.

    Parameters
    ----------
    total : int
        Fits to do.
    kept : int
        Fits that earlier runs have done.
    """

    def __init__(self, total: int, kept: int = 0) -> None:
        self.total, self.done = total, 0
        self.start = self.shown = time.monotonic()
        if total:
            print(f"{total} fits, {kept} are kept from earlier runs", file=sys.stderr)

    def step(self, words: str) -> None:
        """Count one fit, of which `words` tell."""
        self.done += 1
        now, terminal, last = time.monotonic(), sys.stderr.isatty(), self.done == self.total
        if not (terminal or now - self.shown > 20.0 or last):
            return
        self.shown = now
        left = int((now - self.start) / self.done * (self.total - self.done))
        text = f"{self.done}/{self.total} fits, {words}; {timedelta(seconds=left)} left"
        before, after = ("\r\x1b[K", "\n" * last) if terminal else ("", "\n")
        print(before + text, file=sys.stderr, end=after, flush=True)


def _archive(folder: Path) -> Path:
    """This package in a file that Python imports from."""
    path = folder / "scripts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted(_HERE.rglob("*")):
            if source.suffix in (".py", ".csv"):
                archive.write(source, source.relative_to(_HERE.parent))
    return path
