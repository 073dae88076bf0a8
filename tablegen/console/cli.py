"""The command line: parse, call, print. Results go to stdout, everything else to stderr.

Heavy imports happen inside the subcommands, so that help and errors in usage come at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from qpruntime.errors import InputError, QPError
from tablegen.files.workspace import BuildStopped

__all__ = ["main"]

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        # argparse takes -10 for a number, but before Python 3.14 not -1e1.
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.I)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"tablegen: error: {message} (see {self.prog} --help)\n")


#: Packages that only some commands need, and the extra that brings them.
EXTRAS = {
    "dask": "build",
    "distributed": "build",
    "zarr": "build",
    "rich": "build",
    "matplotlib": "plot",
}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tablegen", description="Build and check lookup tables of sigma*.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    build = commands.add_parser(
        "build", help="build a table; interrupted, the same command resumes"
    )
    build.add_argument(
        "--likelihood",
        default="probit",
        metavar="NAME",
        help="a registered name (default: probit), or package.module:name of your own, found from "
        "the current directory: your code, which is imported and run",
    )
    build.add_argument(
        "--output",
        metavar="FILE",
        help="default: NAME.h5 in $QP_TABLES or the user's data directory",
    )
    build.add_argument(
        "--preset",
        metavar="PRESET",
        help="grid: the paper's shape (default); compact: small, holds for every cavity; surfaces: "
        "all that inference needs, of any likelihood (default of your own)",
    )
    build.add_argument(
        "--method",
        metavar="METHOD",
        help="spectral: expand a Chebyshev series (default); direct: integrate at every node",
    )
    build.add_argument("--dtype", metavar="TYPE", help="float64 (default) or float32")
    for axis, ends in (("mu", "-10 10"), ("log10-sigma", "-1 1, surfaces: -2 1")):
        build.add_argument(
            f"--{axis}-range", nargs=2, type=float, metavar=("LO", "HI"), help=f"default: {ends}"
        )
        build.add_argument(f"--{axis}-step", type=float, metavar="STEP", help="default: 0.001")
    build.add_argument(
        "--counts", type=_counts, metavar="FIRST:LAST", help="of a likelihood of counts; 0:50"
    )
    build.add_argument(
        "--outcomes", type=_outcomes, metavar="Y,Y,...", help="of surfaces: every value y takes"
    )
    build.add_argument(
        "--y-range", nargs=2, type=float, metavar=("LO", "HI"), help="of surfaces: continuous y"
    )
    build.add_argument(
        "--size-limit", type=float, metavar="MB", help="of surfaces: largest table; default: 128"
    )
    build.add_argument(
        "--projection",
        metavar="NAME",
        help='of surfaces: "wp" stores L_p projections of the order --p, for method "wp"',
    )
    build.add_argument("--p", type=float, metavar="P", help="from 1 to 10, of --projection wp")
    build.add_argument("--workers", type=int, metavar="N", help="threads; default: all cores")
    build.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute on a dask cluster, such as tcp://host:8786; this process writes the table",
    )
    build.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for the cluster, and for a worker when none is left; default: 60",
    )
    build.add_argument(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="relative error above which the build fails; default: 1e-12, float32: 1e-7, "
        "compact: 1e-9, surfaces: 1e-8, --projection wp: 1e-6",
    )
    build.add_argument("--force", action="store_true", help="replace an existing table")
    build.add_argument(
        "--dry-run", action="store_true", help="print size, nodes and estimated time"
    )

    info = commands.add_parser("info", help="metadata and certificate of a table")
    info.add_argument("table", metavar="FILE|NAME")

    verify = commands.add_parser("verify", help="hash a table and integrate random points again")
    verify.add_argument("table", metavar="FILE|NAME")
    verify.add_argument(
        "--likelihood", metavar="NAME", help="package.module:name of your own table of surfaces"
    )
    verify.add_argument("--points", type=int, default=2000, metavar="N", help="default: 2000")
    verify.add_argument("--seed", type=int, metavar="N", help="default: a new one each time")
    verify.add_argument("--tolerance", type=float, metavar="ERROR", help="default: the table's own")
    verify.add_argument("--workers", type=int, metavar="N", help="threads; default: all cores")

    plot = commands.add_parser("plot", help="draw sigma*/sigma_EP and the error of a table")
    plot.add_argument("table", metavar="FILE|NAME")
    plot.add_argument("--output", required=True, metavar="FILE", help="a .png or .svg file")
    plot.add_argument("--outcome", type=float, metavar="Y", help="default: 1")
    plot.add_argument("--mu-range", nargs=2, type=float, metavar=("LO", "HI"))
    plot.add_argument("--log10-sigma-range", nargs=2, type=float, metavar=("LO", "HI"))

    commands.add_parser("list", help="installed tables, and those inside the package")
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _counts(text: str) -> tuple[int, int]:
    """Parse ``FIRST:LAST``."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"needs FIRST:LAST, two counts, got {text!r}")
    return int(match[1]), int(match[2])


