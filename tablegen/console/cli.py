"""The command line: call what the arguments ask for, and print.

Results go to stdout, everything else to stderr. Heavy imports happen inside the subcommands, so
that help and errors in usage come at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from qpruntime._formatting import command, install_hint, printable, size
from qpruntime.errors import InputError, QPError
from tablegen import memory
from tablegen.console.arguments import USAGE, parser
from tablegen.files.workspace import BuildStopped

__all__ = ["bar", "main", "transferred"]

# --- The progress bar of the command line: on stderr, and only on a terminal.

_WORDS = {
    "connect": "waiting for workers",
    "integrate": "integrating",
    "fill": "filling",
    "export": "writing",
    "certify": "certifying",
    "scan": "reading",
}


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a ``progress(stage, done, total)`` that draws a bar, or None off a terminal.

    Colours follow NO_COLOR; the bar is gone when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        """Time left at the mean rate: steps end in bursts, which rich's own estimate overrates."""

        def render(self, task: Task) -> Text:
            done = task.completed - task.fields["first"]
            if task.total is None or not task.elapsed or done <= 0:
                return Text("")
            seconds = round((task.total - task.completed) * task.elapsed / done)
            return Text(f"{seconds // 60}:{seconds % 60:02d} left")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeLeft(),
    )
    stages: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        # Compiling kernels takes half a minute, once per machine and version.
        start = display.add_task("preparing (the first run compiles)", total=1, first=0)

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                for earlier in (start, *stages.values()):
                    display.update(earlier, visible=False)
                words = _WORDS.get(stage, stage)
                stages[stage] = display.add_task(words, total=total, first=done)
            display.update(stages[stage], completed=done, total=total)

        yield progress


@contextmanager
def transferred() -> Iterator[Callable[[int, int | None], None] | None]:
    """Yield a ``report(there, total)`` that draws bytes and speed, or None off a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def report(there: int, total: int | None) -> None:
            progress.update(task, completed=there, total=total)

        yield report


# --- The command line: call what the arguments ask for, and print.

DONE, FAILED, UNCHECKED, INTERRUPTED = 0, 1, 3, 130

#: Packages that only some commands need, and the extra that brings them.
EXTRAS = {
    "dask": "cluster",
    "distributed": "cluster",
    "zarr": "build",
    "numcodecs": "zarr",
    "google_crc32c": "zarr",
    "h5py": "build",
    "rich": "build",
    "shtab": "build",
    "matplotlib": "plot",
    "pooch": "fetch",
    "requests": "fetch",
    "fsspec": "fetch",
}
# Messages of the system, besides a MemoryError, for a lack of memory or threads.
_SCARCE = ("can't start new thread", "cannot allocate memory", "failed to map segment")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tablegen`` with these arguments and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    # Kernels are our own: a pool of threads for linear algebra would only take memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        return _run(argv)
    except BrokenPipeError:
        # Whoever read the results has seen enough. Nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(argv: Sequence[str]) -> int:
    commands = {
        "build": _build,
        "info": _info,
        "verify": _verify,
        "plot": _plot,
        "export": _export,
        "publish": _publish,
        "fetch": _fetch,
        "list": _list,
    }
    # Known before the arguments are parsed, which may take more memory than there is.
    command_name = argv[0] if argv else ""
    try:
        arguments = parser().parse_args(argv)
        memory.check_limit()
        code = commands[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except InputError as error:
        return _fail(str(error), USAGE)
    except BuildStopped as error:
        return _fail(f"{error}: {command(*argv)}", FAILED)
    except (QPError, OSError) as error:
        return _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        return _fail(f"{command_name} needs {package}: {install_hint(extra)}", FAILED)
    except (MemoryError, ImportError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _is_scarce(error):
            raise
        return _fail(
            f"not enough memory for {command_name}: {str(error) or 'allocation failed'}; "
            "allow this process more, or use fewer --workers",
            FAILED,
        )
    except KeyboardInterrupt:
        # Reads and writes of zarr that were cut short are no news.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        # Interrupted objects warn when they are collected.
        warnings.simplefilter("ignore")
        verb = "resume" if command_name == "build" else "run again"
        print(f"tablegen: interrupted; to {verb}: {command(*argv)}", file=sys.stderr)
        return INTERRUPTED


def _is_scarce(error: BaseException) -> bool:
    return any(words in str(error).lower() for words in _SCARCE)


def _fail(message: str, code: int) -> int:
    print("tablegen: error:", printable(re.sub(r"\s*[\n\r\t]+\s*", " ", message)), file=sys.stderr)
    return code


def _print(arguments: argparse.Namespace, document: dict[str, Any], text: str = "") -> int:
    """Print a document, in words or by its own text or as JSON."""
    from tablegen.console import describe

    words = text or describe.text(document)
    print(json.dumps(document, indent=2, sort_keys=True) if arguments.json else words)
    return DONE


def _given(arguments: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the options that were given, but for those of the command line alone."""
    others = "command", "json", *others
    return {k: v for k, v in vars(arguments).items() if v is not None and k not in others}


