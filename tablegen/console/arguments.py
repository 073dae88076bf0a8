"""The arguments of the command line, read without importing anything that is slow to import."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from qpruntime._formatting import meant, printable

__all__ = ["USAGE", "parser"]

USAGE = 2
#: Examples at the end of each command's help; tests run the lines that stand alone.
EXAMPLES = {
    "build": (
        "tablegen build --likelihood probit --output probit.h5",
        "tablegen build --likelihood poisson --preset compact --dry-run",
        "tablegen build --likelihood my_module:likelihood --output mine.h5",
    ),
    "info": ("tablegen info probit-compact", "tablegen info probit.h5 --json"),
    "verify": ("tablegen verify probit-compact --points 200", "tablegen verify probit.h5 --seed 1"),
    "plot": ("tablegen plot probit-compact --output probit.png",),
    "export": ("tablegen export probit-compact --format zarr --output probit.zarr",),
    "publish": ("tablegen publish shelf", "tablegen publish shelf probit poisson"),
    "fetch": (
        "tablegen fetch probit-compact --from https://example.org/tables",
        "tablegen fetch https://example.org/tables/probit-compact.h5 --sha256 HASH",
    ),
    "list": ("tablegen list", "tablegen list --json"),
}
#: `add_argument` of a command or of a group of its options.
Add = Callable[..., object]
_FORMATS = "hdf5: one file; zarr: a directory of compressed chunks, for object stores"


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        # argparse takes -10 for a number, but before Python 3.14 not -1e1, nor ever -inf.
        self._negative_number_matcher = re.compile(
            r"^-((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$", re.I
        )

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            options = [*_options(self), *_options(self, getattr(parsed, "command", None))]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0], options)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*?)'", message)
        if choice and "did you mean" not in message:
            message += meant(choice[1], _commands(self))
        self.exit(USAGE, f"tablegen: error: {printable(message)} (see {self.prog} --help)\n")


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser, command: str | None = None) -> list[str]:
    parser = _commands(parser).get(command or "", parser)
    return [name for action in parser._actions for name in action.option_strings]


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Examples stay lines; a description is filled as ever."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        import shtab

        print(shtab.complete(parser, shell))
        parser.exit()


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import qpruntime

        print(f"tablegen {qpruntime.__version__}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the parser of ``tablegen``."""
    made = _Parser(prog="tablegen", description="Build and check lookup tables of sigma*.")
    made.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    made.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        metavar="SHELL",
        help="print a completion script for bash, zsh or tcsh, and exit",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build a table, or resume an interrupted build")
    build.description = (
        "Build a table and certify its error. If a build is interrupted or killed, the same "
        "command resumes it."
    )
    _which(build.add_argument_group("which table").add_argument)
    _where_to(build.add_argument_group("where to").add_argument)
    _who(build.add_argument_group("who computes").add_argument)
    info = commands.add_parser("info", help="print the metadata and the certificate of a table")
    _table(info.add_argument)
    verify = commands.add_parser(
        "verify", help="check the hash of a table, and integrate random points again"
    )
    verify.description = (
        "Check the hash of a table, and integrate random points again. The exit status is 0 if the "
        "table is sound, 1 if it is not, and 3 if its bytes are right but its accuracy was not "
        "checked because --likelihood was not given."
    )
    _verify(verify.add_argument)
    plot = commands.add_parser("plot", help="draw sigma*/sigma_EP and the error of a table")
    _plot(plot.add_argument)
    export = commands.add_parser("export", help="write a table in another format")
    _export(export.add_argument)
    publish = commands.add_parser(
        "publish", help="write tables and registry.json to a directory for others"
    )
    publish.description = (
        "Write tables and registry.json to a directory that any web server or object store can "
        "serve. The registry has names, sizes, hashes, certificates and the commands of builds."
    )
    _publish(publish.add_argument)
    fetch = commands.add_parser("fetch", help="download a published table, and check it")
    fetch.description = (
        "Download a table or resume a download, check its hashes, and install it. Proxies are "
        "read from the environment."
    )
    _fetch(fetch.add_argument)
    commands.add_parser("list", help="list the installed tables and those inside the package")
    for name, command in commands.choices.items():
        command.add_argument("--json", action="store_true", help="print one JSON document")
        command.epilog = "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[name])])
        command.formatter_class = _Plain
    return made


def _table(add: Add) -> None:
    add("table", metavar="FILE|NAME", help="a file, or a name that tablegen list prints")


