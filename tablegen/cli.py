"""The command line: parse, call, print. Results go to stdout, everything else to stderr.

Heavy imports happen inside the subcommands, so that help and errors in usage come at once.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from qpruntime.errors import InputError, QPError

__all__ = ["main"]

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        # argparse takes -10 for a number, but before Python 3.14 not -1e1.
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.I)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"tablegen: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tablegen", description="Build and check lookup tables of sigma*.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    build = commands.add_parser(
        "build", help="build a table; interrupted, the same command resumes"
    )
    build.add_argument("--likelihood", default="probit", metavar="NAME", help="default: probit")
    build.add_argument(
        "--output",
        metavar="FILE",
        help="default: NAME.h5 in $QP_TABLES or the user's data directory",
    )
    build.add_argument(
        "--method",
        default="spectral",
        metavar="METHOD",
        help="spectral: expand a Chebyshev series (default); direct: integrate at every node",
    )
    build.add_argument("--dtype", default="float64", metavar="TYPE", help="float64 or float32")
    build.add_argument(
        "--mu-range", nargs=2, type=float, default=(-10.0, 10.0), metavar=("LO", "HI")
    )
    build.add_argument("--mu-step", type=float, default=1e-3, metavar="STEP")
    build.add_argument(
        "--log10-sigma-range", nargs=2, type=float, default=(-1.0, 1.0), metavar=("LO", "HI")
    )
    build.add_argument("--log10-sigma-step", type=float, default=1e-3, metavar="STEP")
    build.add_argument("--workers", type=int, metavar="N", help="threads; default: all cores")
    build.add_argument(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="relative error above which the build fails; default: 1e-12, float32: 1e-7",
    )
    build.add_argument("--force", action="store_true", help="replace an existing table")
    build.add_argument(
        "--dry-run", action="store_true", help="print size, nodes and estimated time"
    )

    info = commands.add_parser("info", help="metadata and certificate of a table")
    info.add_argument("table", metavar="FILE|NAME")

    verify = commands.add_parser("verify", help="hash a table and integrate random nodes again")
    verify.add_argument("table", metavar="FILE|NAME")
    verify.add_argument("--points", type=int, default=2000, metavar="N", help="default: 2000")
    verify.add_argument("--seed", type=int, metavar="N", help="default: a new one each time")
    verify.add_argument("--tolerance", type=float, metavar="ERROR", help="default: the table's own")
    verify.add_argument("--workers", type=int, metavar="N", help="threads; default: all cores")

    commands.add_parser("list", help="installed tables")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tablegen`` with these arguments and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(argv)
    command = {"build": _build, "info": _info, "verify": _verify, "list": _list}[arguments.command]
    try:
        return command(arguments)
    except InputError as error:
        return _fail(error, USAGE)
    except (QPError, OSError) as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        again = shlex.join(["tablegen", *argv])
        verb = "resume" if arguments.command == "build" else "run again"
        print(f"tablegen: interrupted; to {verb}: {again}", file=sys.stderr)
        return INTERRUPTED


def _fail(error: Exception, code: int) -> int:
    print("tablegen: error:", " ".join(str(error).split()), file=sys.stderr)
    return code


def _print(document: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(document, indent=2, sort_keys=True) if as_json else text)


def _build(arguments: argparse.Namespace) -> int:
    from tablegen import builder, describe
    from tablegen.bar import bar

    options = {
        name: getattr(arguments, name)
        for name in (
            "method",
            "dtype",
            "mu_range",
            "mu_step",
            "log10_sigma_range",
            "log10_sigma_step",
        )
    }
    if arguments.dry_run:
        plan = builder.prepare(arguments.likelihood, **options)
        document = describe.plan(plan, arguments.output, arguments.workers)
        _print(document, describe.text(document), arguments.json)
        return DONE
    started = time.perf_counter()
    with bar() as progress:
        metadata = builder.build(
            arguments.likelihood,
            arguments.output,
            **options,
            workers=arguments.workers,
            tolerance=arguments.tolerance,
            force=arguments.force,
            progress=progress,
        )
    path = builder.target_path(arguments.likelihood, arguments.output)
    document = describe.table(path, metadata)
    _print(document, describe.text(document), arguments.json)
    print(f"tablegen: built in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return DONE


def _info(arguments: argparse.Namespace) -> int:
    from qpruntime.table import open_table
    from tablegen import describe

    table = open_table(arguments.table)
    document = describe.table(table.path, table.metadata)
    _print(document, describe.text(document), arguments.json)
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    from tablegen import describe
    from tablegen.bar import bar
    from tablegen.verify import verify

    with bar() as progress:
        report = verify(
            arguments.table,
            points=arguments.points,
            seed=arguments.seed,
            tolerance=arguments.tolerance,
            workers=arguments.workers,
            progress=progress,
        )
    document = describe.report(report)
    _print(document, describe.text(document), arguments.json)
    for problem in report.problems:
        print(f"tablegen: error: {report.path}: {problem}", file=sys.stderr)
    return DONE if report.ok else FAILED


def _list(arguments: argparse.Namespace) -> int:
    from tablegen import describe

    document = describe.installed()
    _print(document, describe.listing(document), arguments.json)
    return DONE