def _outcomes(text: str) -> list[float]:
    """Parse ``0,1,2`` or ``FIRST:LAST``."""
    try:
        if ":" in text:
            first, last = _counts(text)
            return [float(y) for y in range(first, last + 1)]
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"needs numbers Y,Y,..., got {text!r}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``tablegen`` with these arguments and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(argv)
    commands = {"build": _build, "info": _info, "verify": _verify, "plot": _plot, "list": _list}
    try:
        return commands[arguments.command](arguments)
    except InputError as error:
        return _fail(str(error), USAGE)
    except BuildStopped as error:
        return _fail(f"{error}: {_command(argv)}", FAILED)
    except (QPError, OSError) as error:
        return _fail(str(error), FAILED)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        extra = EXTRAS[error.name]
        return _fail(
            f"{arguments.command} needs {error.name}: pip install 'qpruntime[{extra}]'", FAILED
        )
    except KeyboardInterrupt:
        # Reads and writes of zarr that were cut short are no news.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        # What was cut off complains when it is collected.
        warnings.simplefilter("ignore")
        verb = "resume" if arguments.command == "build" else "run again"
        print(f"tablegen: interrupted; to {verb}: {_command(argv)}", file=sys.stderr)
        return INTERRUPTED


def _command(argv: Sequence[str]) -> str:
    return shlex.join(["tablegen", *argv])


def _fail(message: str, code: int) -> int:
    print("tablegen: error:", " ".join(message.split()), file=sys.stderr)
    return code


def _print(document: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(document, indent=2, sort_keys=True) if as_json else text)


def _build(arguments: argparse.Namespace) -> int:
    from tablegen import builder
    from tablegen.console import describe
    from tablegen.console.progress import bar

    axes = ("mu_range", "mu_step", "log10_sigma_range", "log10_sigma_step")
    names = ("method", "dtype", *axes, "counts", "outcomes", "y_range", "preset", "projection", "p")
    given = {name: getattr(arguments, name) for name in names}
    if arguments.size_limit is not None:
        given["limit"] = int(1e6 * arguments.size_limit)
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.dry_run:
        plan = builder.prepare(arguments.likelihood, **options)
        document = describe.plan(
            plan, arguments.output, arguments.workers, scheduler=arguments.scheduler
        )
        _print(document, describe.text(document), arguments.json)
        return DONE
    if arguments.timeout is not None:
        options["timeout"] = arguments.timeout
    started = time.perf_counter()
    with bar() as progress:
        metadata = builder.build(
            arguments.likelihood,
            arguments.output,
            **options,
            workers=arguments.workers,
            scheduler=arguments.scheduler,
            tolerance=arguments.tolerance,
            force=arguments.force,
            progress=progress,
        )
    preset = builder.default_preset(arguments.likelihood, arguments.preset)
    path = builder.target_path(arguments.likelihood, arguments.output, preset, metadata.order)
    document = describe.table(path, metadata)
    _print(document, describe.text(document), arguments.json)
    print(f"tablegen: built in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return DONE


def _info(arguments: argparse.Namespace) -> int:
    from qpruntime.projection.table import open_table
    from tablegen.console import describe

    table = open_table(arguments.table)
    document = describe.table(table.path, table.metadata)
    _print(document, describe.text(document), arguments.json)
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    from tablegen.console import describe
    from tablegen.console.progress import bar
    from tablegen.user_code import load
    from tablegen.verify import verify

    with bar() as progress:
        report = verify(
            arguments.table,
            likelihood=load(arguments.likelihood) if arguments.likelihood else None,
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


def _plot(arguments: argparse.Namespace) -> int:
    from tablegen.console import plot

    document = plot.plot(
        arguments.table,
        arguments.output,
        outcome=arguments.outcome,
        mu_range=arguments.mu_range,
        log10_sigma_range=arguments.log10_sigma_range,
    )
    _print(
        document, "\n".join(f"{key:<18} {value}" for key, value in document.items()), arguments.json
    )
    return DONE


def _list(arguments: argparse.Namespace) -> int:
    from tablegen.console import describe

    document = describe.installed()
    _print(document, describe.listing(document), arguments.json)
    return DONE