def _which(add: Add) -> None:
    add(
        "--likelihood",
        default="probit",
        metavar="NAME",
        help="a registered name, with parameters as in 'student-t(nu=4, scale=0.3)', or "
        "package.module:name of your own Likelihood, or of a function without arguments that is "
        "annotated '-> Likelihood'; the module is imported from the current directory and run; "
        "default: probit",
    )
    add(
        "--preset",
        metavar="PRESET",
        help="grid: the grid of the paper (default); compact: a small table for every cavity; "
        "surfaces: all quantities that inference needs, for any likelihood (default for your own)",
    )
    for axis, ends in (("mu", "-10 10"), ("log10-sigma", "-1 1; surfaces: -2 1")):
        add(
            f"--{axis}-range",
            nargs=2,
            type=float,
            metavar=("LO", "HI"),
            help=f"ends of the axis {axis}; default: {ends}",
        )
        add(
            f"--{axis}-step",
            type=float,
            metavar="STEP",
            help="distance of nodes of a grid; default: 0.001",
        )
    add("--counts", type=_counts, metavar="FIRST:LAST", help="counts y in the table; default: 0:50")
    add(
        "--outcomes",
        type=_outcomes,
        metavar="Y,Y,...",
        help="surfaces only: every value that y takes",
    )
    add(
        "--y-range",
        nargs=2,
        type=float,
        metavar=("LO", "HI"),
        help="surfaces only: range of a continuous y",
    )
    add(
        "--projection",
        metavar="NAME",
        help='surfaces only: "wp" stores L_p projections of order --p, for method="wp"',
    )
    add("--p", type=float, metavar="P", help="order of --projection wp, from 1 to 10")
    add(
        "--method",
        metavar="METHOD",
        help="grid only; spectral: expand a Chebyshev series (default); direct: integrate at every "
        "node",
    )
    add("--dtype", metavar="TYPE", help="grid only: float64 (default) or float32")
    add(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="largest relative error; the build fails above it; default: 1e-12, float32: 1e-7, "
        "compact: 1e-9, surfaces: 1e-8, --projection wp: 1e-6",
    )


def _where_to(add: Add) -> None:
    add(
        "--output",
        metavar="FILE",
        help="file to write; default: a name made of likelihood, parameters and preset, in "
        "$QP_TABLES or the user's data directory, where tablegen and open_table find it",
    )
    add(
        "--force",
        action="store_true",
        help="replace an existing table; follow a link that leads nowhere",
    )
    add("--format", metavar="FORMAT", help=f"{_FORMATS}; default: by the ending of --output")
    add(
        "--size-limit",
        dest="limit",
        type=_megabytes,
        metavar="MB",
        help="surfaces only: largest size of the table; default: 128",
    )
    add("--yes", action="store_true", help="build more than 4 GB without asking")
    add(
        "--dry-run",
        action="store_true",
        help="print path, size, nodes and estimated time, and build nothing",
    )


def _who(add: Add) -> None:
    add("--workers", type=int, metavar="N", help="number of threads; default: all cores")
    add("--scheduler", metavar="ADDRESS", help="address of a dask cluster, such as tcp://host:8786")
    add(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="time to wait for the cluster, or for a worker; default: 60",
    )


def _export(add: Add) -> None:
    _table(add)
    add(
        "--format",
        default="zarr",
        metavar="FORMAT",
        help=f"{_FORMATS} (default); c: a C99 header, from a compact table",
    )
    add(
        "--output",
        metavar="FILE",
        help="file to write; default: beside the table; c: qp_NAME.h in this directory",
    )
    add("--force", action="store_true", help="replace an existing table")


def _publish(add: Add) -> None:
    add("directory", metavar="DIR", help="directory to write to; it is made if it does not exist")
    add(
        "tables",
        nargs="*",
        metavar="FILE|NAME",
        help="tables to publish; default: all that tablegen list prints; tables that DIR has stay "
        "in its registry",
    )


def _fetch(add: Add) -> None:
    add(
        "table",
        metavar="NAME|URL",
        help="a name in the registry, the hash of the data of a table, or a URL or path of NAME.h5",
    )
    add(
        "--from",
        dest="source",
        metavar="DIR|URL",
        help="directory or URL of registry.json: http, https, or a protocol of fsspec; default: "
        "$QP_REGISTRY",
    )
    add(
        "--sha256",
        metavar="HASH",
        help="hash of the file, or of its data as tablegen info prints it; others are refused",
    )
    add("--output", metavar="FILE", help="file to write; default: an installed table")
    add("--force", action="store_true", help="replace an existing table")


def _verify(add: Add) -> None:
    _table(add)
    add("--likelihood", metavar="NAME", help="package.module:name of your own likelihood")
    add("--points", type=int, default=2000, metavar="N", help="number of points; default: 2000")
    add("--seed", type=int, metavar="N", help="seed of the points; default: a new one each time")
    add(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="largest relative error; default: that of the table",
    )
    add("--workers", type=int, metavar="N", help="number of threads; default: all cores")


def _plot(add: Add) -> None:
    _table(add)
    add("--output", required=True, metavar="FILE", help="a .png or .svg file")
    add("--outcome", type=float, metavar="Y", help="value of y to draw; default: 1")
    for axis in ("mu", "log10-sigma"):
        add(
            f"--{axis}-range",
            nargs=2,
            type=float,
            metavar=("LO", "HI"),
            help=f"part of the axis {axis} to draw; default: all of it",
        )


def _counts(text: str) -> tuple[int, int]:
    """Parse ``FIRST:LAST``."""
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"needs FIRST:LAST, two counts, got {text!r}")
    return int(match[1]), int(match[2])


def _outcomes(text: str) -> Sequence[float]:
    """Parse ``0,1,2`` or ``FIRST:LAST``."""
    try:
        if ":" in text:
            first, last = _counts(text)
            return range(first, last + 1)
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"needs numbers Y,Y,..., got {text!r}") from error


def _megabytes(text: str) -> int:
    """Parse a number of megabytes; return bytes."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < 1e12:
        raise argparse.ArgumentTypeError(f"needs a positive number of MB, got {text!r}")
    return round(1e6 * number)
