"""``python -m qpruntime``: what a report of a problem should say; and ``warmup``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qpruntime.warmup import WarmupStep

_NAMES = ("dense", "sparse", "series", "corrections", "functions", "optimiser", "wasserstein")
#: Steps of a warm-up in one process, which keeps about a megabyte of each kernel that it compiles.
_MOST_STEPS = 16
_REMEDY = "set NUMBA_CACHE_DIR to a folder that can be written, here and where the kernels are used"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    words = "versions, paths, threads, kept kernels and installed tables, for reports of problems"
    made = argparse.ArgumentParser(
        "python -m qpruntime", description=f"Print {words}; or prepare qpruntime by a command."
    )
    made.add_argument("--json", action="store_true", help="print one JSON document")
    commands = made.add_subparsers(dest="command")
    words = "compile all kernels now, so that nobody waits for them later"
    warm = commands.add_parser("warmup", help=words, description=f"{words.capitalize()}.")
    warm.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(_NAMES)}; or all")
    files = warm.add_mutually_exclusive_group()
    files.add_argument("--save", metavar="FILE", help="then write the kernels into an archive")
    files.add_argument(
        "--load",
        metavar="FILE",
        help="take kernels from an archive instead of compiling; one of another machine, version "
        "or processor is ignored",
    )
    warm.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if what was compiled could not be kept."""
    command_parser = parser()
    options = command_parser.parse_args(arguments)
    if options.command is None:
        return _about(options.json)
    for name in options.groups:
        if name not in _NAMES:
            command_parser.error(f"no group {name!r}: there are {', '.join(_NAMES)}")
    if options.load:
        return _load(options.load, options.quiet)
    status = _warmup(options.groups, options.quiet)
    return status or (_save(options.save, options.quiet) if options.save else 0)


def _about(as_json: bool) -> int:
    from qpruntime import system_info as about

    facts = about.facts()
    print(json.dumps(facts, indent=2) if as_json else about.text(facts))
    return 0


def _warmup(groups: Sequence[str], quiet: bool) -> int:
    # Here, so that a slip in the command is answered at once.
    from qpruntime import _numba as jit
    from qpruntime.warmup import steps_of  # which defines the kernels that are kept somewhere

    folder = jit.cache_folder()
    if folder is None:
        print(
            f"qpruntime: no folder for compiled kernels can be written: {_REMEDY}", file=sys.stderr
        )
        return 1
    wanted_folder = os.environ.get("NUMBA_CACHE_DIR")
    if wanted_folder and not os.path.realpath(folder).startswith(os.path.realpath(wanted_folder)):
        print(
            f"qpruntime: NUMBA_CACHE_DIR={wanted_folder} cannot be written; {folder} is taken",
            file=sys.stderr,
        )
    kernels, seconds = 0, 0.0
    for done in _run(steps_of(groups)):
        kernels, seconds = kernels + done.kernels, seconds + done.seconds
        if not quiet:
            line = (
                f"{done.group:<12} {done.words:<40} {done.kernels:4} kernels {done.seconds:7.1f} s"
            )
            print(line, flush=True)
    if not quiet:
        print(f"{kernels} kernels in {seconds:.0f} s, kept in {wanted_folder or folder}")
    return 0


def _run(steps: list[tuple[str, int]]) -> Iterator[WarmupStep]:
    """Run many steps in two processes, as each keeps in memory what it compiles."""
    from qpruntime.warmup import run_step

    if len(steps) > _MOST_STEPS:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield from process.map(run_step, *zip(*steps[:_MOST_STEPS], strict=True))
        steps = steps[_MOST_STEPS:]
    for step in steps:
        yield run_step(*step)


def _save(path: str, quiet: bool) -> int:
    from qpruntime import kernel_archive

    count = kernel_archive.save(path)
    if not quiet:
        print(f"{count} kernels, {os.path.getsize(path) / 1e6:.1f} MB in {path}")
    return 0


def _load(path: str, quiet: bool) -> int:
    from qpruntime import kernel_archive
    from qpruntime.errors import InputError

    try:
        count = kernel_archive.load(path)
    except InputError as error:
        print(f"qpruntime: {error}", file=sys.stderr)
        return 1
    if not quiet:
        print(f"{count} kernels taken from {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