def _build(arguments: argparse.Namespace) -> int:
    from tablegen import builder
    from tablegen.console import describe

    request = builder.check(**_given(arguments, "yes", "dry_run"))
    if arguments.dry_run:
        if request.path.parent.exists() or arguments.output is not None:
            request.workspace  # noqa: B018 - raises if no file may be made there
        document = describe.plan(
            request.recipe, request.path, arguments.workers, arguments.scheduler
        )
        return _print(arguments, document)
    nbytes = request.recipe.largest
    if nbytes > builder.LARGE and not arguments.yes and not _confirmed(nbytes):
        return FAILED
    started = time.perf_counter()
    with bar() as progress:
        metadata = builder.carry_out(request, progress)
    _print(arguments, describe.table(request.path, metadata))
    print(f"tablegen: built in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return DONE


def _confirmed(nbytes: int) -> bool:
    """Ask on a terminal whether so much is to be built; elsewhere raise `InputError`."""
    words = f"the table may take {size(nbytes)}, and twice that while it is built"
    if not _on_terminal():
        raise InputError(f"{words}; confirm with --yes, or choose a smaller one")
    print(f"tablegen: {words}. Build it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _info(arguments: argparse.Namespace) -> int:
    from qpruntime.projection.open import stated
    from tablegen.console import describe

    return _print(arguments, describe.table(*stated(arguments.table)))


def _verify(arguments: argparse.Namespace) -> int:
    from tablegen.console import describe
    from tablegen.user_code import load
    from tablegen.verify import verify

    options = _given(arguments)
    if arguments.likelihood:
        options["likelihood"] = load(arguments.likelihood)
    with bar() as progress:
        report = verify(**options, progress=progress)
    _print(arguments, describe.report(report))
    for problem in report.problems:
        print(f"tablegen: error: {report.path}: {problem}", file=sys.stderr)
    if report.ok is None:
        return UNCHECKED
    return DONE if report.ok else FAILED


def _plot(arguments: argparse.Namespace) -> int:
    from tablegen.console import plot

    document = plot.plot(**_given(arguments))
    text = "\n".join(f"{key:<18} {value}" for key, value in document.items())
    return _print(arguments, document, text)


def _export(arguments: argparse.Namespace) -> int:
    from tablegen.c_export.header import export_c
    from tablegen.console import describe
    from tablegen.files.formats import convert

    if arguments.format == "c":
        path, metadata = export_c(**_given(arguments, "format"))
    else:
        path, metadata = convert(**_given(arguments))
    return _print(arguments, describe.table(path, metadata))


def _publish(arguments: argparse.Namespace) -> int:
    from tablegen.artifacts.publish import publish

    path, entries = publish(arguments.directory, arguments.tables or None)
    rows = [f"{e.name:<32} {size(e.size):>9}  {e.sha256[:16]}  {e.guarantee}" for e in entries]
    document = {"registry": str(path), "tables": [asdict(entry) for entry in entries]}
    return _print(arguments, document, "\n".join([printable(str(path)), *rows]))


def _fetch(arguments: argparse.Namespace) -> int:
    from tablegen.artifacts.fetch import fetch
    from tablegen.console import describe

    with transferred() as report:
        path, metadata = fetch(**_given(arguments), report=report)
    return _print(arguments, describe.table(path, metadata))


def _list(arguments: argparse.Namespace) -> int:
    from tablegen.console import describe

    document = describe.installed()
    return _print(arguments, document, describe.listing(document))
